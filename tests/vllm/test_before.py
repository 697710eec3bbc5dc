"""What `vllm serve` would only find once the model is loaded is found before: one line, exit code 2. No vLLM here."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.freeports import free_port

from prfaas.core.errors import ConfigError
from prfaas.engine.vllm.before import check_before, listeners
from prfaas.engine.vllm.settings import read_settings
from prfaas.engine.vllm.tally import Tally
from prfaas.transport.base import Outcome

SECRET = "a secret of thirty-two characters."
ENVIRON = {"VLLM_API_KEY": SECRET, "PRFAAS_SECRET": SECRET}


def arguments(tmp_path: Path, listen: int, control: int, data: int, *more: str, engine: str = "") -> list[str]:
    file = tmp_path / "t.yaml"
    file.write_text(
        f"""model: m
clusters:
  home:
    kind: pd
    nodes:
      - {{name: d0, role: decode, listen: 127.0.0.1:{listen}, control_listen: 127.0.0.1:{control},
          data_listen: 127.0.0.1:{data}, engine: {{kind: vllm{engine}}}}}
"""
    )
    extra = {"topology": str(file), "cluster": "home", "node": "d0"}
    ours = {"kv_connector": "PrfaasConnector", "kv_connector_extra_config": extra}
    both = {
        "kv_connector": "MultiConnector",
        "kv_connector_extra_config": {"connectors": [ours, {"kv_connector": "N"}]},
    }
    config = json.dumps(both if "both" in more else ours)
    return ["dir", "--host", "127.0.0.1", "--port", str(listen), "--kv-transfer-config", config, "--eager", *more]


@pytest.mark.parametrize("more", [(), ("both",)])
def test_addresses_are_those_of_vllm_and_of_the_connector(tmp_path: Path, more: tuple[str, ...]) -> None:
    found = list(listeners(arguments(tmp_path, 1, 2, 3, "--tensor_parallel_size=2", *more), ENVIRON))
    assert found == [
        ("vLLM's `listen`", "127.0.0.1:1"),
        ("`control_listen`", "127.0.0.1:2"),
        ("`data_listen`", "127.0.0.1:3"),
        ("`data_listen`, rank 1", "127.0.0.1:4"),
    ]
    events = json.dumps({"endpoint": "tcp://h:4", "replay_endpoint": "tcp://127.0.0.1:5"})
    told = arguments(tmp_path, 1, 2, 3, "--kv-events-config", events)
    assert ("`replay_listen`", "127.0.0.1:5") in list(listeners(told, ENVIRON))
    nixl = ENVIRON | {"VLLM_NIXL_SIDE_CHANNEL_HOST": "::1", "VLLM_NIXL_SIDE_CHANNEL_PORT": "9"}
    line = ["dir", "--port=8", "--kv-transfer-config", json.dumps({"kv_connector": "NixlConnector"})]
    assert list(listeners(line, nixl)) == [("vLLM's `listen`", "0.0.0.0:8"), ("`nixl_listen`", "[::1]:9")]


@pytest.mark.parametrize(("nth", "what"), list(enumerate(["vLLM's `listen`", "`control_listen`", "`data_listen`"])))
def test_a_taken_port(tmp_path: Path, nth: int, what: str) -> None:
    ports = [free_port() for _ in range(3)]
    given = arguments(tmp_path, *ports)
    check_before(given, ENVIRON, within_s=0)
    with socket.create_server(("127.0.0.1", ports[nth])), pytest.raises(ConfigError) as caught:
        check_before(given, ENVIRON, within_s=0)
    said = f"cannot listen on 127.0.0.1:{ports[nth]} ({what}): Address already in use; expected a free address"
    assert str(caught.value) == said


def test_a_port_that_a_predecessor_gives_up_in_time(tmp_path: Path) -> None:
    ports = [free_port() for _ in range(3)]
    held = socket.create_server(("127.0.0.1", ports[2]))
    looked: list[float] = []

    def rest(seconds: float) -> None:
        looked.append(seconds)
        held.close()

    check_before(arguments(tmp_path, *ports), ENVIRON, within_s=60, rest=rest)
    assert len(looked) == 1


def test_an_address_of_another_machine(tmp_path: Path) -> None:
    given = ["dir", "--host", "192.0.2.1", "--port", "1"]  # RFC 5737: nobody's
    with pytest.raises(ConfigError, match=r"cannot listen on 192.0.2.1:1 \(vLLM's `listen`\): Cannot assign"):
        check_before(given, ENVIRON, within_s=60, rest=lambda _: pytest.fail("it waits for nothing"))


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"PRFAAS_SECRET": SECRET}, r"there is no \$VLLM_API_KEY; expected the topology's secret in it"),
        ({"VLLM_API_KEY": SECRET}, r"there is no secret; expected \$PRFAAS_SECRET"),
        (ENVIRON | {"VLLM_USE_RUST_FRONTEND": "1"}, r"\$VLLM_USE_RUST_FRONTEND is set; expected it unset"),
    ],
)
def test_what_the_environment_must_have(tmp_path: Path, environ: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_before(arguments(tmp_path, *(free_port() for _ in range(3))), environ, within_s=0)


def test_it_is_one_line_and_exit_code_2_before_vllm_is_imported(tmp_path: Path) -> None:
    """(This Python has no vLLM at all.)"""
    ports = [free_port() for _ in range(3)]
    with socket.create_server(("127.0.0.1", ports[0])):
        line = [sys.executable, "-m", "prfaas.engine.vllm.serve", *arguments(tmp_path, *ports)]
        environ = {**os.environ, **ENVIRON, "VLLM_API_KEY": ""}
        done = subprocess.run(line, capture_output=True, text=True, env=environ, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("there is no $VLLM_API_KEY; ")
    assert done.stderr.count("\n") == 1


def test_recompute_below_is_the_engines(tmp_path: Path) -> None:
    def below(engine: str, **more: object) -> int:
        arguments(tmp_path, 1, 2, 3, engine=engine)
        extra = {"topology": str(tmp_path / "t.yaml"), "cluster": "home", "node": "d0"}
        return read_settings(extra | more, ENVIRON).recompute_below

    assert below("") == 0
    assert below(", recompute_below: 512") == 512
    assert below(", recompute_below: 512", recompute_below=7) == 7


def test_transfers_of_clients_that_left_did_not_fail() -> None:
    tally = Tally()
    for cause in ("applied", "cancelled", "lease", "cancelled"):
        tally.count(Outcome(cause), sent=True)
    found = tally.take()
    assert (found["transfers"], found["failures"], found["cancelled"]) == (4, 1, 2)


def test_our_log_lines_look_as_theirs() -> None:
    """In a program of its own: loggers are the whole process's."""
    program = """
import logging, structlog
from prfaas.engine.vllm.serve import log_as
theirs, handler = logging.getLogger("vllm"), logging.StreamHandler()
handler.setFormatter(logging.Formatter("%(levelname)s %(asctime)s [%(filename)s] %(message)s", "TIME"))
theirs.addHandler(handler); theirs.setLevel("INFO"); theirs.propagate = False
log_as(theirs); log_as(theirs)
logging.getLogger("prfaas.engine.vllm.loads").error("request %s", 7)
logging.getLogger("prfaas.engine.vllm.loads").debug("no")
structlog.get_logger("prfaas.runtime.http").warning("slow", path="/x")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert done.stderr.splitlines() == ["ERROR TIME [<string>] request 7", "WARNING TIME [<string>] slow path=/x"]
