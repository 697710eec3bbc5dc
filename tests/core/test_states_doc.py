"""`docs/states.md` is what the tables say."""

from __future__ import annotations

import ast
from pathlib import Path

from prfaas.testing.states import MACHINES, document

ROOT = Path(__file__).parents[2]


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "states.md").read_text(encoding="utf-8")
    assert page == document(), "run: python -m prfaas.testing.states > docs/states.md"


def test_no_table_is_left_out() -> None:
    made = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Table":
                first = node.args[0]
                assert isinstance(first, ast.Constant)
                made.append(first.value)
    assert sorted(made) == sorted(table.name for table, _ in MACHINES)
