"""Programs are killed in every order while requests run; nodes join, leave and vanish: real processes, real signals."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import permutations
from typing import Any

import httpx2
import pytest

from tests.conftest import SEED
from tests.e2e.crowd import Crowd, Told, touched
from tests.e2e.derived import expected
from tests.e2e.system import SECRET, System, until
from tests.e2e.texts import licences

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(180)]

TOPOLOGY = """\
model: emulated
clusters:
  home:
    kind: pd
    listen: 127.0.0.1:8000
    nodes:
      - {name: home-p, role: prefill, engine: &fast {kind: emulated, time_scale: 0.05, bytes_scale: 0.015625}}
      - {name: home-d1, role: decode, engine: *fast}
      - {name: home-d2, role: decode, engine: *fast}
  far:
    kind: prfaas
    nodes:
      - {name: far-1, role: prefill, engine: *fast}
links:
  - {from: far, to: home, bandwidth: 400Mbps, rtt: 2ms, emulate: true}
policy: {kind: threshold, threshold: 1000}
limits:
  health_interval: 200ms
  landing_buffer: 64MiB
  leases: {node: 3s, transfer: 3s, credit: 5s}
"""
GATEWAY, SERVICE = "home", "far"
KILLED = (GATEWAY, SERVICE, "far-1", "home-d1")
ORDERS, CLIENTS, DEADLINE_S, NOTICE_S, LOAD_S = 3, 24, 15.0, 2.0, 10.0
REMOTE, LOCAL = "remote; cluster=far; reason=long", "local; cluster=home; reason=short"
LONG = 2500
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    directory = tmp_path_factory.mktemp("restarts")
    (directory / "topology.yaml").write_text(TOPOLOGY)
    made = System.start(directory / "topology.yaml", directory / "state")
    back(made)
    yield made
    assert made.stop() == 0


@cache
def text() -> str:
    return licences().encode("ascii", "replace").decode()


def fresh(size: int = LONG) -> str:
    """A prompt that begins like none before: what is cached of others must not decide where it goes."""
    return f"{next(NUMBERS):06} {text()}"[:size]


def ask(system: System, prompt: str, max_tokens: int = 8) -> tuple[int, str, str]:
    """Status, route and text; (0, "", "") when the gateway does not answer."""
    body = {"model": "emulated", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    try:
        answer = httpx2.post(system.url + "/v1/completions", json=body, timeout=30)
    except httpx2.HTTPError:
        return 0, "", ""
    said = answer.json()["choices"][0]["text"] if answer.status_code == 200 else ""
    return answer.status_code, answer.headers.get("x-prfaas-route", ""), said


def back(system: System) -> None:
    """Remote and local are served, rightly, and nothing is held."""
    for size, wanted in ((LONG, REMOTE), (40, LOCAL)):

        def right(size: int = size, wanted: str = wanted) -> bool:
            prompt = fresh(size)
            return ask(system, prompt) == (200, wanted, expected(prompt, 8))

        until(f"{wanted!r}, and right", right)
    system.settled()


@dataclass
class Chaos:
    """Kills programs in one order, a moment apart. `windows`: per program, from its death until all know it is back."""

    system: System
    order: tuple[str, ...]
    chance: random.Random
    windows: dict[str, tuple[float, float]] = field(default_factory=dict)

    def run(self) -> None:
        pause, dead = threading.Event(), {}
        for name in self.order:
            pause.wait(self.chance.uniform(0.1, 1.0))
            self.windows[name] = (time.monotonic(), float("inf"))
            dead[name] = self.system.kill(name)
        for name, pid in dead.items():
            self.system.restored(name, pid)
            self.windows[name] = (self.windows[name][0], time.monotonic() + NOTICE_S)


async def under_load(system: System, chaos: Chaos) -> list[Told]:
    crowd = Crowd({GATEWAY: system.url}, text(), CLIENTS, DEADLINE_S, f"restarts {SEED} {chaos.order}")
    await asyncio.gather(crowd.for_(LOAD_S), asyncio.to_thread(chaos.run))
    return crowd.told


@pytest.mark.parametrize("at", range(ORDERS))
def test_killed_in_any_order_while_requests_run(system: System, at: int, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(f"orders {SEED}")
    order = chance.sample(list(permutations(KILLED)), ORDERS)[at]
    chaos = Chaos(system, order, chance)
    told = asyncio.run(under_load(system, chaos))
    kinds = Counter(one.kind for one in told)
    failed = Counter(one.detail.partition(":")[0] for one in told if one.kind == "error")
    with capsys.disabled():
        print(f"\n  {' '.join(order)}: {dict(kinds)}; {dict(failed)}")
    windows = list(chaos.windows.values())
    for one in told:
        assert one.kind not in ("wrong", "hung"), one
        assert one.kind != "error" or touched(one, windows), one
        assert one.kind != "cut" or touched(one, [chaos.windows[GATEWAY]]), one
    after = [one for one in told if one.began > max(end for _, end in windows)]
    assert {one.kind for one in after} <= {"right", "left"}, "it is as if nothing had been"
    assert kinds["right"] > CLIENTS
    back(system)


class Spare:
    """`prfaas node --join`, as somebody starts it on an idle machine."""

    def __init__(self, system: System, cluster: str, name: str, *more: str) -> None:
        (file,) = system.state.glob("prfaas/runs/*/topology.yaml")
        command = [sys.executable, "-m", "prfaas.cli.main", "node", str(file), "--cluster", cluster]
        command += ["--join", "--name", name, *more]
        environ = os.environ | {"PRFAAS_SECRET": SECRET, "PRFAAS_LOG_FORMAT": "json"}
        self.process = subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True)
        self.name = name

    def end(self, number: int) -> tuple[int, str]:
        """Exit code and log."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


@contextmanager
def spare(system: System, cluster: str, name: str, *more: str) -> Iterator[Spare]:
    one = Spare(system, cluster, name, *more)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()


def members(system: System, head: str) -> dict[str, Any]:
    url, headers = f"{system.health_of(head)}/prfaas/v1/members", {"Authorization": f"Bearer {SECRET}"}
    try:
        said = httpx2.get(url, headers=headers, timeout=10).json()["members"]
    except httpx2.HTTPError:
        return {}
    return {member["node"]: member for member in said}


def state(system: System, head: str, name: str) -> str:
    return str(members(system, head).get(name, {}).get("state", "none"))


def gauge(system: System, head: str, where: str) -> float:
    return system.metric(head, "prfaas_members", state=where, cluster=head)


def asked(system: System, count: int, size: int = LONG) -> list[tuple[int, str, str]]:
    """So many prompts at once, each of them answered rightly."""
    prompts = [fresh(size) for _ in range(count)]
    with ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(lambda prompt: ask(system, prompt), prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer[0] == 200
        assert answer[2] == expected(prompt, 8)
    return answers


def test_a_node_joins_for_a_while_and_leaves_under_load(system: System) -> None:
    with spare(system, "far", "spare-1", "--like", "far-1") as one:
        until("it joined", lambda: state(system, "far", "spare-1") == "joined")
        assert gauge(system, "far", "joined") == 1
        url = members(system, "far")["spare-1"]["url"]
        assert {route for _, route, _ in asked(system, 12)} == {REMOTE}
        lines = httpx2.get(url + "/metrics").text.splitlines()
        (done,) = [line.split()[-1] for line in lines if line.startswith("vllm:prompt_tokens_total")]
        assert float(done) > LONG, "it did some of the work"
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(asked, system, 12)
            until("it works", lambda: members(system, "far")["spare-1"]["running"] > 0)
            code, said = one.end(signal.SIGTERM)
            assert {route for _, route, _ in asking.result()} == {REMOTE}, "what it had, it finished"
    assert code == 0, said
    assert '"event": "left"' in said
    assert state(system, "far", "spare-1") == "none"
    assert gauge(system, "far", "joined") + gauge(system, "far", "draining") == 0
    back(system)


def test_a_member_that_is_killed_is_gone_when_its_lease_is_over_and_may_come_back(system: System) -> None:
    with spare(system, "home", "spare-d", "--role", "decode") as one:
        until("it joined", lambda: state(system, "home", "spare-d") == "joined")
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(asked, system, 12)
            until("it works", lambda: members(system, "home")["spare-d"]["running"] > 0)
            one.end(signal.SIGKILL)
            asking.result()
        until("its lease is over", lambda: state(system, "home", "spare-d") == "none", 6)
    with spare(system, "home", "spare-d", "--role", "decode"):
        until("it is back", lambda: state(system, "home", "spare-d") == "joined")
        asked(system, 6)
    until("and gone", lambda: state(system, "home", "spare-d") == "none", 6)
    back(system)


def test_a_head_that_restarts_has_its_members_again(system: System) -> None:
    with spare(system, "far", "spare-2"):
        until("it joined", lambda: state(system, "far", "spare-2") == "joined")
        dead = system.kill("far")
        system.restored("far", dead)
        until("it joined again", lambda: state(system, "far", "spare-2") == "joined")
        asked(system, 6)
    back(system)


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("far", "spare-3", "--role", "decode"), 2, "cluster far only prefills"),
        (("far", "far-1"), 2, "'far-1' is a node of the file"),
        (("far", "Spare"), 2, "expected lower-case letters"),
        (("far", "spare-3", "--like", "nobody"), 2, "--like nobody: no such node in the file"),
        (("far", "spare-3", "--listen", "0.0.0.0:0"), 2, "expected --advertise"),
        (("far", "spare-3", "--listen", "nonsense"), 2, "--listen: got 'nonsense'"),
    ],
)
def test_what_cannot_join_is_told_in_one_line(system: System, arguments: tuple[str, ...], code: int, word: str) -> None:
    with spare(system, *arguments) as one:
        _, said = one.process.communicate(timeout=60)
    assert one.process.returncode == code
    assert word in said.splitlines()[-1]
    assert "Traceback" not in said


def test_who_has_another_secret_is_refused_and_ends(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.e2e.test_restarts.SECRET", "another secret of thirty-two characters")
    with spare(system, "far", "spare-3") as one:
        _, said = one.process.communicate(timeout=60)
    assert one.process.returncode == 1
    assert "invalid_api_key" in said
