"""docs/profiles.md: its examples are read, its outputs are what is printed, its table is the benchmark's."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from benchmarks.table3 import PROFILES, rows, table
from click.testing import CliRunner

from prfaas.cli.main import cli
from prfaas.core.errors import ConfigError
from prfaas.model.profilefile import built_in, load_profile_file, read_profile

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "profiles.md").read_text()
YAML = re.findall(r"```yaml\n(.*?)```", DOC, re.DOTALL)
SHOW, CSV = re.findall(r"```console\n(.*?)```", DOC, re.DOTALL)[:2]


def run(*arguments: str) -> str:
    return CliRunner().invoke(cli, arguments, prog_name="prfaas").output


def test_the_file(tmp_path: Path) -> None:
    (text,) = YAML
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    assert read_profile(file).prefill_ns(1024, 1024 + 32768) == 470_000_000
    file.write_text(text.replace("1840ms", "300ms"))
    with pytest.raises(ConfigError) as caught:
        read_profile(file)
    assert str(caught.value).removeprefix(f"{tmp_path}/") in DOC


def test_show() -> None:
    command, _, said = SHOW.partition("\n")
    assert run(*command.split()[2:]) == said


def test_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = CSV.splitlines()
    file = tmp_path / "bench.csv"
    file.write_text("\n".join(lines[1:5]) + "\n")
    command = ["profile", "csv", "bench.csv", "mine.yaml", "--source", "our bench, 8 of our accelerators"]
    assert shlex.split(lines[5])[2:] == [*command, "--date", "2026-05-01"]
    assert run(*command, "--date", "2026-05-01") == lines[6] + "\n"
    file.write_text(file.read_text().replace("1840ms", "1840"))
    assert run(*command, "--force") in DOC.replace("    bench", "bench")


def test_every_built_in_has_a_row() -> None:
    for name in built_in():
        said = load_profile_file(name)
        assert re.search(rf"\| `{re.escape(name)}` \|.*\| {said.prefill.basis} \| {said.decode.basis} \|", DOC), name


@pytest.mark.slow
def test_table_3() -> None:
    assert table(rows()[: 4 * len(PROFILES)]) in DOC
    stored = json.loads((ROOT / "docs" / "benchmarks" / "table3.json").read_text())
    assert [row["implied_s"] for row in stored["rows"]] == [row.implied_s for row in rows()]
    assert [row.get("modelled_s") for row in stored["rows"]] == [row.modelled_s for row in rows()]


@pytest.mark.slow
def test_what_is_said_of_table_3() -> None:
    more = {tokens: [row.more_s for row in rows() if row.tokens == tokens and row.more_s] for tokens in (1024, 8192)}
    assert [(round(min(some), 2), round(max(some), 2)) for some in more.values()] == [(0.33, 0.45), (0.34, 0.48)]
