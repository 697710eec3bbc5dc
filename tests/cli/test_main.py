"""The command line: what is imported when, exit codes, one line for a fault."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from prfaas.cli.main import COMMANDS, cli, main
from prfaas.cli.ports import bound, free_ports
from prfaas.config.schema import topology_schema
from prfaas.runtime import lifeline

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "two-clusters.yaml")
HEAVY = ("torch", "transformers", "aiohttp", "numpy", "asyncio")


def prfaas(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, arguments, prog_name="prfaas")
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom prfaas.cli.main import cli\n"
        "try:\n    cli(['--help'], prog_name='prfaas')\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert all(f"  {name} " in said for name in COMMANDS)
    assert said.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    code, said, _ = prfaas(name, "--help")
    assert code == 0
    assert said.startswith(f"Usage: prfaas {name} ")


def test_the_entry_point_watches_its_lifeline_first(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(lifeline, "watch", lambda environ: order.append("watch"))
    monkeypatch.setattr("prfaas.cli.main.cli", lambda prog_name: order.append("run"))
    main()
    assert order == ["watch", "run"]


def test_validate() -> None:
    assert prfaas("validate", EXAMPLE) == (0, f"{EXAMPLE}: good: 2 clusters, 3 nodes, 1 link, model smollm2\n", "")


def test_a_fault_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("model: m\nclusters: {}\n")
    expected = f"{file}:2: clusters: got an empty mapping; expected a mapping that is not empty\n"
    assert prfaas("validate", str(file)) == (2, "", expected)
    assert prfaas("up", str(file)) == (2, "", expected)


def test_schema() -> None:
    code, said, _ = prfaas("schema")
    assert code == 0
    assert json.loads(said) == json.loads(topology_schema())


def test_unknown_commands_and_options() -> None:
    assert prfaas("uq")[0] == 2
    assert prfaas("up", EXAMPLE, "--port", "0")[0] == 2


def test_a_port_in_use_is_one_line_and_nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (port,) = free_ports(1, set())
    with bound("127.0.0.1", port):
        code, said, wrong = prfaas("up", EXAMPLE, "--port", str(port))
    assert (code, said) == (2, "")
    expected = "is in use by another program; expected a free port (--port sets the gateway's)"
    assert wrong == f"{EXAMPLE}:10: clusters.home.listen: 127.0.0.1:{port} {expected}\n"
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_model_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (port,) = free_ports(1, set())
    code, _, wrong = prfaas("up", EXAMPLE, "--port", str(port), "--model", "smolm2")
    assert (code, wrong) == (2, "model 'smolm2' is not in the catalog; did you mean smollm2?\n")
    code, _, wrong = prfaas("up", EXAMPLE, "--port", str(port), "--model", f"{tmp_path}/x")
    assert (code, wrong) == (
        2,
        f"model {tmp_path}/x: no config.json there; expected a directory with a Hugging Face checkpoint\n",
    )


def test_the_catalog_can_be_listed() -> None:
    code, said, _ = prfaas("fetch", "--list")
    assert code == 0
    tiny = ["tiny-hybrid", "tiny-qwen3", "tiny-qwen3-next", "tiny-gemma3", "tiny-falcon-h1"]
    assert [line.split()[0] for line in said.splitlines()] == ["smollm2", "gemma3-270m", *tiny, "emulated"]
