"""`prfaas profile`: what is shown, made, measured; one line and 2 for a mistake, 1 for an endpoint's failure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web
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
        (("measure", "http://h:1", "--lengths", ""), "--lengths: got nothing; expected tokens such as 1K,8K,32768"),
        (("measure", "http://h:1", "--batches", "0"), "--batches: got '0'; expected sequences such as 1,4,16"),
        (
            ("measure", "http://h:1", "--batches", "1000000000"),
            "--batches: got '1000000000'; expected sequences such as",
        ),
        (
            ("measure", "http://h:1", "--batches", "1,5K"),
            "--batches: got '5K'; expected sequences such as 1,4,16, at mo",
        ),
        (("measure", "http://h:1", "--lengths", "1M,100M"), "--lengths: got '100M'; expected tokens such as"),
        (("measure", "http://h:1", "--cached", "17M"), "--cached: got '17M'; expected tokens such as"),
        (("measure", "http://h:1", "--contexts", "17M"), "--contexts: got '17M'; expected tokens such as"),
        (
            ("measure", "http://h:1", "--batches", "1,4K", "--contexts", "1K,16K"),
            "--batches, --contexts: got 4096 times 16384 tokens at once; expected at most 32M",
        ),
        (
            ("measure", "http://h:1", "--lengths", ",".join(map(str, range(1, 40)))),
            "--lengths: got 39 numbers; expected at most 32",
        ),
        (("measure", "http://h:1", "--timeout", "nan"), "--timeout: got 'nan'; expected seconds from 1 to 86400"),
        (("measure", "http://h:1", "--timeout", "inf"), "--timeout: got 'inf'; expected seconds from 1 to 86400"),
        (("measure", "http://h:1", "--timeout", "soon"), "--timeout: got 'soon'; expected seconds from 1 to 86400"),
        (("measure", "http://h:1", "--repeats", "0"), "--repeats: got '0'; expected a whole number from 1 to 100"),
        (("measure", "http://h:1", "--source", " "), "--source: got ' '; expected text that is not empty"),
        (("measure", "http://h:1", "--api-key", "a\nb"), "--api-key: got characters that no header can hold; expected"),
        (("measure", "http://h:1", "--out", "."), ".: is a directory; expected a file"),
        (("measure", "http://h:1", "--out", "/", "--force"), "/: is a directory; expected a file"),
        (("measure", "http://h:1", "--out", "/dev/null", "--force"), "/dev/null: is no ordinary file; expected one"),
        (("measure", "http://h:1", "--out", "o" * 252), "o" * 252 + ": cannot be written: File name too long"),
        (("measure", "http://h:1", "--out", "o" * 248), "o" * 248 + ".journal: cannot be written: File name too long"),
        (("measure", "http://127.0.0.1:99999"), "got 'http://127.0.0.1:99999'; expected an endpoint such as http://1"),
        (("measure", "http://"), "got 'http://'; expected an endpoint such as http://127.0.0.1:8000/v1"),
        (("csv", "none.csv", "o.yaml", "--source", ""), "--source: got ''; expected text that is not empty"),
        (
            ("csv", "none.csv", "o.yaml", "--source", "s", "--name", ""),
            "--name: got ''; expected text that is not empty",
        ),
        (("csv", "none.csv", "o.yaml", "--source", "\udcff"), "--source: got '\\udcff'; expected text in UTF-8"),
        (("csv", "none.csv", "o.yaml", "--source", "s", "--date", "now"), "--date: got 'now'; expected a day such as"),
        (
            ("csv", "none.csv", "o.yaml", "--source", "s", "--basis", "x"),
            "--basis: got 'x'; expected one of measured, ",
        ),
        (
            ("aiconfigurator", "M", "o.yaml", "--system", "s", "--batches", "2M"),
            "--batches: got '2M'; expected sequenc",
        ),
        (
            ("aiconfigurator", "M", "o.yaml", "--system", "s", "--tp", "0"),
            "--tp: got '0'; expected a whole number from",
        ),
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


LONG = "9" * 5000


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", LONG),
        ("show", f"{LONG}.yaml"),
        ("show", "x" * 300),
        ("show", "paper-h20", "--lengths", LONG),
        ("csv", "in.csv", LONG, "--source", "s"),
        ("csv", LONG, "o.yaml", "--source", "s"),
        ("csv", "in.csv", "o.yaml", "--source", "s", "--date", LONG),
        ("csv", "in.csv", "o.yaml", "--source", "s", "--basis", LONG),
        ("csv", "in.csv", "o.yaml", "--source", "s"),
        ("aiconfigurator", "M", "o.yaml", "--system", "s", "--tp", LONG),
        ("csv", "in.csv", "o.yaml", "--source", LONG),
        ("aiconfigurator", LONG, "o.yaml", "--system", "s"),
        ("aiconfigurator", "M", "o.yaml", "--system", LONG),
        ("measure", "http://h:1", "--model", LONG),
        ("measure", LONG),
        ("measure", f"http://{LONG}"),
        ("measure", f"http://h:{LONG}"),
        ("measure", f"http://h/{LONG}?"),
        ("measure", "http://h:1", "--batches", LONG),
        ("measure", "http://h:1", "--repeats", LONG),
        ("measure", "http://h:1", "--timeout", LONG),
        ("measure", "http://h:1", "--out", LONG),
        ("show", "long.yaml"),
    ],
)
def test_what_is_echoed_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.csv").write_text(CSV.replace("1024", LONG))
    Path("long.yaml").write_text(f"name: {LONG}\n")
    code, said, wrong = prfaas(*arguments)
    assert (code, said, wrong.count("\n")) == (2, "", 1)
    assert len(wrong) < 400
    assert {file.name for file in tmp_path.iterdir()} == {"in.csv", "long.yaml"}


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


def test_what_is_read_is_never_replaced(tmp_path: Path) -> None:
    table = tmp_path / "in.csv"
    table.write_text(CSV)
    code, _, wrong = prfaas("csv", table, table, "--source", "s", "--force")
    assert (code, wrong) == (2, f"{table}: is what is read; expected another file to write\n")
    assert table.read_text() == CSV


def test_nothing_is_written_that_would_not_be_read(tmp_path: Path) -> None:
    table, out = tmp_path / "in.csv", tmp_path / "o.yaml"
    rows = "".join(f"prefill,{at},,{at}us\n" for at in range(1, 8000))
    table.write_text(f"kind,uncached,batch,time\n{rows}decode,,20,25ms\n")
    code, said, wrong = prfaas("csv", table, out, "--source", "s")
    assert (code, said) == (2, "")
    assert wrong == f"{out}:1: larger than 256 KiB; expected a smaller file (nothing was written)\n"
    assert list(tmp_path.iterdir()) == [table]


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


def test_a_fresh_run_forgets_nothing_before_the_endpoint_answers(tmp_path: Path) -> None:
    out = tmp_path / "m.yaml"
    fake = Fake(batches=list(BATCHES), hook=lambda count: busy(count) if count in (5, 10) else None)
    with served(fake) as url:
        command = ("measure", url, "--out", out, *FEW)
        assert prfaas(*command)[0] == 1
        kept = (tmp_path / "m.yaml.journal").read_bytes()
        assert prfaas("measure", url, "--model", "nosuch", "--out", out, *FEW, "--fresh")[0] == 2
        assert (tmp_path / "m.yaml.journal").read_bytes() == kept
        code, _, told = prfaas(*command, "--fresh")
        assert (code, "going on" in told) == (1, False)
        assert told.splitlines()[-1] == (
            f"2 samples are kept in {out}.journal; the same command without --fresh goes on from there"
        )
        assert prfaas(*command)[0] == 0


def test_a_failure_before_the_first_sample_leaves_nothing(tmp_path: Path) -> None:
    out, fake = tmp_path / "m.yaml", Fake(batches=list(BATCHES), hook=lambda count: busy(count) if count < 2 else None)
    with served(fake) as url:
        command = ("measure", url, "--out", out, *FEW)
        code, said, told = prfaas(*command)
        assert (code, said) == (1, "")
        assert told.splitlines()[-1] == f"{url}/v1: http_503: no room for request 1"
        assert list(tmp_path.iterdir()) == []
        assert prfaas(*command, "--steps", "9")[0] == 0


def test_what_a_server_says_is_one_line(tmp_path: Path) -> None:
    said = "Traceback:\n  \x1b[31mline\r\n 2" + "!" * 1000
    with served(Fake(hook=lambda count: web.Response(status=500, text=said))) as url:
        code, _, told = prfaas("measure", url, "--out", tmp_path / "m.yaml", *FEW)
    assert code == 1
    last = told.splitlines()[-1]
    assert last.startswith(f"{url}/v1: http_500: Traceback: [31mline 2!!!")
    assert len(last) < 400
    with served(Fake(models=("a\nb", "c" * 1000))) as url:
        code, _, told = prfaas("measure", url, "--out", tmp_path / "m.yaml", *FEW)
    assert (code, told.count("\n")) == (2, 1)
    assert told.startswith(f"{url}/v1 serves a b, ccc")
    assert len(told) < 400


@pytest.mark.parametrize("beside", ["m.yaml", "m.yaml.part", "m.yaml.journal", "m.yaml.samples"])
def test_places_that_cannot_be_written_are_found_first(tmp_path: Path, beside: str) -> None:
    (tmp_path / beside).mkdir()
    fake = Fake()
    with served(fake) as url:
        code, said, wrong = prfaas("measure", url, "--out", tmp_path / "m.yaml", *FEW, "--force", "--fresh")
    assert (code, said, wrong.count("\n")) == (2, "", 1)
    assert "directory" in wrong
    assert fake.asked == []
    assert [file.name for file in tmp_path.iterdir()] == [beside]


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
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job has it ignored
        )
        said, told = process.communicate(timeout=100)
        assert (process.returncode, said) == (130, "")
        assert "Traceback" not in told
        assert told.splitlines()[-2:] == [
            "interrupted",
            f"2 samples are kept in {out}.journal; the same command goes on from there",
        ]
        assert prfaas("measure", url, "--out", out, *FEW)[0] == 0
