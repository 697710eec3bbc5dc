"""How long `/health` takes while many long prompts arrive at once: the contract is 50 ms.

Real processes (`prfaas up`) with emulated nodes whose computing takes next to no time and whose KV is small, so that
what is measured is the reading, tokenizing and passing on of prompts. All are sent at once, `--rounds` times, as text
and as lists of token ids. Another process asks every program's /health each 5 ms on one connection, and does the same
to the idle system before: that is what to compare with. While an answer is out nothing is asked, but what would have
been counts, with what it would have waited: a stop of 50 ms counts ten times.

On few cores most of a latency is waiting for one. `own` is the latency less what the kernel says that the program's
event loop waited for a core meanwhile; `prober` is how late the asking process itself woke.

    python -m benchmarks.health [--mode text|ids|both] [--prompts 25] [--tokens 131072] [--rounds 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import random
import selectors
import socket
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx2
from tests.e2e.system import System

PERIOD_S = 0.005
IDLE_S = 5.0
CONTRACT_S = 0.050
TOPOLOGY = """
model: emulated
clusters:
  home:
    kind: pd
    nodes:
      - {{name: home-prefill, role: prefill, engine: {engine}}}
      - {{name: home-decode, role: decode, engine: {engine}}}
  far:
    kind: prfaas
    nodes:
      - {{name: far-prefill, role: prefill, engine: {engine}}}
links:
  - {{from: far, to: home, bandwidth: 1Gbps, rtt: 5ms}}
policy: {{kind: threshold, threshold: 1000}}
limits: {{max_model_len: {longest}}}
"""
ENGINE = (
    "{kind: emulated, profile: paper-h200, layout: window, time_scale: 0.001, bytes_scale: 0.001, "
    "chunk_tokens: 16384, max_sequences: 32}"
)
Sample = tuple[float, float]
"""Latency and what of it was waiting for a core, s."""


@dataclass
class Door:
    """One program's /health on a persistent connection. `asked_s`: when the question that is out was due, and
    `before_s` how long the program's loop had waited for a core by then."""

    name: str
    talk: socket.socket
    schedule: int
    due_s: float
    asked_s: float | None = None
    before_s: float = 0.0
    got: bytes = b""
    samples: list[Sample] = field(default_factory=list)

    def waited_s(self) -> float:
        """How long the program's main thread has waited for a core so far."""
        return int(os.pread(self.schedule, 100, 0).split()[1]) / 1e9

    def ask(self) -> None:
        """One request, due now."""
        self.asked_s, self.before_s = self.due_s, self.waited_s()
        self.talk.sendall(b"GET /health HTTP/1.1\r\nHost: health\r\n\r\n")

    def hear(self) -> None:
        """Take what has come; once it is an answer, count it and those that it kept from being asked."""
        came_s = time.monotonic()
        self.got += self.talk.recv(1 << 16)
        head, _, rest = self.got.partition(b"\r\n\r\n")
        if not rest or len(rest) < int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]):
            return
        assert self.asked_s is not None
        took_s, waited_s = came_s - self.asked_s, self.waited_s() - self.before_s
        self.got, self.asked_s = b"", None
        while True:
            self.samples.append((took_s, min(took_s, waited_s)))
            if (took_s := took_s - PERIOD_S) <= 0:
                return


def probe(doors: Sequence[tuple[str, int, int]], pipe: Connection) -> None:
    """Asks the programs (name, port, process id) until told to stop; then says each one's samples and its own
    lateness."""
    selector, now_s = selectors.DefaultSelector(), time.monotonic()
    selector.register(pipe, selectors.EVENT_READ)
    asking = []
    for index, (name, port, pid) in enumerate(doors):
        talk = socket.create_connection(("127.0.0.1", port))
        talk.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        schedule = os.open(f"/proc/{pid}/task/{pid}/schedstat", os.O_RDONLY)
        door = Door(name, talk, schedule, now_s + 0.1 + index * PERIOD_S / len(doors))
        selector.register(talk, selectors.EVENT_READ, door)
        asking.append(door)
    late: list[Sample] = []
    pipe.send("asking")
    stopping = False
    while not stopping or any(door.asked_s is not None for door in asking):
        soonest_s = min(door.due_s for door in asking)
        for key, _ in selector.select(max(0.0, soonest_s - time.monotonic())):
            if key.data is not None:
                key.data.hear()
            elif not stopping:
                stopping = True
                selector.unregister(pipe)
        for door in asking:
            if (now_s := time.monotonic()) < door.due_s:
                continue
            if not stopping and door.asked_s is None:
                door.ask()
                late.append((now_s - door.due_s, 0.0))
            door.due_s += PERIOD_S
    pipe.send({door.name: door.samples for door in asking} | {"prober": late})


class Prober:
    """The asking process, while the block runs; then `samples` by program."""

    def __init__(self, doors: Sequence[tuple[str, int, int]]) -> None:
        self.samples: dict[str, list[Sample]] = {}
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=probe, args=(doors, theirs), daemon=True)

    def __enter__(self) -> Prober:
        self._process.start()
        assert self._pipe.poll(30)
        self._pipe.recv()
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.send("stop")
        if self._pipe.poll(60):
            self.samples = self._pipe.recv()
        self._process.join(10)


def programs(system: System) -> list[tuple[str, int, int]]:
    """Name, port and process id of each."""
    names = [*system.topology.clusters, *system.nodes()]
    return [(name, httpx2.URL(system.health_of(name)).port or 80, system.pids[name]) for name in names]


def body(mode: str, tokens: int, seed: int) -> bytes:
    """One prompt of `tokens` tokens, different for each seed, asking for one token."""
    chance = random.Random(seed)
    if mode == "ids":
        prompt: str | list[int] = [chance.randrange(256) for _ in range(tokens)]
    else:
        prompt = "".join(chance.choices("abcdefghij klmnopqrst uvwxyz.\n", k=tokens - 1))  # a BOS goes before
    return json.dumps({"model": "emulated", "prompt": prompt, "max_tokens": 1, "temperature": 0}).encode()


def send(port: int, bodies: Sequence[bytes]) -> list[float]:
    """All at once; seconds that each took."""

    def one(sent: bytes) -> float:
        began_s = time.monotonic()
        talk = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        talk.request("POST", "/v1/completions", sent, {"Content-Type": "application/json"})
        answer = talk.getresponse()
        said = answer.read()
        assert answer.status == 200, said
        assert answer.headers["x-prfaas-route"].startswith("remote"), answer.headers["x-prfaas-route"]
        talk.close()
        return time.monotonic() - began_s

    with ThreadPoolExecutor(len(bodies)) as threads:
        return list(threads.map(one, bodies))


def summary(samples: Sequence[Sample]) -> dict[str, Any]:
    """Percentiles, ms."""

    def at(values: list[float]) -> dict[str, float]:
        ordered = sorted(values)
        shares = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}
        return {
            name: 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in shares.items()
        }

    return {
        "asked": len(samples),
        "over_contract": sum(latency > CONTRACT_S for latency, _ in samples),
        "latency_ms": at([latency for latency, _ in samples]),
        "own_ms": at([max(0.0, latency - waited) for latency, waited in samples]),
    }


def measure(mode: str, prompts: int, tokens: int, rounds: int) -> dict[str, Any]:
    """One fresh system: idle, then `rounds` bursts."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "topology.yaml"
        file.write_text(TOPOLOGY.format(engine=ENGINE, longest=tokens + 1024))
        bodies = [body(mode, tokens, seed) for seed in range(prompts)]
        system = System.start(file, Path(directory), None)
        try:
            send(system.port, bodies[:1])  # what is imported at the first request is not what is measured
            doors = programs(system)
            with Prober(doors) as idle:
                time.sleep(IDLE_S)
            took_s = []
            with Prober(doors) as loaded:
                for _ in range(rounds):
                    took_s.append(max(send(system.port, bodies)))
                    system.settled()
            return {
                "mode": mode,
                "rounds_s": took_s,
                "idle": {name: summary(samples) for name, samples in idle.samples.items()},
                "loaded": {name: summary(samples) for name, samples in loaded.samples.items()},
            }
        finally:
            system.stop()


def show(found: dict[str, Any]) -> None:
    rounds = ", ".join(f"{took:.1f}" for took in found["rounds_s"])
    print(f"\n{found['mode']}: bursts took {rounds} s; ms")
    print(f"{'':14}{'':8}{'asked':>6}{'P50':>8}{'P99':>8}{'P99.9':>8}{'max':>8}{'own P99.9':>11}{'max':>8}{'>50':>5}")
    for name in found["loaded"]:
        for when in ("idle", "loaded"):
            one = found[when][name]
            all_, own = one["latency_ms"], one["own_ms"]
            print(
                f"{name:14}{when:8}{one['asked']:6}{all_['p50']:8.1f}{all_['p99']:8.1f}{all_['p999']:8.1f}"
                f"{all_['max']:8.1f}{own['p999']:11.1f}{own['max']:8.1f}{one['over_contract']:5}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("text", "ids", "both"), default="both")
    parser.add_argument("--prompts", type=int, default=25)
    parser.add_argument("--tokens", type=int, default=128 << 10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report: dict[str, Any] = {name: getattr(options, name) for name in ("prompts", "tokens", "rounds")}
    report |= {"cores": os.cpu_count(), "period_s": PERIOD_S, "modes": []}
    for mode in ("text", "ids") if options.mode == "both" else (options.mode,):
        found = measure(mode, options.prompts, options.tokens, options.rounds)
        show(found)
        report["modes"].append(found)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
