"""Two hundred streams through twelve emulated nodes while programs are killed and connections cut: nothing lost,
nothing wrong, nothing left. Half a minute in `make test`, ten minutes by `-m nightly`."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest
import yaml

from tests.conftest import SEED
from tests.e2e.conftest import ROOT
from tests.e2e.crowd import Crowd, Told, touched
from tests.e2e.system import SECRET, System, until
from tests.e2e.texts import plain_text

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CLIENTS = 200
DEADLINE_S = 30.0
NOTICE_S = 2.0
"""Until everybody knows that a program is back, or gone."""
SPARED = ("east-d1", "west-d1", "east-p", "north-1", "south-1")
"""Never killed, like the gateways: their memory is looked at, and each PD cluster can always decode."""
GATEWAYS, SERVICES = ("east", "west"), ("north", "south")
FLAT_MIB, DECODE_MIB = 12, 40
"""How much more than after two minutes a program, or a decode node, may have after ten. What a decode node had at its
busiest moment, when it took all its cluster's streams, stays with it: a landing buffer, and 256 KiB a connection."""


def topology(directory: Path) -> Path:
    """The example, with a small KV layout that leaves more of two cores to the clients, short leases, and cuts."""
    said = yaml.safe_load((ROOT / "examples/two-by-two.yaml").read_text())
    for cluster in said["clusters"].values():
        for node in cluster["nodes"]:
            faults = [
                {"at": "prefill:last_layer", "do": "cut", "probability": 0.02, "seed": SEED},
                {"at": "landed", "do": "cut", "probability": 0.01, "seed": SEED + 1},
            ]
            node["engine"] = {**node["engine"], "layout": "hybrid", "bytes_scale": 0.0625, "faults": faults}
    said["links"] = [{**link, "connections": 2} for link in said["links"]]
    said["limits"] = {
        "health_interval": "200ms",
        "landing_buffer": "16MiB",
        "leases": {"transfer": "3s", "credit": "10s"},
    }
    file = directory / "load.yaml"
    file.write_text(yaml.safe_dump(said))
    return file


@dataclass
class Chaos:
    """Kills programs, one or two at a time, and waits until each is back. `windows`: when something was wrong."""

    system: System
    chance: random.Random
    pause_s: float
    windows: list[tuple[float, float]] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _error: BaseException | None = None

    def run(self) -> None:
        """Until `stop`. In a thread of its own."""
        programs = [name for name in (*self.system.nodes(), *SERVICES) if name not in SPARED]
        try:
            while not self._stop.wait(self.pause_s * self.chance.uniform(0.5, 1.5)):
                began = time.monotonic()
                names = self.chance.sample(programs, self.chance.choice((1, 1, 2)))
                dead = {name: self.system.kill(name) for name in names}
                self.killed += names
                for name, pid in dead.items():
                    self.system.restored(name, pid)
                self.windows.append((began, time.monotonic() + NOTICE_S))
        except BaseException as error:
            self._error = error

    def stop(self, thread: threading.Thread) -> None:
        """Returns when all is back. Raises what went wrong."""
        self._stop.set()
        thread.join(200)
        assert not thread.is_alive()
        if self._error is not None:
            raise self._error


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    made = System.start(topology(tmp_path), tmp_path / "state", gateways=2)
    for gateway in GATEWAYS:
        for service in SERVICES:
            until(f"{gateway} knows {service}", lambda g=gateway, s=service: f"cluster={s}" in made.log(g))
    yield made
    assert made.stop() == 0


@dataclass
class Load:
    """Crowds against one system, and what is true after each."""

    system: System
    told: list[Told] = field(default_factory=list)
    windows: list[tuple[float, float]] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)

    def calm(self, seconds: float, clients: int = CLIENTS) -> None:
        """Nobody is killed."""
        asyncio.run(self._crowd(clients).for_(seconds))
        self.system.settled()

    def chaos(self, seconds: float, pause_s: float) -> None:
        """Programs are killed, again and again."""
        chaos = Chaos(self.system, random.Random(f"chaos {SEED} {len(self.told)}"), pause_s)
        thread = threading.Thread(target=chaos.run)
        thread.start()
        try:
            asyncio.run(self._crowd(CLIENTS).for_(seconds))
        finally:
            chaos.stop(thread)
        self.system.settled()
        self.windows += chaos.windows
        self.killed += chaos.killed

    def rss(self) -> dict[str, int]:
        """Resident MiB of the programs that are never killed."""
        found = {}
        for name in (*SPARED, *GATEWAYS):
            lines = Path(f"/proc/{self.system.pids[name]}/status").read_text().splitlines()
            found[name] = int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) >> 10
        return found

    def cuts(self) -> int:
        """How often nodes cut their connections, as far as they still know."""
        count = 0
        for name in self.system.nodes():
            url, headers = f"{self.system.health_of(name)}/prfaas/v1/faults", {"Authorization": f"Bearer {SECRET}"}
            answer = httpx2.get(url, headers=headers, timeout=10)
            assert answer.status_code == 200, answer.text
            count += sum(one["struck"] for one in answer.json()["faults"])
        return count

    def right(self, grown: dict[str, int]) -> str:
        """Nothing wrong, nothing hung, no error without a cause, and few with one. A summary."""
        kinds = Counter(one.kind for one in self.told)
        failed = [one for one in self.told if one.kind in ("error", "cut")]
        for one in self.told:
            assert one.kind not in ("wrong", "hung"), one
        for one in failed:
            assert touched(one, self.windows), one
        assert len(failed) <= 0.1 * len(self.told)
        for program in self.system.pids:
            said = self.system.log(program)
            assert "Traceback" not in said, f"{program}: {said[said.index('Traceback') - 300 :][:3000]}"
        assert self.killed
        cuts = self.cuts()
        assert cuts
        took = sorted(one.ended - one.began for one in self.told)
        routes = Counter(one.route.partition(";")[0] for one in self.told if one.kind == "right")
        return (
            f"{dict(kinds)}, {dict(routes)}; killed {len(self.killed)}, cut {cuts} and more; failed: "
            f"{dict(Counter(one.detail.partition(':')[0] for one in failed))}; seconds: median "
            f"{took[len(took) // 2]:.1f}, most {took[-1]:.1f}; MiB more: {grown}"
        )

    def _crowd(self, clients: int) -> Crowd:
        urls = {name: self.system.health_of(name) for name in GATEWAYS}
        return Crowd(urls, plain_text(), clients, DEADLINE_S, f"crowd {SEED} {len(self.told)}", self.told)


@pytest.mark.timeout(180)
def test_half_a_minute(system: System, capsys: pytest.CaptureFixture[str]) -> None:
    load = Load(system)
    load.calm(5)
    before = load.rss()
    load.chaos(15, pause_s=1.5)
    load.calm(2, clients=50)
    grown = {name: now - before[name] for name, now in load.rss().items()}
    said = load.right(grown)
    with capsys.disabled():
        print(f"\n  {said}")
    assert max(grown.values()) < 64  # what twice the load needs for a while; all KV that came would be hundreds


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_ten_minutes(system: System, capsys: pytest.CaptureFixture[str]) -> None:
    load = Load(system)
    load.chaos(120, pause_s=5)
    before = load.rss()
    load.chaos(480, pause_s=5)
    load.calm(5)
    grown = {name: now - before[name] for name, now in load.rss().items()}
    said = load.right(grown)
    with capsys.disabled():
        print(f"\n  {said}")
    for name, more in grown.items():
        assert more < (DECODE_MIB if "-d" in name else FLAT_MIB), (name, grown)
