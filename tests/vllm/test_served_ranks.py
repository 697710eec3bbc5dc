"""Behind a gateway: a prefill node of two ranks and a decode node of one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.freeports import free_port
from tests.vllm.served import Served, equal, prompt, served, topology

pytestmark = [pytest.mark.vllm, pytest.mark.nightly, pytest.mark.timeout(600)]
Tiny = Callable[[str], Path]


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each rank: `prfaas up` shares cores out among nodes only."""
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")


def two_to_one(model: Path) -> str:
    ranks = 'arguments: [--tensor-parallel-size, "2"]'
    return topology(model, far_more=ranks, far_data=f"data_listen: 127.0.0.1:{free_port(2)},")


def test_attention_is_handed_over_by_heads(tiny: Tiny, tmp_path: Path) -> None:
    with served(two_to_one(tiny("gemma3")), tmp_path) as system:
        equal(system, [2, 17, 257, 1025, 2500])
        system.all_free()


def test_states_are_refused_and_computed_at_home(tiny: Tiny, tmp_path: Path) -> None:
    with served(two_to_one(tiny("falcon_h1")), tmp_path) as system:
        answer = system.ask(prompt(300))
        assert answer.status_code == 200
        assert answer.headers["x-prfaas-route"] == "local; cluster=home; reason=layout_mismatch"
        assert answer.json()["choices"][0]["token_ids"] == system.alone(prompt(300))
        assert "layer 4 conv.0: a state of 2 ranks cannot be given to 1" in said_by(system, "home")
        system.all_free()


def said_by(system: Served, program: str) -> str:
    return "\n".join(log.read_text(errors="replace") for log in system.state.rglob(f"*{program}*.log"))
