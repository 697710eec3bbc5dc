"""A chat of several turns over the public port: each turn is computed once, and the client sees how much was not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prfaas.testing.noderig import Answer
from tests.e2e.conftest import ROOT, Reference
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


@pytest.fixture
def holding(tmp_path: Path) -> Iterator[System]:
    """The same clusters, where decode nodes compute the rest of what they hold."""
    example, file = (ROOT / "examples/two-clusters.yaml").read_text(), tmp_path / "topology.yaml"
    assert example.count("policy:\n") == 1
    file.write_text(example.replace("policy:\n", "policy:\n  short_remainder: 512\n"))
    system = System.start(file, tmp_path / "state", "tiny-hybrid")
    yield system
    assert system.stop() == 0


def test_the_next_turn_of_a_chat_is_left_to_who_has_it(holding: System, one_process: Reference) -> None:
    """The decode node has the answer too, so it has less to do than the node that prefilled the turn before."""
    said = licences()[15000:15200]
    body: dict[str, Any] = {"model": holding.model, "temperature": 0, "max_tokens": 100}
    first, route = ask(holding.url, body | {"prompt": said})
    assert route == "local; cluster=home; reason=short"
    said += first.text + " And what else?"
    answers: list[tuple[Answer, float]] = []

    def held() -> bool:
        before = computed(holding, "home-prefill")
        answer, route = ask(holding.url, body | {"prompt": said, "max_tokens": 12})
        answers.append((answer, computed(holding, "home-prefill") - before))
        return route == "local; cluster=home; reason=held"

    until("the gateway knows what the decode node holds", held)
    answer, prefilled = answers[-1]
    assert (cached(answer) >= 256, cached(answer) % 64, prefilled) == (True, 0, 0)
    assert answer.text == one_process(said, 12)
    holding.settled()
