"""What two vLLM engines cannot hand over to each other: refused by name, and nothing is left over."""

from __future__ import annotations

import asyncio

import pytest
from tests.vllm.pair import Pair

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]


async def test_states_of_two_ranks_for_one(tiny, tmp_path):
    pair = Pair(tiny("falcon_h1"), tmp_path, dtype="float32", far={"tensor_parallel_size": 2})
    try:
        await pair.start()
        far, home = [await pair.control(name, "GET", "node") for name in ("far", "home")]
        assert (len(far["data"]), len(home["data"])) == (2, 1)
        # vLLM counts this model's states after all of its attention layers. Heads are told, and can refuse before.
        assert far["fixed"] == home["fixed"] == "layer 4 conv.0"
        tokens = list(range(200))
        prefill = pair.prefill("t", tokens)
        end = await pair.decode("t", tokens)
        assert end["finish"] == "error", end
        await prefill
        sent = await pair.control("far", "GET", "sent/t")
        said = "layer 4 conv.0: a state of 2 ranks cannot be given to 1"
        assert sent["cause"] == "refused"
        assert said in sent["detail"]
        assert f"the KV of t did not come: layout: {said}" in pair.home.log.read_text()
        states = await asyncio.gather(pair.far.settled(), pair.home.settled())
        assert [state["free"] for state in states] == [pair.far.ready["blocks"], pair.home.ready["blocks"]]
    finally:
        await pair.close()
