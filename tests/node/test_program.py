"""`prfaas node` as a process: ready, answering, ended cleanly; or one clear line and exit code 2."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.freeports import free_port

from prfaas.testing.bytemodel import write_byte_model

SECRET = "a secret of thirty-two characters."
TOPOLOGY = """\
model: {model}
served_name: tiny
clusters:
  home:
    kind: pd
    nodes:
      - name: home-1
        role: decode
        listen: 127.0.0.1:{port}
        data_listen: 127.0.0.1:{data_port}
        engine: {{threads: 1, kv_memory: 64MiB}}
limits: {{max_model_len: 512}}
"""

pytestmark = [pytest.mark.slow, pytest.mark.e2e]


@pytest.fixture
def ports() -> tuple[int, int]:
    first = free_port(2)
    return first, first + 1


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def start(
    started: list[subprocess.Popen[str]], directory: Path, model: Path, ports: tuple[int, int], node: str = "home-1"
) -> subprocess.Popen[str]:
    file = directory / "topology.yaml"
    file.write_text(TOPOLOGY.format(model=model, port=ports[0], data_port=ports[1]))
    command = [sys.executable, "-P", "-m", "prfaas.cli.main", "node", str(file), "--cluster", "home", "--node", node]
    environ = os.environ | {"PRFAAS_SECRET": SECRET, "PRFAAS_LOG_FORMAT": "json"}
    process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    started.append(process)
    return process


def ask(port: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Status and JSON; (0, None) when nobody listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, json.dumps(body), {"Authorization": f"Bearer {SECRET}"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    except ConnectionError:
        return 0, None
    finally:
        connection.close()


def test_a_node_serves_and_ends(started: list[subprocess.Popen[str]], tmp_path: Path, ports: tuple[int, int]) -> None:
    tiny = pytest.importorskip("prfaas.engine.transformers.tiny")
    model = tiny.build_tiny("tiny-hybrid", tmp_path / "model")
    process = start(started, tmp_path, model, ports)
    end = time.monotonic() + 90
    while ask(ports[0], "GET", "/health")[0] != 200:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.1)
    status, answer = ask(
        ports[0], "POST", "/v1/completions", {"model": "tiny", "prompt": "hello", "max_tokens": 5, "temperature": 0}
    )
    assert (status, len(answer["choices"][0]["text"])) == (200, 5)
    assert ask(ports[0], "GET", "/prfaas/v1/node")[1]["max_model_len"] == 512
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    records = [json.loads(line) for line in errors.splitlines()]
    assert [record["event"] for record in records] == ["ready", "ended"]
    assert {record["node"] for record in records} == {"home-1"}
    assert ask(ports[0], "GET", "/health")[0] == 0


def test_what_is_wrong_is_one_line(
    started: list[subprocess.Popen[str]], tmp_path: Path, ports: tuple[int, int]
) -> None:
    model = write_byte_model(tmp_path / "model")
    process = start(started, tmp_path, model, ports, node="home-2")
    assert process.communicate(timeout=30)[1].strip().endswith("no node 'home-2'; expected one of home-1")
    assert process.returncode == 2
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", ports[1]))
        taken.listen()
        process = start(started, tmp_path, model, ports)
        (line,) = process.communicate(timeout=30)[1].splitlines()
        assert process.returncode == 2
        assert line.startswith(f"cannot listen on 127.0.0.1:{ports[1]}: ")
        assert line.endswith("expected a free address")


def test_a_model_that_cannot_be_served(
    started: list[subprocess.Popen[str]], tmp_path: Path, ports: tuple[int, int]
) -> None:
    """A directory with a tokenizer and no weights."""
    process = start(started, tmp_path, write_byte_model(tmp_path / "model"), ports)
    errors = process.communicate(timeout=90)[1].splitlines()
    assert process.returncode == 2
    assert str(tmp_path / "model") in errors[-1]
    assert "Traceback" not in "\n".join(errors)
