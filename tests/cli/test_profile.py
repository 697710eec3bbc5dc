"""`prfaas profile`: what is shown, made, measured; one line and 2 for a mistake, 1 for an endpoint's failure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.measure.fake import Fake, busy, served

from prfaas.cli.main import cli
from prfaas.model.profilefile import built_in, load_profile, read_profile_file

CSV = "kind,uncached,batch,time\nprefill,1024,,440ms\ndecode,,20,25ms\n"
FEW = (
    "--lengths",
    "300,600",
    "--cached",
    "",
    "--batches",
    "1,2",
    "--contexts",
    "300",
    "--repeats",
    "2",
    "--steps",
    "8",
)
BATCHES = [1, 1, 2, 2]


def prfaas(*arguments: object, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, ["profile", *map(str, arguments)], prog_name="prfaas", env=env)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_list() -> None:
    code, said, _ = prfaas("list")
    assert code == 0
    assert [line.split()[0] for line in said.splitlines()[1:]] == list(built_in())


def test_show() -> None:
    code, said, _ = prfaas("show", "paper-h200", "--lengths", "5K,200K")
    assert code == 0
    lines = said.splitlines()
    assert lines[0] == "paper-h200: arXiv 2604.15039, Table 5: a 1T hybrid model (KDA:MLA 3:1) on 8 H200, 2026-04-01"
    assert "prefill (measured)" in lines
    assert "   32768       0   1.840 s     17809" in lines
    assert lines[-2:] == ["    5120  600.0 ms", "  204800  11.570 s  extrapolated"]
    assert "prefill (derived): Not published. Table 6 gives" in prfaas("show", "paper-h20")[1]


def test_show_as_json(tmp_path: Path) -> None:
    code, said, _ = prfaas("show", "paper-h20", "--json")
    assert code == 0
    assert json.loads(said)["prefill"]["points"][0] == {"uncached": 1024, "cached": 0, "time": "608ms"}
    file = tmp_path / "p.json"
    file.write_text(said)
    assert prfaas("show", file)[1] == prfaas("show", "paper-h20")[1]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("show", "h300"), "profile 'h300': expected one of "),
        (("show", "none.yaml"), "none.yaml: no such file; expected a profile"),
        (("show", "paper-h20", "--lengths", "5X"), "--lengths: got '5X'; expected tokens such as 1K,8K,32768"),
        (("csv", "none.csv", "o.yaml", "--source", "s"), "none.csv: no such file; expected a CSV file"),
        (("csv", "none.csv", "no/o.yaml", "--source", "s"), "no/o.yaml: no is no directory; expected one that exists"),
        (("measure", "h:1"), "got 'h:1'; expected an endpoint such as http://127.0.0.1:8000/v1"),
        (("measure", "http://h:1", "--lengths", ""), "--lengths: got nothing; expected numbers such as 1K,8K,32768"),
        (("measure", "http://h:1", "--batches", "0"), "--batches: got '0'; expected "),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, said, wrong = prfaas(*arguments)
    assert (code, said, wrong.count("\n")) == (2, "", 1)
    assert wrong.startswith(what)
    assert list(tmp_path.iterdir()) == []


def test_aiconfigurator_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    code, _, wrong = prfaas("aiconfigurator", "M", tmp_path / "o.yaml", "--system", "h200_sxm")
    assert code == 2
    assert wrong.endswith("expected: pip install 'prfaas[aiconfigurator]'\n")


def test_csv(tmp_path: Path) -> None:
    table, out = tmp_path / "in.csv", tmp_path / "mine.yaml"
    table.write_text(CSV)
    command = ("csv", table, out, "--source", "a bench", "--date", "2026-05-01", "--basis", "derived", "--note", "n")
    assert prfaas(*command) == (0, f"{out}: 1 prefill and 1 decode points, derived\n", "")
    said = read_profile_file(out)
    assert (said.name, said.source, str(said.date), said.decode.note) == ("mine", "a bench", "2026-05-01", "n")
    assert load_profile(str(out)).prefill_ns(1024, 1024) == 440_000_000
    code, _, wrong = prfaas(*command)
    assert (code, wrong) == (2, f"{out}: is there already; expected a new file, or --force\n")
    assert prfaas(*command, "--force")[0] == 0
    table.write_text(CSV.replace("440ms", "soon"))
    code, _, wrong = prfaas(*command, "--force")
    assert code == 2
    assert wrong.startswith(f"{table}:2: time: got 'soon'; expected a duration with a unit")
    assert {file.name for file in tmp_path.iterdir()} == {"in.csv", "mine.yaml"}


def test_measure(tmp_path: Path) -> None:
    out = tmp_path / "m.yaml"
    with served(Fake(batches=list(BATCHES), key="k")) as url:
        code, said, told = prfaas("measure", url, "--out", out, *FEW, "--source", "a fake", env={"OPENAI_API_KEY": "k"})
    assert (code, said) == (0, f"{out}: 2 prefill and 2 decode points, measured\n")
    lines = told.splitlines()
    assert lines[:2] == [f"{url}/v1: fake, 4 points, 2 times each", "1 of 4: prefill of 300 tokens, 2 times ..."]
    assert [line for line in lines if line.startswith("decode: held-out repeats are off by ")]
    assert lines[-1] == f"the samples are kept in {out}.samples"
    profile = read_profile_file(out)
    assert profile.source == f"a fake; fake at {url}/v1, measured by prfaas profile measure"
    assert [row.uncached for row in profile.prefill.points] == [300, 600]
    assert {file.name for file in tmp_path.iterdir()} == {"m.yaml", "m.yaml.samples"}
    code, _, wrong = prfaas("measure", url, "--out", out, *FEW)
    assert (code, wrong) == (2, f"{out}: is there already; expected a new file, or --force\n")


def test_a_failure_keeps_what_was_measured_and_the_same_command_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "m.yaml"
    fake = Fake(batches=list(BATCHES), hook=lambda count: busy(count) if count == 5 else None)
    with served(fake) as url:
        command = ("measure", url, "--out", out, *FEW)
        code, said, told = prfaas(*command)
        assert (code, said) == (1, "")
        assert told.splitlines()[-2:] == [
            f"{url}/v1: http_503: no room for request 5",
            f"2 samples are kept in {out}.journal; the same command goes on from there",
        ]
        code, _, told = prfaas(*command[:-1], "9")
        assert code == 2
        assert "a run with other settings; expected the same command to go on, or --fresh" in told
        code, said, told = prfaas(*command)
        assert code == 0
        assert told.startswith(f"going on from {out}.journal: 2 samples\n")
        fake.batches = list(BATCHES)
        assert prfaas(*command, "--force", "--fresh")[0] == 0


def test_nobody_there(tmp_path: Path) -> None:
    with served(Fake()) as url:
        code, _, wrong = prfaas("measure", url, "--out", tmp_path / "m.yaml", "--model", "nosuch")
        assert (code, wrong) == (2, f"{url}/v1: no model 'nosuch'; expected one of fake\n")
    code, said, wrong = prfaas("measure", url, "--out", tmp_path / "m.yaml")
    assert (code, said, wrong.count("\n")) == (1, "", 1)
    assert wrong.startswith(f"{url}/v1: unreachable: GET {url}/v1/models: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_interrupted(tmp_path: Path) -> None:
    """Ctrl-C comes in the middle of the fifth request."""
    out, process = tmp_path / "m.yaml", None

    def interrupt(count: int) -> None:
        if count == 5 and process is not None:
            os.kill(process.pid, signal.SIGINT)

    with served(Fake(batches=list(BATCHES), hook=interrupt)) as url:
        command = [sys.executable, "-m", "prfaas.cli.main", "profile", "measure", url, "--out", str(out), *FEW]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        said, told = process.communicate(timeout=60)
        assert (process.returncode, said) == (130, "")
        assert "Traceback" not in told
        assert told.splitlines()[-2:] == [
            "interrupted",
            f"2 samples are kept in {out}.journal; the same command goes on from there",
        ]
        assert prfaas("measure", url, "--out", out, *FEW)[0] == 0
