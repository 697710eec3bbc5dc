"""docs/planning.md shows what the commands say: every block with a command is what it prints, `...` for what is left
out.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from prfaas.cli.main import cli

from .conftest import ROOT

DOC = ROOT / "docs" / "planning.md"
BLOCK = re.compile(r"^```\n\$ (?P<command>prfaas .*?)\n(?P<output>.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCKS = [(match["command"], match["output"]) for match in BLOCK.finditer(DOC.read_text())]


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    return {}


@pytest.mark.parametrize("at", range(len(BLOCKS)))
def test_the_output_is_the_real_one(at: int, said: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    command, output = BLOCKS[at]
    if command not in said:
        said[command] = CliRunner().invoke(cli, command.split()[1:], prog_name="prfaas").stdout
    rest = said[command]
    for part in re.split(r"^\.\.\.\n", output, flags=re.MULTILINE):
        shown = part.strip("\n")
        if shown:
            _, found, rest = rest.partition(shown)
            assert found, f"not what `{command}` says now:\n{shown}"


def test_there_are_blocks_and_the_pictures_exist() -> None:
    text = DOC.read_text()
    assert len(BLOCKS) >= 5
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
    assert len(pictures) == 4
    for name in [*pictures, *re.findall(r"\]\(([a-z./-]+\.(?:md|json|yaml))\)", text)]:
        assert Path(DOC.parent / name).is_file(), name
