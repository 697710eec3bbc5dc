"""aiconfigurator's answers become a profile file; without the package there is one line that says how to get it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from importlib.util import find_spec

import pytest

from prfaas.core.errors import ConfigError
from prfaas.model.profilefile import contradictions, load_profile_file, profile_of
from prfaas.model.silicon import Node, Points, Reach, Silicon, load, silicon_profile

NODE = Node("Org/Some", "h200_sxm", "sglang", tp=8, moe_ep=8)
POINTS = Points(lengths=(1024, 2048), cached=(8192,), batches=(1, 4), contexts=(1024, 8192))
HAVE = find_spec("aiconfigurator_core") is not None
needs_it = pytest.mark.skipif(
    not HAVE, reason="aiconfigurator-core is not installed: pip install 'prfaas[aiconfigurator]'"
)


class Stub:
    """An oracle of two formulas."""

    def __init__(
        self,
        prefill: Callable[[int, int], float] = lambda tokens, cached: (tokens - cached) / 10 + cached / 1000,
        decode: Callable[[int, int], float] = lambda batch, context: 5 + batch + context / 1024,
    ) -> None:
        self.prefill_ms, self.decode_ms = prefill, decode


def test_points_and_words() -> None:
    silicon = Silicon(Stub(), "aic 1.0, sglang 0.5", Reach(16384, 0, 4096))
    said = silicon_profile(NODE, silicon, POINTS, "mine", date(2026, 5, 1))
    assert said.source == (
        "aic 1.0, sglang 0.5: Org/Some on 8 h200_sxm (tp 8, moe_ep 8); "
        "sums of measured kernels, without what serving adds"
    )
    assert (said.name, said.date) == ("mine", date(2026, 5, 1))
    assert (said.prefill.basis, said.decode.basis) == ("modelled", "modelled")
    assert [(row.cached, row.uncached, row.time_ns) for row in said.prefill.points] == [
        (0, 1024, 102_400_000),
        (0, 2048, 204_800_000),
        (8192, 1024, 110_592_000),
        (8192, 2048, 212_992_000),
    ]
    assert [(row.batch, row.context, row.time_ns) for row in said.decode.points] == [
        (1, 1024, 7_000_000),
        (1, 8192, 14_000_000),
        (4, 1024, 10_000_000),
        (4, 8192, 17_000_000),
    ]
    assert said.prefill.note == (
        "Attention was measured for prompts of up to 16384 tokens; beyond, aiconfigurator extrapolates."
        " No cached prefix was measured."
    )
    assert "contexts of up to 4096 tokens; beyond, aiconfigurator extrapolates." in said.decode.note


def test_what_falls_is_raised_and_said() -> None:
    def prefill(tokens: int, cached: int) -> float:
        return 100.0 if tokens == 1024 else 98.0

    said = silicon_profile(NODE, Silicon(Stub(prefill), "aic"), POINTS, "mine", date(2026, 5, 1))
    assert list(contradictions(said)) == []
    assert profile_of(said).prefill_ns(1024, 1024) <= profile_of(said).prefill_ns(2048, 2048)
    assert "How long prompts its data have is not known. Moved by up to 1.5% so as not to fall." in said.prefill.note


def test_its_errors_are_one_line() -> None:
    def prefill(tokens: int, cached: int) -> float:
        raise RuntimeError("no\n  data " + 400 * "x")

    with pytest.raises(ConfigError) as caught:
        silicon_profile(NODE, Silicon(Stub(prefill), "aic"), POINTS, "mine", date(2026, 5, 1))
    said = str(caught.value)
    assert said.startswith("aiconfigurator, Org/Some on 8 h200_sxm (tp 8, moe_ep 8): no data xxx")
    assert said.endswith("x...")
    assert len(said) < 400


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    with pytest.raises(ConfigError) as caught:
        load(NODE)
    assert str(caught.value).startswith("aiconfigurator-core is not installed (")
    assert str(caught.value).endswith("; expected: pip install 'prfaas[aiconfigurator]'")


@needs_it
@pytest.mark.slow
def test_the_bundled_profile_is_what_it_says() -> None:
    node = Node("MiniMaxAI/MiniMax-M2.5", "h200_sxm", "sglang", tp=8, moe_ep=8)
    stored = load_profile_file("h200-8-minimax-m2.5")
    assert silicon_profile(node, load(node), Points(), stored.name, stored.date) == stored


@needs_it
@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"model": "MiniMaxAI/MiniMax-M2.55"}, "model 'MiniMaxAI/MiniMax-M2.55': did you mean MiniMaxAI/MiniMax-M2.5?"),
        ({"system": "h300_sxm"}, "system 'h300_sxm': did you mean "),
        ({"backend": "tgi"}, "backend 'tgi': expected one of sglang, vllm, trtllm"),
        ({"tp": 3}, "aiconfigurator, .* on 3 h200_sxm .*: Parallelism width mismatch"),
        ({"version": "0.1"}, "aiconfigurator, .*: sglang/'0.1' looks like "),
    ],
)
def test_what_it_does_not_know(change: dict[str, object], what: str) -> None:
    node = Node("MiniMaxAI/MiniMax-M2.5", "h200_sxm", "sglang", tp=8, moe_ep=8)
    with pytest.raises(ConfigError, match=what):
        load(replace(node, **change))  # type: ignore[arg-type]
