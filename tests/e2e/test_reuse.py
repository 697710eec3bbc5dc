"""A chat of several turns over the public port: each turn is computed once, and the client sees how much was not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prfaas.testing.noderig import Answer
from tests.e2e.conftest import Reference
from tests.e2e.derived import expected
from tests.e2e.system import System, until
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


HOLDING = """\
model: emulated
clusters:
  home:
    kind: pd
    nodes:
      - {name: home-p, role: prefill, engine: &fast {kind: emulated, layout: dense, time_scale: 0.01}}
      - {name: home-d, role: decode, engine: *fast}
  far:
    kind: prfaas
    nodes:
      - {name: far-p, role: prefill, engine: *fast}
links:
  - {from: far, to: home, bandwidth: 1Gbps, rtt: 1ms}
policy: {kind: threshold, threshold: 1000, short_remainder: 512}
"""


@pytest.fixture
def holding(tmp_path: Path) -> Iterator[System]:
    """Clusters whose decode nodes compute the rest of what they hold."""
    (tmp_path / "topology.yaml").write_text(HOLDING)
    system = System.start(tmp_path / "topology.yaml", tmp_path / "state")
    yield system
    assert system.stop() == 0


def test_a_turn_is_left_to_the_decode_node_that_has_the_one_before(holding: System) -> None:
    """Nothing is prefilled for it, nothing crosses: neither the long first turn nor what came since."""
    text = licences().encode("ascii", "replace").decode()
    body: dict[str, Any] = {"model": "emulated", "prompt": text[:2000], "temperature": 0, "max_tokens": 40}
    first, route = ask(holding.url, body)
    assert (route, first.text) == ("remote; cluster=far; reason=long", expected(text[:2000], 40))
    said = text[:2000] + first.text + " And what else?"
    seen: list[tuple[Answer, list[float]]] = []

    def held() -> bool:
        before = [computed(holding, node) for node in ("home-p", "far-p")]
        answer, route = ask(holding.url, body | {"prompt": said, "max_tokens": 8})
        assert answer.text == expected(said, 8)
        seen.append(
            (answer, [computed(holding, node) - was for node, was in zip(("home-p", "far-p"), before, strict=True)])
        )
        return route == "local; cluster=home; reason=held"

    until("the gateway knows what the decode node holds", held)
    answer, prefilled = seen[-1]
    assert cached(answer) >= 1984
    assert prefilled == [0, 0]
    holding.settled()


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
