"""A slow line, so that there is a middle of a transfer to break."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.e2e.conftest import ROOT, Reference
from tests.e2e.system import System, until
from tests.e2e.texts import licences

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PROMPT = 3000


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    text = (ROOT / "examples/two-clusters.yaml").read_text()
    assert "1Gbps" in text
    file: Path = tmp_path_factory.mktemp("topology") / "slow.yaml"
    file.write_text(text.replace("1Gbps", "8Mbps"))
    system = System.start(file, tmp_path_factory.mktemp("state"), "tiny-hybrid")
    yield system
    assert system.stop() == 0


@pytest.mark.parametrize("program", ["far-prefill", "far"])
def test_killing_the_prefill_side_in_mid_transfer_ends_in_a_right_answer(
    slow: System, one_process: Reference, program: str
) -> None:
    first = 300 * len(program)  # another one each time: what home computes when far is lost is cached there
    prompt = licences()[first : first + PROMPT]
    came: list[httpx2.Response] = []

    def ask() -> None:
        body = {"model": slow.model, "prompt": prompt, "max_tokens": 16, "temperature": 0}
        came.append(httpx2.post(slow.url + "/v1/completions", json=body, timeout=120))

    before = slow.metric("home-decode", "prfaas_kv_bytes_total", link="far->home")
    asking = threading.Thread(target=ask)
    asking.start()
    until("KV flows", lambda: slow.metric("home-decode", "prfaas_kv_bytes_total", link="far->home") > before + 200_000)
    dead = slow.kill(program)
    asking.join(120)
    (answer,) = came
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-prfaas-route"] == "local; cluster=home; reason=retry"
    assert answer.json()["choices"][0]["text"] == one_process(prompt, 16)
    slow.restored(program, dead)
    slow.settled()


def test_kv_flows_while_prefill_runs_and_never_above_the_line(slow: System, one_process: Reference) -> None:
    prompt = licences()[50 : 50 + PROMPT]
    body = {"model": slow.model, "prompt": prompt, "max_tokens": 4, "temperature": 0}

    def moved() -> float:
        return slow.metric("home-decode", "prfaas_kv_bytes_total", link="far->home")

    def computed() -> float:
        return slow.metric("far-prefill", "prfaas_stage_seconds_count", stage="prefill")

    bytes_before, computed_before = moved(), computed()
    looks: list[tuple[float, float, float]] = []
    came: list[httpx2.Response] = []
    asking = threading.Thread(
        target=lambda: came.append(httpx2.post(slow.url + "/v1/completions", json=body, timeout=120))
    )
    asking.start()
    while asking.is_alive():
        flowed = moved() - bytes_before  # looked at first: what is not computed afterwards was not when these flowed
        looks.append((time.monotonic(), flowed, computed() - computed_before))
        asking.join(0.02)
    (answer,) = came
    assert answer.headers["x-prfaas-route"].startswith("remote; cluster=far; reason=long")
    assert answer.json()["choices"][0]["text"] == one_process(prompt, 4)
    assert any(flowed > 0 and done == 0 for _, flowed, done in looks), "nothing came before all was computed"
    (first_s, first, _), (last_s, last, _) = (
        next(k for k in looks if k[1] > 0),
        next(k for k in looks if k[1] == looks[-1][1]),
    )
    assert last > 1.5e6
    assert (last - first) * 8 <= 8e6 * (last_s - first_s) * 1.1 + 2e6, "faster than the line, beyond a burst"
