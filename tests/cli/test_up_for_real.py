"""`prfaas up` with the real programs and a tiny model: what it prints when it is ready is run as it stands."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prfaas.cli.ports import free_ports

EXAMPLE = Path(__file__).parents[2] / "examples" / "two-clusters.yaml"
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The running program, and all that it said until it was ready."""
    (port,) = free_ports(1, set())
    command = [
        sys.executable,
        "-m",
        "prfaas.cli.main",
        "up",
        str(EXAMPLE),
        "--model",
        "tiny-hybrid",
        "--port",
        str(port),
    ]
    state = tmp_path_factory.mktemp("state")
    environ = {**os.environ, "XDG_STATE_HOME": str(state)}
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ)
    try:
        assert running.stdout
        said = ""
        for line in running.stdout:
            said += line
            if line.startswith("Ctrl-C ends"):
                break
        else:
            pytest.fail(f"not ready: {said}")
        yield running, said
    finally:
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
    assert running.returncode == 0
    logs = "".join(log.read_text() for log in state.rglob("*.log"))
    assert "Traceback" not in logs


def test_the_python_lines(up: tuple[subprocess.Popen[str], str]) -> None:
    lines = up[1].split("    from openai")[1].split("\n\n")[0]
    code = "from openai" + re.sub(r"\n    ", "\n", lines)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_the_curl_lines(up: tuple[subprocess.Popen[str], str]) -> None:
    lines = "curl --silent --fail-with-body" + up[1].split("    curl")[1].split("\n\n")[0]
    done = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
    assert '"completion_tokens":' in done.stdout


def test_a_long_prompt_is_prefilled_far_away(up: tuple[subprocess.Popen[str], str]) -> None:
    import openai

    url = re.search(r"http://[\d.:]+/v1", up[1])
    assert url
    with openai.OpenAI(base_url=url[0], api_key="unused", timeout=300) as client:
        answer = client.completions.create(model="tiny-hybrid", prompt="far " * 400, max_tokens=4)
    assert answer.usage
    assert answer.usage.completion_tokens == 4
    logs = re.search(r"Logs, one file a program: (.*)", up[1])
    assert logs
    decisions = [line for line in (Path(logs[1]) / "home.log").read_text().splitlines() if " decided " in line]
    assert "route=remote" in decisions[-1]
