"""A chat of several turns over the public port: each turn is computed once, and the client sees how much was not."""

from __future__ import annotations

from typing import Any

import pytest

from prfaas.testing.noderig import Answer
from tests.e2e.conftest import Reference
from tests.e2e.system import System
from tests.e2e.test_answers import ask
from tests.e2e.texts import licences

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def cached(answer: Answer) -> int:
    return int(answer.usage["prompt_tokens_details"]["cached_tokens"])


def computed(system: System, node: str) -> float:
    """Prompt tokens that `node` computed since it began."""
    return system.metric(node, "prfaas_prompt_tokens_total", source="computed")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("alone", [False, True])
def test_a_chat(tiny: System, one_process: Reference, stream: bool, alone: bool) -> None:
    """Each turn prefills what came since the last 64-token boundary before it: of what one node alone has seen, the
    answers included; of a cluster with a node that only prefills, since the prompt before."""
    text = licences()[4000 + 1000 * stream + 2000 * alone :]
    said, before = text[:200], 0
    url, node = (tiny.health_of("home-decode"), "home-decode") if alone else (tiny.url, "home-prefill")
    for turn in range(4):
        body: dict[str, Any] = {"model": tiny.model, "prompt": said, "temperature": 0, "max_tokens": 30}
        body |= {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        started = computed(tiny, node)
        answer, route = ask(url, body)
        assert route == ("" if alone else "local; cluster=home; reason=short")
        assert answer.text == one_process(said, 30)
        assert cached(answer) == before - before % 64
        tokens = answer.usage["prompt_tokens"] - (not alone)  # the last one is the decode node's
        assert computed(tiny, node) - started == tokens - cached(answer)
        before = answer.usage["prompt_tokens"] - 1 + (answer.usage["completion_tokens"] if alone else 0)
        said += answer.text + text[200 + 40 * turn : 240 + 40 * turn]
    tiny.settled()


def test_a_long_prompt_far_away_is_computed_once(tiny: System, one_process: Reference) -> None:
    prompt = licences()[9000:11000]
    for hit in (0, 1984):
        before = computed(tiny, "far-prefill")
        answer, route = ask(tiny.url, {"model": tiny.model, "prompt": prompt, "temperature": 0, "max_tokens": 12})
        assert route == "remote; cluster=far; reason=long"
        assert answer.text == one_process(prompt, 12)
        assert cached(answer) == hit
        assert computed(tiny, "far-prefill") - before == 1999 - hit
    tiny.settled()


def test_a_long_chat_crosses_the_link_once(tiny: System, one_process: Reference) -> None:
    """Of each turn only what the decode node has not seen, and the state; the answers are its own."""
    text = licences()[12_000:]
    said, before, crossed = text[:1500], 0, []
    for turn in range(3):
        held, moved = (
            tiny.metric("home-decode", "prfaas_prompt_tokens_total", source="held"),
            tiny.metric("home-decode", "prfaas_kv_bytes_total"),
        )
        answer, route = ask(tiny.url, {"model": tiny.model, "prompt": said, "temperature": 0, "max_tokens": 30})
        assert route == "remote; cluster=far; reason=long"
        assert answer.text == one_process(said, 30)
        assert tiny.metric("home-decode", "prfaas_prompt_tokens_total", source="held") - held == before - before % 64
        crossed.append(tiny.metric("home-decode", "prfaas_kv_bytes_total") - moved)
        before = answer.usage["prompt_tokens"] - 1 + answer.usage["completion_tokens"]
        said += answer.text + text[2000 + 40 * turn : 2040 + 40 * turn]
    assert crossed[0] > 2 * max(crossed[1:])
    tiny.settled()
