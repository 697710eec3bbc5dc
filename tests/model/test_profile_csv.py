"""CSV: rows become points, and a bad one is named with what was expected."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from prfaas.core.errors import ConfigError
from prfaas.model.profilecsv import read_csv
from prfaas.model.profilefile import ProfileFile, profile_of

BOTH = """\
kind,uncached,cached,batch,context,time
# a remark
prefill,1024,0,,,440ms

prefill,8192,,,,0.72s
prefill,1024,8192,,,450ms
decode,,,20,4096,25ms
decode,,,20,8192,30ms
"""


def read(tmp_path: Path, *texts: str) -> ProfileFile:
    files = [tmp_path / f"{at}.csv" for at in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    return read_csv(files, name="mine", source="a bench", made=date(2026, 5, 1), basis="measured", note="n")


def test_one_file(tmp_path: Path) -> None:
    said = read(tmp_path, BOTH)
    assert (said.name, said.source, said.date, said.prefill.basis) == ("mine", "a bench", date(2026, 5, 1), "measured")
    assert [(row.uncached, row.cached, row.time_ns) for row in said.prefill.points] == [
        (1024, 0, 440_000_000),
        (8192, 0, 720_000_000),
        (1024, 8192, 450_000_000),
    ]
    assert [(row.batch, row.context, row.time_ns) for row in said.decode.points] == [
        (20, 4096, 25_000_000),
        (20, 8192, 30_000_000),
    ]
    assert profile_of(said).prefill_ns(1024, 1024) == 440_000_000


def test_two_files_and_plain_numbers(tmp_path: Path) -> None:
    said = read(tmp_path, "uncached,time_s\n1024,0.44\n", "Batch, Time_ms\n20, 25.5\n")
    assert said == read(tmp_path, BOTH.split("\n\n")[0] + "\n", "batch,time_us\n20,25500\n")
    assert said.decode.points[0].context is None


def test_one_file_without_kind(tmp_path: Path) -> None:
    said = read(tmp_path, "uncached,batch,time\n1024,,440ms\n,20,25ms\n")
    assert (len(said.prefill.points), len(said.decode.points)) == (1, 1)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("440ms", "440", "3: time: got '440'; expected a duration with a unit (ns, us, ms, s, m, h) (or a column"),
        ("440ms", "", "3: time: no time; expected one"),
        ("prefill,1024,0,,,440ms", "prefill,1k,0,,,440ms", "3: uncached: got '1k'; expected a whole number"),
        ("prefill,1024,0,,,440ms", "prefill,0,0,,,440ms", "3: uncached: got 0; expected a whole number >= 1"),
        ("prefill,1024,0,,,440ms", "prefill,,0,,,440ms", "3: uncached: got nothing; expected a whole number"),
        ("prefill,1024,0,,,440ms", "prefill,1024,0,2,,440ms", "3: batch: got '2' in a row of prefill; expected noth"),
        ("prefill,1024,0,,,440ms", "prefil,1024,0,,,440ms", "3: kind: got 'prefil'; expected prefill or decode"),
        ("prefill,1024,0,,,440ms", ",1024,0,,,440ms", "3: kind: got nothing; expected prefill or decode"),
        ("prefill,1024,0,,,440ms", "prefill,1024,0,440ms", "3: got 4 cells; expected 6: kind, uncached"),
        ("0.72s", "0.4s", "5: time: got 400ms at uncached 8192, less than 440ms at 1024; expected times that do not"),
        ("30ms", "20ms", "8: time: got 20ms at context 8192, less than 25ms at 4096"),
        ("8192,,,,0.72s", "1024,,,,0.72s", "5: a second row for the same point"),
        ("20,8192,30ms", "20,,30ms", "8: batch 20 has a row for any context and another"),
        ("batch,context,time", "batch,context,zeit", "1: got column 'zeit'; expected some of kind, uncached"),
        ("batch,context,time", "batch,context,context", "1: column context is there twice"),
        ("kind,uncached,cached,batch,context,time", "kind,time", "1: got columns kind, time; expected uncached"),
        (
            "batch,context,time",
            "batch,time_s,time",
            "1: got columns kind, uncached, cached, batch, time_s, time; expect",
        ),
        ("440ms", '"440ms', "8: not valid CSV: unexpected end of data"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, old: str, new: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, BOTH.replace(old, new, 1))
    assert str(caught.value).startswith(f"{tmp_path / '0.csv'}:{what}")
    assert "\n" not in str(caught.value)


def test_a_bad_row_of_the_second_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"1\.csv:3: time: got 9ms at batch 8, less than 10ms at batch 4"):
        read(tmp_path, "uncached,time\n1,1ms\n", "batch,time\n4,10ms\n8,9ms\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("-1", "-1"),
        ("nan", "nan"),
        ("inf", "inf"),
        ("1e30", "1e30"),
        ("x", "x"),
        ("1e999999", "1e999999"),
        ("1e-999999", "1e-999999"),
    ],
)
def test_bad_numbers(tmp_path: Path, text: str, shown: str) -> None:
    with pytest.raises(ConfigError, match=rf":2: time_s: got '{shown}'; expected "):
        read(tmp_path, f"uncached,time_s\n1,{text}\n")


@pytest.mark.parametrize(
    ("texts", "what"),
    [
        (("",), ":1: the file is empty; expected a CSV file with the columns"),
        (("uncached,time\n1,1ms\n",), "no decode row; expected one with batch and time, here or in a second file"),
        (("batch,time\n1,1ms\n",), "no prefill row; expected one with uncached and time"),
        (("uncached,cached,time\n1,5,1ms\n", "batch,time\n1,1ms\n"), r"0\.csv:2: every row has cached tokens"),
        (("uncached,batch,time\n1,2,1ms\n",), ":2: expected a number in one of uncached"),
    ],
)
def test_what_is_missing(tmp_path: Path, texts: tuple[str, ...], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        read(tmp_path, *texts)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    def wrong(file: Path) -> str:
        with pytest.raises(ConfigError) as caught:
            read_csv([file], name="x", source="x", made=date(2026, 1, 1), basis="measured")
        return str(caught.value)

    assert "no such file; expected a CSV file" in wrong(tmp_path / "none.csv")
    assert "cannot be read" in wrong(tmp_path)
    file = tmp_path / "latin.csv"
    file.write_bytes("uncached,time\n1,\xb5s\n".encode("latin-1"))
    assert wrong(file) == f"{file}:2: not UTF-8 text"
