"""A system that `prfaas up` started, as tests see it: its public port, its programs' metrics, its processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import openai
from prometheus_client.parser import text_string_to_metric_families

from prfaas.config.reader import read_topology
from prfaas.config.topology import Topology
from tests.freeports import free_port

START_S = 240.0
SETTLE_S = 20.0
SECRET = "the secret of all that tests start."
STARTING = re.compile(r"\s+(\S+)\s+starting \(.*pid (\d+)\)")


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def until(what: str, true: Callable[[], bool], seconds: float = SETTLE_S) -> None:
    """Waits until `true()`, looking often; fails with `what` when it takes too long."""
    give_up = time.monotonic() + seconds
    pause = threading.Event()
    while not true():
        assert time.monotonic() < give_up, f"not within {seconds:g} s: {what}"
        pause.wait(0.02)


@dataclass
class System:
    """`prfaas up FILE` at work. `pids` is the newest process of each program."""

    process: subprocess.Popen[str]
    port: int
    state: Path
    lines: list[str] = field(default_factory=list)
    pids: dict[str, int] = field(default_factory=dict)
    _ready: threading.Event = field(default_factory=threading.Event)
    _reader: threading.Thread | None = None

    @classmethod
    def start(cls, file: Path, state: Path, model: str | None = None, gateways: int = 1) -> System:
        port = free_port(gateways)
        command = [sys.executable, "-m", "prfaas.cli.main", "up", str(file), "--port", str(port)]
        command += ["--model", model] if model else []
        environ = {**os.environ, "XDG_STATE_HOME": str(state), "PYTHONUNBUFFERED": "1", "PRFAAS_SECRET": SECRET}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ, start_new_session=True
        )
        system = cls(process, port, state)
        system._reader = threading.Thread(target=system._read, daemon=True)
        system._reader.start()
        ended = threading.Event()
        give_up = time.monotonic() + START_S
        while not system._ready.is_set():
            assert process.poll() is None, "up ended:\n" + "\n".join(system.lines)
            assert time.monotonic() < give_up, "not ready:\n" + "\n".join(system.lines)
            ended.wait(0.05)
        until("every gateway knows who prefills", system.knows_its_world, 60)
        return system

    def knows_its_world(self) -> bool:
        """Whether each gateway has heard that its own prefill nodes and those at the other ends of its links are
        ready. A gateway that is down has not."""
        try:
            topology = self.topology
            return all(
                self.metric(link.target, "prfaas_prefill_nodes_ready", cluster=source) > 0
                for link in topology.links
                for source in (link.source, link.target)
                if topology.clusters[source].of_role("prefill")
            )
        except httpx2.HTTPError:
            return False

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.lines.append(line.rstrip("\n"))
                started = STARTING.match(line)
                if started:
                    self.pids[started[1]] = int(started[2])
                if line.startswith("Ready after"):
                    self._ready.set()

    @property
    def topology(self) -> Topology:
        (file,) = self.state.glob("prfaas/runs/*/topology.yaml")
        return read_topology(file)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def model(self) -> str:
        return self.topology.public_name

    def client(self, gateway: str | None = None) -> openai.OpenAI:
        url = self.url if gateway is None else self.health_of(gateway)
        return openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=120)

    def health_of(self, name: str) -> str:
        """The URL of a program's HTTP door."""
        for cluster_name, cluster in self.topology.clusters.items():
            if cluster_name == name:
                return f"http://{cluster.listen}"
            for node in cluster.nodes:
                if node.name == name:
                    return f"http://{node.listen}"
        raise KeyError(name)

    def metric(self, program: str, name: str, **labels: str) -> float:
        """The sum of one metric of one program over the series that have `labels`; 0 when there are none."""
        text = httpx2.get(self.health_of(program) + "/metrics", timeout=10).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def nodes(self) -> list[str]:
        return [node.name for cluster in self.topology.clusters.values() for node in cluster.nodes]

    def held(self) -> dict[str, float]:
        """Blocks and transfers that nodes hold, by node and metric."""
        names = ("prfaas_blocks_in_use", "prfaas_transfers_in_use")
        found = {f"{node} {name}": self.metric(node, name) for node in self.nodes() for name in names}
        return {what: count for what, count in found.items() if count}

    def settled(self) -> None:
        """Fails unless everything that requests held is free soon."""
        try:
            until("blocks and transfers are back to zero", lambda: not self.held())
        except AssertionError as error:
            raise AssertionError(f"{error}; still held: {self.held()}") from None

    def healthy(self, program: str) -> bool:
        try:
            return httpx2.get(self.health_of(program) + "/health", timeout=5).status_code == 200
        except httpx2.HTTPError:
            return False

    def kill(self, program: str) -> int:
        """SIGKILL to a program that this system started; its process id."""
        pid = self.pids[program]
        os.kill(pid, signal.SIGKILL)
        return pid

    def restored(self, program: str, dead: int) -> None:
        """Waits until the supervisor has brought `program` back and everybody knows."""
        until(f"{program} is started again", lambda: self.pids[program] != dead, 60)
        until(f"{program} is healthy", lambda: self.healthy(program), 120)
        until("every gateway knows who prefills", self.knows_its_world, 60)

    def log(self, program: str) -> str:
        (file,) = self.state.glob(f"prfaas/runs/*/logs/{program}.log")
        return file.read_text()

    def stop(self, number: int = signal.SIGINT) -> int:
        """Ends it; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(timeout=60)
        if self._reader is not None:
            self._reader.join(60)
        return code
