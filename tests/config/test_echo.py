"""What others wrote is echoed on one line and cut, and what stands around it is left as it is."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prfaas.config.echo import MOST_LINE, elided, one_line, shown
from prfaas.core.errors import ConfigError
from prfaas.model.profilecsv import read_csv
from prfaas.model.profilefile import load_profile, load_profile_file, profile_text, read_profile

DIGITS = "9" * 5000
WORDS = "word " * 1000


@given(st.text())
def test_a_line_is_a_line(text: str) -> None:
    said = one_line(text)
    assert len(said) <= MOST_LINE
    assert said == "" or said.isprintable()
    assert len(shown(text).splitlines()) == 1


def test_values_are_cut_and_words_around_them_kept() -> None:
    assert elided("got 'a'; expected what isn't 'b'") == "got 'a'; expected what isn't 'b'"
    cut = elided(f"t: got '{WORDS}'; expected one of a, b (did you mean 'b'?)")
    assert cut.startswith("t: got 'word word")
    assert cut.endswith("...'; expected one of a, b (did you mean 'b'?)")
    assert len(cut) < 150
    assert elided(f"cannot read {DIGITS} as a number").endswith("999... as a number")


@pytest.mark.parametrize(
    "value", [DIGITS, WORDS, DIGITS + ".0", f"'{DIGITS}'", f'"{WORDS}"', f"[{DIGITS}]", f"{DIGITS}ms"]
)
@pytest.mark.parametrize("old", ["1024", "440ms", "measured", "2026-04-01", "basis", "uncached", "name"])
def test_profile_files(tmp_path: Path, old: str, value: str) -> None:
    file = tmp_path / "p.yaml"
    text = profile_text(load_profile_file("paper-h200"))
    assert old in text
    file.write_text(text.replace(old, value, 1))
    with pytest.raises(ConfigError) as caught:
        read_profile(file)
    what = str(caught.value)
    assert what.startswith(f"{file}:")
    assert len(what.removeprefix(str(file))) < 400
    assert "\n" not in what


def test_names_of_profiles() -> None:
    with pytest.raises(ConfigError) as caught:
        load_profile(DIGITS)
    assert str(caught.value).startswith("profile '9999")
    assert "...': expected one of " in str(caught.value)


@pytest.mark.parametrize("value", [DIGITS, WORDS, DIGITS + "ms", DIGITS + ".5"])
@pytest.mark.parametrize("old", ["prefill", "1024", "5,440ms", "440ms", "uncached"])
def test_tables(tmp_path: Path, old: str, value: str) -> None:
    file = tmp_path / "p.csv"
    file.write_text("kind,uncached,cached,time\nprefill,1024,5,440ms\n".replace(old, value, 1))
    with pytest.raises(ConfigError) as caught:
        read_csv([file], name="n", source="s", made=date(2026, 1, 1), basis="measured")
    what = str(caught.value)
    assert what.startswith(f"{file}:")
    assert len(what.removeprefix(str(file))) < 300
