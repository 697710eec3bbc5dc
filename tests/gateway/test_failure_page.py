"""docs/failure.md names codes, log lines and metrics that exist, and times and sizes as they are."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from prfaas.model.text import LARGE
from prfaas.runtime.connection import MAX_HEADER_BYTES, MAX_HEADERS, MAX_URL_BYTES
from prfaas.runtime.http import BODY_S, IDLE_S

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/failure.md").read_text()


@cache
def source() -> str:
    return "\n".join(file.read_text() for file in sorted((ROOT / "src/prfaas").rglob("*.py")))


def rows(begins: str) -> list[list[str]]:
    """The cells of the table whose first line begins so."""
    _, _, rest = PAGE.partition(f"\n| {begins}")
    lines = rest.split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_codes_exist() -> None:
    found = [code for row in rows("status, `code`") for code in quoted(row[0]) if code != "error"]
    assert len(found) > 25
    for code in found:
        assert f'"{code}"' in source(), code


def test_statuses_are_all_there() -> None:
    told = " ".join(row[0] for row in rows("status, `code`"))
    for status in (400, 401, 404, 405, 408, 413, 414, 415, 417, 429, 431, 500, 502, 503, 504):
        assert str(status) in told


def test_log_lines_exist() -> None:
    table = rows("what broke")
    assert len(table) > 9
    for row in table:
        for line in quoted(row[1]):
            event, *fields = re.split(r" (?=\w+=)", line)
            if "=" in event or "{" in event or ": …" in event:  # a field alone, a metric, what a field says
                continue
            assert f'"{event}"' in source(), line
            for field in fields:
                name = field.partition("=")[0]
                assert f"{name}=" in source() or f"{name}: " in source(), line


def test_metrics_exist() -> None:
    names = set(re.findall(r"`(prfaas_\w+)", PAGE))
    assert len(names) > 8
    for name in names:
        assert f'"{name.removesuffix("_total")}"' in source(), name


def test_numbers_are_right() -> None:
    for said in (
        f"over {BODY_S:g} s",
        f"whole {IDLE_S:g} s after",
        f"a URL over {MAX_URL_BYTES} bytes, a header over {MAX_HEADER_BYTES}, more than {MAX_HEADERS} headers",
        f"under {LARGE >> 10} Ki characters",
    ):
        assert said in PAGE
