"""`prfaas plan` on the command line: outputs, exit codes, one line for a fault."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from prfaas.cli.main import cli
from prfaas.core.errors import ConfigError
from prfaas.model.hf.load import CONFIGS
from prfaas.model.profilefile import DIRECTORY

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


def test_a_topology_replaces_nothing_without_force(tmp_path: Path) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text("mine\n")
    code, out, err = prfaas("plan", str(PAPER), "--json", "--topology", str(file))
    assert (code, out, err) == (2, "", f"{file}: is there already; expected a new file, or --force\n")
    assert file.read_text() == "mine\n"
    code, _, _ = prfaas("plan", str(PAPER), "--json", "--topology", str(file), "--force")
    assert code == 0
    assert file.read_text().startswith("# Written by `prfaas plan`")
    code, _, err = prfaas("plan", str(PAPER), "--force")
    assert code == 2
    assert "got --force without --topology; expected both" in err


@pytest.mark.parametrize("name", ["plan.yaml", "link.yaml", "mine.yaml", "model/config.json"])
def test_a_topology_never_replaces_what_the_plan_is_read_from(tmp_path: Path, name: str) -> None:
    plan, mine, model = tmp_path / "plan.yaml", tmp_path / "mine.yaml", tmp_path / "model" / "config.json"
    text = PAPER.read_text().replace("profile: paper-h200", "profile: ./mine.yaml")
    plan.write_text(text.replace("model: paper-1t", "model: ./model"))
    (tmp_path / "link.yaml").symlink_to(plan)
    mine.write_text((DIRECTORY / "paper-h200.yaml").read_text())
    model.parent.mkdir()
    model.write_text((CONFIGS / "MiniMax-M2.5.json").read_text())
    before = (tmp_path / name).read_text()
    code, out, err = prfaas("plan", str(plan), "--topology", str(tmp_path / name), "--force")
    assert (code, out) == (2, "")
    assert err == f"{tmp_path / name}: the plan is read from it; expected another file to write the topology to\n"
    assert (tmp_path / name).read_text() == before


def test_a_topology_never_replaces_the_trace(tmp_path: Path) -> None:
    plan, trace = tmp_path / "plan.yaml", tmp_path / "t.jsonl"
    trace.write_text('{"input_length": 9000, "output_length": 20}\n')
    lengths = "{kind: lognormal, mu: 9.90, sigma: 1.00, least: 128, most: 131072}"
    plan.write_text(PAPER.read_text().replace(lengths, "{kind: trace, file: t.jsonl}"))
    code, _, err = prfaas("plan", str(plan), "--topology", str(trace), "--force")
    assert code == 2
    assert "the plan is read from it" in err


@pytest.mark.parametrize("option", ["--topology", "--plots"])
def test_places_are_looked_at_before_anything_is_computed(
    tmp_path: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("computed")

    monkeypatch.setattr("prfaas.cli.plan.read_inputs", never)
    (tmp_path / "file").write_text("")
    code, out, err = prfaas("plan", str(PAPER), option, str(tmp_path / "file" / "there"))
    assert (code, out) == (2, "")
    what = "a file to write the topology to" if option == "--topology" else "a directory for pictures"
    assert err == f"{tmp_path}/file/there: {tmp_path}/file is no directory; expected {what}\n"


def test_the_answer_is_out_before_a_file_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise ConfigError("no space")

    monkeypatch.setattr("prfaas.cli.plan.write_topology_file", full)
    code, out, err = prfaas("plan", str(PAPER), "--json", "--topology", str(tmp_path / "t.yaml"))
    assert (code, err) == (2, "no space\n")
    assert json.loads(out)["designs"]
