"""Real vLLM engines on the CPU, with tiny random models. $PRFAAS_VLLM_PYTHON is the interpreter that has vLLM."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import pytest
from tests.vllm.pair import PYTHON, ROOT


@cache
def _without() -> str:
    try:
        asked = subprocess.run([PYTHON, "-c", "import vllm"], capture_output=True, cwd="/", check=False)
    except OSError as error:
        return f"{PYTHON}: {error.strerror}; set PRFAAS_VLLM_PYTHON (`make setup-vllm`)"
    return "" if asked.returncode == 0 else f"{PYTHON} has no vllm; set PRFAAS_VLLM_PYTHON (`make setup-vllm`)"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("vllm") and _without():
        pytest.skip(_without())


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory):
    """The directory of a tiny model of a kind, made once."""

    @cache
    def made(kind: str) -> Path:
        if _without():
            pytest.skip(_without())
        directory = tmp_path_factory.mktemp(kind)
        subprocess.run([PYTHON, "-m", "tests.vllm.tiny", kind, str(directory)], cwd=ROOT, check=True)
        return directory

    return made
