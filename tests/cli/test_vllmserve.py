"""The command line and the environment of nodes of kind vllm."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from prfaas.cli.caches import replay_dial
from prfaas.cli.main import cli
from prfaas.cli.programs import localised
from prfaas.cli.validate import notes
from prfaas.cli.vllmserve import check_interpreter, check_vllm, vllm_command, vllm_environment
from prfaas.config.environment import read_environment
from prfaas.config.reader import read_topology
from prfaas.config.topology import Node, Topology
from prfaas.core.errors import ConfigError
from prfaas.core.ids import ClusterName

FILE = """
model: ./model
served_name: m
clusters:
  home:
    kind: pd
    nodes:
      - {name: d0, role: decode, engine: {kind: vllm, device: cpu, inside: nixl, dtype: float32, arguments: [-x, y]}}
      - {name: p0, role: prefill, engine: {kind: vllm, device: cpu, inside: nixl, dtype: float32}}
  far:
    kind: prfaas
    nodes:
      - {name: p1, role: prefill, engine: {kind: vllm, device: cpu, dtype: float32, kv_memory: 2GiB, block_tokens: 32}}
links: [{from: far, to: home, bandwidth: 1Gbps, rtt: 1ms}]
limits: {max_model_len: 4096}
"""


P1 = "listen: 0.0.0.0:9000, control_listen: 0.0.0.0:9001, data_listen: 0.0.0.0:9002, advertise: far-1.example,"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "topology.yaml"
    path.write_text(FILE)
    return path


def node(topology: Topology, name: str) -> tuple[ClusterName, Node]:
    found = [(ClusterName(c), n) for c, cluster in topology.clusters.items() for n in cluster.nodes if n.name == name]
    return found[0]


def flags(command: list[str]) -> dict[str, str]:
    return {name: value for name, value in itertools.pairwise(command) if name.startswith("--")}


def command_of(file: Path, name: str, tmp_path: Path) -> tuple[list[str], dict[str, str]]:
    topology = localised(read_topology(file), tmp_path / "model")
    cluster, found = node(topology, name)
    environ = {"PRFAAS_VLLM_PYTHON": sys.executable, "PRFAAS_SECRET": "a secret of thirty-two characters.", "MINE": "1"}
    environment = read_environment(topology, environ)
    line = vllm_command(topology, file, cluster, found, tmp_path / "model", environ)
    return line, vllm_environment(found, environment, environ)


def test_our_connector_alone(file: Path, tmp_path: Path) -> None:
    line, environ = command_of(file, "p1", tmp_path)
    assert line[:5] == [sys.executable, "-P", "-m", "prfaas.engine.vllm.serve", str(tmp_path / "model")]
    given = flags(line)
    assert given["--served-model-name"] == "m"
    assert given["--max-model-len"] == "4096"
    assert given["--kv-cache-memory-bytes"] == str(2 << 30)
    assert given["--block-size"] == "32"
    assert "--max-num-batched-tokens" not in given
    assert given["--disable-access-log-for-endpoints"] == "/health,/metrics"
    assert line[-1] == "--enforce-eager"
    config: dict[str, Any] = json.loads(given["--kv-transfer-config"])
    assert config["kv_connector"] == "PrfaasConnector"
    assert config["kv_load_failure_policy"] == "fail"
    assert config["kv_connector_extra_config"] == {"topology": str(file), "cluster": "far", "node": "p1"}
    assert environ["VLLM_API_KEY"] == "a secret of thirty-two characters."
    assert environ["MINE"] == "1"
    assert not any("NIXL" in name or "UCX" in name for name in environ)


def test_ours_and_nixl(file: Path, tmp_path: Path) -> None:
    line, environ = command_of(file, "d0", tmp_path)
    assert line[-3:] == ["--enforce-eager", "-x", "y"]
    config = json.loads(flags(line)["--kv-transfer-config"])
    assert config["kv_connector"] == "MultiConnector"
    ours, nixl = config["kv_connector_extra_config"]["connectors"]
    assert ours["kv_connector"] == "PrfaasConnector"
    assert nixl == {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
    assert environ["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "127.0.0.1"
    assert int(environ["VLLM_NIXL_SIDE_CHANNEL_PORT"]) > 0
    assert environ["UCX_TLS"] == "tcp"
    assert environ["UCX_NET_DEVICES"] == "lo"


def test_up_fills_in_ports_and_cores(file: Path, tmp_path: Path) -> None:
    topology = localised(read_topology(file), tmp_path / "model")
    nodes = [one for cluster in topology.clusters.values() for one in cluster.nodes]
    ports = [endpoint.port for one in nodes for endpoint in one.listeners.values() if endpoint is not None]
    assert len(ports) == len(set(ports)) == 4 + 4 + 3
    more = FILE.replace("kind: pd", "kind: pd\n    events_listen: 127.0.0.1:9")  # not one that it picks
    file.write_text(more)
    told = localised(read_topology(file), tmp_path / "model").clusters
    assert told["home"].events_listen == "127.0.0.1:9"
    assert [one.replay_listen is not None for name in ("home", "far") for one in told[name].nodes] == [
        True,
        True,
        False,
    ]
    cores = {core for one in nodes for core in getattr(one.engine, "cores", "").split(",")}
    assert cores <= {str(core) for core in os.sched_getaffinity(0)}


def test_kv_events_go_to_the_head_which_asks_for_what_it_missed(file: Path, tmp_path: Path) -> None:
    assert "--kv-events-config" not in flags(command_of(file, "p1", tmp_path)[0])
    listens = "kind: prfaas\n    events_listen: 0.0.0.0:9100\n    advertise: head.example"
    file.write_text(FILE.replace("kind: prfaas", listens))
    given = json.loads(flags(command_of(file, "p1", tmp_path)[0])["--kv-events-config"])
    told = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://head.example:9100", "topic": "p1"}
    assert given.pop("replay_endpoint").startswith("tcp://127.0.0.1:")
    assert given == told
    both = FILE.replace("kind: prfaas", listens).replace("{name: p1,", f"{{name: p1, {P1} replay_listen: 0.0.0.0:9003,")
    file.write_text(both)
    topology = read_topology(file)
    cluster, found = node(topology, "p1")
    line = vllm_command(topology, file, cluster, found, tmp_path, {"PRFAAS_VLLM_PYTHON": sys.executable})
    assert json.loads(flags(line)["--kv-events-config"]) == told | {"replay_endpoint": "tcp://0.0.0.0:9003"}
    assert replay_dial(found) == "far-1.example:9003"
    assert [note for note in notes(topology) if "replay" in note] == []
    file.write_text(both.replace("replay_listen: 0.0.0.0:9003,", ""))
    (note,) = [note for note in notes(read_topology(file)) if "replay" in note]
    assert note.startswith("unless `prfaas up` starts it, node p1 of far has no `replay_listen`")
    cluster, found = node(read_topology(file), "p1")
    assert replay_dial(found) is None


@pytest.mark.parametrize(
    ("head", "at", "words"),
    [
        ("", "127.0.0.1:9", "replay_listen: its cluster has no `events_listen`"),
        ("events_listen: 127.0.0.1:8", "localhost:9", "replay_listen: got localhost:9; expected an IPv4 address"),
        ("events_listen: 127.0.0.1:9", "127.0.0.1:9", "port 9 is taken by clusters.far.events_listen"),
        ("events_listen: '[::1]:8'", "127.0.0.1:9", r"vLLM \(p1\) would listen at an IPv6 address itself"),
    ],
)
def test_where_events_cannot_be_replayed(file: Path, head: str, at: str, words: str) -> None:
    text = FILE.replace("kind: prfaas", f"kind: prfaas\n    {head}")
    file.write_text(text.replace("{name: p1,", f"{{name: p1, replay_listen: '{at}',"))
    with pytest.raises(ConfigError, match=words):
        read_topology(file)


@pytest.fixture
def shown(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`prfaas node` of p1 of such a file, without API keys in the environment."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    monkeypatch.setenv("PRFAAS_SECRET", "a secret of thirty-two characters.")
    monkeypatch.setenv("PRFAAS_VLLM_PYTHON", sys.executable)
    monkeypatch.delenv("PRFAAS_API_KEYS", raising=False)
    monkeypatch.setattr("prfaas.cli.node.set_up_logging", lambda *_, **__: None)  # it is the whole process's

    def run(p1: str, *more: str, home: str = "") -> Result:
        text = FILE.replace("{name: p1,", f"{{name: p1, {p1}").replace("kind: pd\n", f"kind: pd\n{home}")
        file.write_text(text)
        return CliRunner().invoke(cli, ["node", str(file), "--cluster", "far", "--node", "p1", *more])

    return run


def test_a_line_needs_all_listeners(shown: Callable[..., Result], file: Path) -> None:
    listed = ["listen: 127.0.0.1:1,", "control_listen: 127.0.0.1:2,", "data_listen: 127.0.0.1:3,"]
    for left, key in enumerate(["listen", "control_listen", "data_listen"]):
        given = " ".join(one for at, one in enumerate(listed) if at != left)
        for more in (["--show"], []):
            done = shown(given, *more)
            said = f"no `{key}`; expected HOST:PORT (only `prfaas up` picks ports)"
            assert (done.exit_code, done.output) == (2, f"{file}:13: clusters.far.nodes[0]: node p1 has {said}\n")
        assert list(notes(read_topology(file))) == [f"only `prfaas up` can start node p1 of far: it has no `{key}`"]


def test_only_a_gateway_wants_the_clients_keys(shown: Callable[..., Result], file: Path) -> None:
    home = "    listen: 0.0.0.0:8000\n    advertise: gateway.example\n"
    assert shown(P1, "--show", home=home).exit_code == 0
    wanted = (
        "`prfaas gateway FILE --cluster home` will want API keys in $PRFAAS_API_KEYS: 0.0.0.0:8000 is not on loopback"
    )
    assert list(notes(read_topology(file))) == [wanted]
    done = CliRunner().invoke(cli, ["gateway", str(file), "--cluster", "home"])
    assert done.exit_code == 2
    assert done.output.startswith(f"{file}:7: clusters.home.listen: there are no API keys")


def test_the_line_can_be_shown(shown: Callable[..., Result]) -> None:
    done = shown(P1, "--show")
    assert done.exit_code == 0, done.output
    assert done.output.startswith('VLLM_API_KEY="$PRFAAS_SECRET" HF_HUB_OFFLINE=1')
    assert "a secret" not in done.output
    assert "--port 9000" in done.output


def test_two_sites_as_the_page_has_them(tmp_path: Path) -> None:
    """With the variables that it names: clients' keys at the gateway only."""
    page = (Path(__file__).parents[2] / "docs" / "vllm.md").read_text()
    file = tmp_path / "t.yaml"
    file.write_text(page.split("```yaml\n")[1].split("```")[0])
    topology, environ = read_topology(file), {"PRFAAS_SECRET": "s" * 32, "PRFAAS_VLLM_PYTHON": sys.executable}
    read_environment(topology, environ)
    assert read_environment(topology, environ | {"PRFAAS_API_KEYS": "k"}, gateway="home").api_keys == ("k",)
    for cluster, found in topology.nodes():
        assert vllm_command(topology, file, cluster, found, tmp_path, environ)
    names = set(re.findall(r"PRFAAS_[A-Z_]+", page))
    assert {"PRFAAS_SECRET", "PRFAAS_API_KEYS", "PRFAAS_VLLM_PYTHON"} <= names


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("kind: vllm, device: cpu, dtype: float32, kv_memory: 2GiB", "makes other KV (vllm, dtype auto"),
        ("nixl_listen", "has no such listener; expected `listen`, `data_listen`, `control_listen`"),
        ("cores", "engine.cores: got 'all'"),
        ("connector", "engine.connector: got 'mooncake'; expected one of nixl, prfaas"),
    ],
)
def test_what_is_wrong_is_said(file: Path, change: str, words: str) -> None:
    old = "{name: p1, role: prefill, engine: {kind: vllm, device: cpu, dtype: float32, kv_memory: 2GiB"
    new = {
        "nixl_listen": old.replace("role:", "nixl_listen: 127.0.0.1:9, role:"),
        "cores": old.replace("device:", "cores: all, device:"),
        "connector": old.replace("device:", "connector: mooncake, device:"),
    }.get(change, old.replace("dtype: float32, ", ""))
    assert old in FILE
    file.write_text(FILE.replace(old, new))
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        read_topology(file)


@pytest.mark.parametrize(("python", "words"), [(None, "this Python has no vLLM"), ("/no/python", "cannot be run")])
def test_an_interpreter_with_vllm_is_needed(file: Path, python: str | None, words: str) -> None:
    environ = {} if python is None else {"PRFAAS_VLLM_PYTHON": python}
    with pytest.raises(ConfigError, match=words):
        check_vllm(read_topology(file), environ)


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("exit 0", "is no Python of 3.11 or later; expected a Python interpreter that has vLLM"),
        ("exit 1", "is no Python of 3.11 or later"),
        ("echo \"['vllm', 'prfaas']\"", "has no vllm; expected a Python interpreter that has vLLM"),
        ("echo \"['prfaas']\"", "has vllm, but no prfaas; expected both"),
        ("printf '\\377'", "does not run as a Python does"),
    ],
)
def test_an_interpreter_that_will_not_do_is_told_before_it_is_run(
    shown: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    python = script(tmp_path, text)
    monkeypatch.setenv("PRFAAS_VLLM_PYTHON", python)
    done = shown(P1)
    assert done.exit_code == 2
    assert done.output.startswith(f"{python} {words}")
    assert done.output.count("\n") == 1


def test_this_python_has_no_vllm_and_one_that_has_all_is_good(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no vllm"):
        check_interpreter(sys.executable)
    check_interpreter(script(tmp_path, "echo '[]'"))
