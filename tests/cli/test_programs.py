"""What `up` fills in, how programs are started, ports, run directories and words."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

import pytest

from prfaas.cli.ports import bound, check_free, free_ports
from prfaas.cli.programs import localised, prfaas_command, programs_of
from prfaas.cli.progress import StepLine
from prfaas.cli.rundir import KEPT, make_run_directory, tail
from prfaas.cli.up import prepare
from prfaas.cli.welcome import welcome
from prfaas.config.checks import listeners
from prfaas.config.reader import read_topology
from prfaas.config.units import Endpoint
from prfaas.core.errors import ConfigError

EXAMPLE = Path(__file__).parents[2] / "examples" / "two-clusters.yaml"


def test_localised_fills_everything_in(tmp_path: Path) -> None:
    topology = localised(read_topology(EXAMPLE), tmp_path / "smollm2-abc")
    assert (topology.model, topology.public_name) == (str(tmp_path / "smollm2-abc"), "smollm2")
    named = list(listeners(topology))
    assert len(named) == 2 + 2 + 2 * 3  # heads, where they hear of caches, nodes
    assert len({endpoint for _, endpoint, _ in named}) == len(named)
    assert all(endpoint.loopback for _, endpoint, _ in named)
    assert topology.clusters["home"].listen == "127.0.0.1:8000"
    assert all(cluster.events_listen for cluster in topology.clusters.values())
    assert all(node.engine.threads for cluster in topology.clusters.values() for node in cluster.nodes)


def test_the_run_file_is_read_by_every_program(tmp_path: Path) -> None:
    topology = localised(read_topology(EXAMPLE), tmp_path)
    run = prepare(topology, {"XDG_STATE_HOME": str(tmp_path), "PRFAAS_SECRET": "never written"}, None)
    assert read_topology(run.file) == topology
    assert "never written" not in run.file.read_text()
    assert stat.S_IMODE(run.file.parent.stat().st_mode) == 0o700
    assert run.logs.parent == run.file.parent


def test_one_program_per_head_and_node(tmp_path: Path) -> None:
    programs = programs_of(localised(read_topology(EXAMPLE), tmp_path))
    command = prfaas_command(Path("run.yaml"))
    assert [command(program)[4:] for program in programs] == [
        ["node", "run.yaml", "--cluster", "home", "--node", "home-prefill"],
        ["node", "run.yaml", "--cluster", "home", "--node", "home-decode"],
        ["node", "run.yaml", "--cluster", "far", "--node", "far-prefill"],
        ["gateway", "run.yaml", "--cluster", "home"],
        ["prefill-service", "run.yaml", "--cluster", "far"],
    ]
    assert len({program.health for program in programs}) == len(programs)


def test_free_ports_are_free_and_different() -> None:
    ports = free_ports(20, set())
    assert len(set(ports)) == 20
    for port in ports:
        bound("127.0.0.1", port).close()
    with pytest.raises(ConfigError, match="no 3 free ports"):
        free_ports(3, set(range(20_000, 29_999)))


def test_ports_that_cannot_be_had() -> None:
    (port,) = free_ports(1, set())
    with bound("127.0.0.1", port), pytest.raises(ConfigError, match=f"a.listen: 127.0.0.1:{port} is in use"):
        check_free([("a.listen", Endpoint.at("127.0.0.1", port))])
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1 is not an address of this machine"):
        check_free([("a.listen", Endpoint.at("192.0.2.1", port))])
    with pytest.raises(ConfigError, match=r"no-such-host\.invalid has no address"):
        check_free([("a.listen", Endpoint.at("no-such-host.invalid", port))])


def test_old_runs_are_removed_but_not_those_that_run(tmp_path: Path) -> None:
    runs = tmp_path / "prfaas" / "runs"
    alive = runs / f"20000101-000000-{os.getpid()}"
    alive.mkdir(parents=True)
    for at in range(KEPT + 5):
        (runs / f"20000102-0000{at:02}-999999999").mkdir()
    made = make_run_directory({"XDG_STATE_HOME": str(tmp_path)})
    left = sorted(path.name for path in runs.iterdir())
    assert alive.name in left
    assert made.name in left
    assert len(left) == KEPT + 1


def test_a_state_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "prfaas").write_text("a file")
    with pytest.raises(ConfigError, match="expected a directory to write in"):
        make_run_directory({"XDG_STATE_HOME": str(tmp_path)})


def test_tail_is_bounded(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"\xff" * 10**6 + b"\n" + b"".join(b"line %d\n" % at for at in range(100)))
    assert tail(log, 3) == ["line 97", "line 98", "line 99"]
    assert tail(tmp_path / "none") == []


def test_steps_in_a_log_are_one_line_each() -> None:
    stream = io.StringIO()
    step = StepLine(stream)
    for stage, seconds in (("one", 0.0), ("one", 1.0), ("two", 0.0)):
        step(stage, seconds)
    step.done()
    assert stream.getvalue() == "one ...\ntwo ...\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_steps_on_a_terminal_are_rewritten_and_leave_a_fresh_line() -> None:
    stream = Terminal()
    step = StepLine(stream)
    for stage, seconds in (("one", 0.0), ("one", 1.0), ("two", 0.0)):
        step(stage, seconds)
    step.done()
    step.done()
    assert stream.getvalue() == "\rone ... 0 s\rone ... 1 s\n\rtwo ... 0 s\n"


def test_welcome_shows_how_to_ask(tmp_path: Path) -> None:
    model = tmp_path / "m"
    model.mkdir()
    topology = localised(read_topology(EXAMPLE), model)
    logs = {"home": tmp_path / "logs" / "home.log"}
    said = welcome(topology, 12.34, logs, {}, Path("run.yaml"))
    assert "Ready after 12.3 s: smollm2 at http://127.0.0.1:8000/v1\n" in said
    assert "curl http://127.0.0.1:8000/v1/completions -H 'content-type: application/json' \\" in said
    assert str(tmp_path / "logs") in said
    (model / "chat_template.jinja").write_text("{{ messages }}")
    assert "The topology as it runs: run.yaml" in said
    assert "curl http://127.0.0.1:8000/v1/chat/completions" in welcome(topology, 1, logs, {}, Path("run.yaml"))
    keyed = welcome(topology, 1, logs, {"PRFAAS_API_KEYS": "sesame"}, Path("run.yaml"))
    assert "authorization: Bearer $KEY" in keyed
    assert "sesame" not in keyed


def test_welcome_python_is_python(tmp_path: Path) -> None:
    said = welcome(localised(read_topology(EXAMPLE), tmp_path), 1, {}, {}, Path("run.yaml"))
    lines = [line.strip() for line in said.splitlines()]
    start = lines.index("from openai import OpenAI")
    compile("\n".join(lines[start : start + 4]), "welcome", "exec")
