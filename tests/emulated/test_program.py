"""`prfaas node` with an emulated engine, as a process: quick to start, faults switched over HTTP, dead when told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from prfaas.cli.programs import localised
from prfaas.config.reader import read_topology, write_topology
from prfaas.engine.emulated.faults import DIED
from prfaas.model.fetch import resolve_model

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

SECRET = "a secret of thirty-two characters."
FAULTS = "/prfaas/v1/faults"
TOPOLOGY = """\
model: emulated
clusters:
  home:
    kind: pd
    nodes:
      - {name: d1, role: decode, engine: {kind: emulated, layout: hybrid, time_scale: 0, faults: FAULTS}}
"""


@dataclass
class Program:
    """One node."""

    process: subprocess.Popen[bytes]
    url: str
    ready_s: float

    def ask(self, method: str, path: str, body: Any = None, secret: str = SECRET) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {secret}"}
        return httpx2.request(method, self.url + path, json=body, headers=headers, timeout=30)

    def complete(self, **fields: Any) -> httpx2.Response:
        body = {"model": "emulated", "prompt": "Well?", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        return self.ask("POST", "/v1/completions", body | fields)


class Programs:
    """Starts nodes, and ends them after the test."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, faults: str = "[]") -> Program:
        file = self._directory / "t.yaml"
        file.write_text(TOPOLOGY.replace("FAULTS", faults))
        topology = localised(read_topology(file), resolve_model("emulated"))
        write_topology(topology, file)
        began = time.monotonic()
        command = [
            sys.executable,
            "-P",
            "-m",
            "prfaas.cli.main",
            "node",
            str(file),
            "--cluster",
            "home",
            "--node",
            "d1",
        ]
        environ = os.environ | {"PRFAAS_SECRET": SECRET}
        process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._started.append(process)
        url = f"http://{topology.clusters['home'].nodes[0].listen}"
        while not _healthy(url):
            assert process.poll() is None
            assert time.monotonic() < began + 60
            time.sleep(0.005)
        return Program(process, url, time.monotonic() - began)

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()


def _healthy(url: str) -> bool:
    try:
        return httpx2.get(url + "/health", timeout=5).status_code == 200
    except httpx2.HTTPError:
        return False


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    made = Programs(tmp_path)
    yield made
    made.end()


def test_it_starts_answers_and_ends(programs: Programs, capsys: pytest.CaptureFixture[str]) -> None:
    node = programs.start()
    with capsys.disabled():
        print(f"\n  an emulated node was ready after {node.ready_s:.2f} s")
    first = node.complete()
    assert first.status_code == 200
    assert len(first.json()["choices"][0]["text"]) == 8
    loaded = Path(f"/proc/{node.process.pid}/maps").read_text()
    assert "libtorch" not in loaded
    node.process.send_signal(signal.SIGTERM)
    assert node.process.wait(20) == 0


def test_faults_are_switched_while_it_runs(programs: Programs) -> None:
    node = programs.start("[{at: 'decode:token:3', do: fail, times: 1}]")
    right = programs.start().complete().json()["choices"][0]["text"]
    assert node.ask("GET", FAULTS).json()["faults"][0]["struck"] == 0
    assert node.complete().status_code == 500
    assert node.complete().json()["choices"][0]["text"] == right
    (one,) = node.ask("GET", FAULTS).json()["faults"]
    assert (one["struck"], one["fault"]["at"], one["fault"]["do"]) == (1, "decode:token:3", "fail")

    put = node.ask("PUT", FAULTS, {"faults": [{"at": "decode:token:2", "do": "wrong_token"}]})
    assert put.status_code == 200, put.text
    wrong = node.complete().json()["choices"][0]["text"]
    assert wrong[:2] == right[:2]
    assert wrong != right
    stall = {"faults": [{"at": "decode:first", "do": "stall", "for": "300ms"}]}
    assert node.ask("PUT", FAULTS, stall).json()["faults"][0]["fault"]["for"] == "300ms"
    began = time.monotonic()
    assert node.complete().json()["choices"][0]["text"] == right
    assert time.monotonic() - began >= 0.3
    assert node.ask("DELETE", FAULTS).json() == {"faults": []}
    assert node.complete().json()["choices"][0]["text"] == right


def test_faults_are_no_strangers_business(programs: Programs) -> None:
    node = programs.start()
    for method in ("GET", "PUT", "DELETE"):
        assert node.ask(method, FAULTS, {"faults": []}, secret="not the secret").status_code == 401
    for body, what in (
        ({"faults": [{"at": "nowhere", "do": "die"}]}, "faults[0].at: got 'nowhere'; expected one of start, "),
        ({"faults": [{"at": "landed", "do": "stall", "for": 3}]}, "faults[0].for: got 3; expected a duration"),
        ({"faulty": []}, "faulty: unknown setting; did you mean `faults`?"),
        ([], "got an empty list; expected a mapping"),
    ):
        refused = node.ask("PUT", FAULTS, body)
        assert refused.status_code == 400
        assert refused.json()["error"]["message"].startswith(what)
    broken = httpx2.put(node.url + FAULTS, content=b"{", headers={"Authorization": f"Bearer {SECRET}"}, timeout=5)
    assert (broken.status_code, json.loads(broken.content)["error"]["code"]) == (400, "invalid_json")


def test_it_dies_without_a_word(programs: Programs) -> None:
    node = programs.start("[{at: 'decode:token:5', do: die}]")
    texts: list[str] = []

    def listen() -> None:
        body = {"model": "emulated", "prompt": "x", "stream": True, "temperature": 0, "ignore_eos": True}
        headers = {"Authorization": f"Bearer {SECRET}"}
        with httpx2.stream("POST", node.url + "/v1/completions", json=body, headers=headers, timeout=30) as stream:
            for line in stream.iter_lines():
                if line.startswith("data: {"):
                    texts.append(json.loads(line.removeprefix("data: "))["choices"][0]["text"])

    with pytest.raises(httpx2.RemoteProtocolError):
        listen()
    assert node.process.wait(20) == DIED
    assert len("".join(texts)) <= 5
