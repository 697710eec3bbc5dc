"""`prfaas plan` on the command line: outputs, exit codes, one line for a fault."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from prfaas.cli.main import cli

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "examples" / "paper.yaml"


def prfaas(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, arguments, prog_name="prfaas")
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("formulas", [(), ("--exact",)])
def test_json_is_in_the_shape_that_is_promised(formulas: tuple[str, ...]) -> None:
    code, out, _ = prfaas("plan", str(PAPER), "--json", *formulas)
    assert code == 0
    schema = json.loads((ROOT / "docs" / "schemas" / "plan.json").read_text())
    jsonschema.validate(json.loads(out), schema)
    best = json.loads(out)["designs"]["prfaas"]["lambda_max"]
    assert best == pytest.approx(3.16 if formulas else 3.19, abs=0.01)


def test_text_ends_with_the_verdict() -> None:
    code, out, _ = prfaas("plan", str(PAPER))
    assert code == 0
    assert out.partition("\nVerdict\n")[2].startswith("  - PrfaaS brings more throughput")


def test_the_topology_that_it_writes_is_good(tmp_path: Path) -> None:
    file = tmp_path / "topology.yaml"
    code, _, _ = prfaas("plan", str(PAPER), "--json", "--topology", str(file))
    assert code == 0
    code, out, _ = prfaas("validate", str(file))
    assert (code, out) == (0, f"{file}: good: 2 clusters, 12 nodes, 1 link, model emulated\n")


@pytest.mark.parametrize("name", ["plan", "planfile"])
def test_schemas_are_printed(name: str) -> None:
    code, out, _ = prfaas("schema", name)
    assert code == 0
    assert out == (ROOT / "docs" / "schemas" / f"{name}.json").read_text()


def test_a_fault_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(PAPER.read_text().replace("nodes: 4", "nodes: four"))
    code, out, err = prfaas("plan", str(file))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith(f"{file}:15: clusters.far.nodes: got 'four'; expected a whole number")
    code, _, err = prfaas("plan", str(tmp_path / "none.yaml"))
    assert code == 2
    assert "no such file; expected a plan file" in err


@pytest.mark.slow
def test_pictures_that_cannot_be_written_are_a_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = prfaas("plan", str(PAPER), "--plots", str(tmp_path / "file" / "plots"))
    assert code == 2
    assert "expected a directory for pictures" in err
