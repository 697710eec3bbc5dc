"""A profile is written whole and readable, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from prfaas.core.errors import ConfigError
from prfaas.model.profilefile import DecodePoint, ProfileFile, load_profile_file, read_profile_file
from prfaas.model.profilewrite import write_profile_file

GOOD = load_profile_file("paper-h200")
POINT = GOOD.decode.points[0]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    write_profile_file(GOOD, file)
    assert read_profile_file(file) == GOOD
    write_profile_file(replace(GOOD, name="other"), file)
    assert read_profile_file(file).name == "other"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("said", "what"),
    [
        (replace(GOOD, source=""), "2: source: got ''; expected text that is not empty"),
        (replace(GOOD, name=""), "1: name: got ''; expected text that is not empty"),
        (
            replace(GOOD, decode=replace(GOOD.decode, points=(DecodePoint(batch=1 << 21, time_ns=POINT.time_ns),))),
            "15: decode.points[0].batch: got 2097152; expected a whole number <= 1048576",
        ),
        (
            replace(GOOD, decode=replace(GOOD.decode, points=(POINT, POINT))),
            "15: decode.points[0]: batch 20 has a row for any",
        ),
    ],
)
def test_what_would_be_refused_is_not_written(tmp_path: Path, said: ProfileFile, what: str) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("before")
    with pytest.raises(ConfigError) as caught:
        write_profile_file(said, file)
    assert "(nothing was written)" in str(caught.value)
    assert str(caught.value).startswith(f"{file}:{what}")
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none/p\.yaml: cannot be written: No such file or directory"):
        write_profile_file(GOOD, tmp_path / "none" / "p.yaml")
