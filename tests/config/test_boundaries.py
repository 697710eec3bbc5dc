"""The import contracts hold, and can fail: a contract that nothing can break guards nothing."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
(PURE,) = (one for one in PROJECT["tool"]["importlinter"]["contracts"] if one["id"] == "pure-core")


def imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_core_imports_the_standard_library_alone() -> None:
    for file in (ROOT / "src" / "prfaas" / "core").rglob("*.py"):
        for name in imports(file):
            top = name.partition(".")[0]
            assert name.startswith("prfaas.core") or top in sys.stdlib_module_names, f"{file}: {name}"


def test_the_pure_contract_knows_every_dependency() -> None:
    modules = {"pyjwt": "jwt", "pyyaml": "yaml", "pyzmq": "zmq"}
    project = PROJECT["project"]
    extras = [wanted for extra in project["optional-dependencies"].values() for wanted in extra]
    for wanted in (*project["dependencies"], *extras):
        name = re.split(r"[<>=]", wanted)[0].replace("-", "_")
        assert modules.get(name, name) in PURE["forbidden_modules"]


def test_the_lock_fits_the_ranges() -> None:
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    versions = {canonicalize_name(name): version for name, version in pinned.items()}
    project = PROJECT["project"]
    ranges = [*project["dependencies"], *project["optional-dependencies"]["transformers"]]
    for wanted in map(Requirement, [*ranges, *PROJECT["dependency-groups"]["dev"]]):
        assert wanted.specifier.contains(versions[canonicalize_name(wanted.name)]), wanted
    assert not any("+" in version for version in versions.values())


def lint(directory: Path) -> tuple[int, str]:
    command = [
        shutil.which("lint-imports", path=str(Path(sys.executable).parent)) or "lint-imports",
        "--no-logo",
        "--no-cache",
    ]
    done = subprocess.run(command, cwd=directory, env={"PYTHONPATH": "src"}, capture_output=True, text=True)
    return done.returncode, " ".join(done.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "line", "complaint"),
    [
        ("core/ids.py", "", ""),
        ("core/ids.py", "import time", "prfaas.core is not allowed to import time"),
        ("core/errors.py", "import msgspec", "prfaas.core is not allowed to import msgspec"),
        ("core/ids.py", "import prfaas.config", "prfaas.core is not allowed to import prfaas.config"),
        ("config/units.py", "import prfaas.model.catalog", "prfaas.config is not allowed to import prfaas.model"),
        ("gateway/__init__.py", "import prfaas.service", "prfaas.gateway is not allowed to import prfaas.service"),
        ("attic.py", "", "prfaas.attic"),
    ],
)
def test_contracts_can_fail(tmp_path: Path, file: str, line: str, complaint: str) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "src" / "prfaas" / file).open("a") as opened:
        opened.write(f"\n{line}\n")
    code, said = lint(tmp_path)
    assert complaint in said
    assert code == (1 if complaint else 0), said
