"""The journal: what was kept comes back, a cut-off line is dropped, another run's is refused."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from prfaas.core.errors import ConfigError
from prfaas.measure.samples import Journal, Probe, Run, Sample, Settings, Stop, probes

SETTINGS = Settings(lengths=(1024, 2048), cached=(8192,), batches=(1, 4), contexts=(1024, 8192))
RUN = Run("http://h/v1", "m", SETTINGS)
SAMPLE = Sample("prefill", 1024, 0, 0, 1023, 0, 440)
STOP = Stop("prefill", 2048, 0, "HTTP 400: too long")


def kept(path: Path, *lines: Sample | Stop) -> None:
    journal = Journal(path, RUN)
    for line in lines:
        journal.add(line)
    journal.close()


def test_what_is_wanted_from_short_to_long() -> None:
    assert list(probes(SETTINGS)) == [
        Probe("prefill", 1024, 0),
        Probe("prefill", 2048, 0),
        Probe("prefill", 1024, 8192),
        Probe("prefill", 2048, 8192),
        Probe("decode", 1, 1024),
        Probe("decode", 4, 1024),
        Probe("decode", 1, 8192),
        Probe("decode", 4, 8192),
    ]


def test_what_was_kept_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "j"
    kept(file, SAMPLE, STOP)
    kept(file, replace(SAMPLE, repeat=1))
    journal = Journal(file, RUN)
    assert (journal.samples, journal.stops) == ([SAMPLE, replace(SAMPLE, repeat=1)], [STOP])
    assert len(file.read_text().splitlines()) == 4
    journal.close()


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_line_that_a_crash_cut_off_is_dropped(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "j"
    kept(file, SAMPLE, replace(SAMPLE, repeat=1))
    file.write_bytes(file.read_bytes()[:-cut])
    kept(file, replace(SAMPLE, repeat=2))
    journal = Journal(file, RUN)
    assert [sample.repeat for sample in journal.samples] == [0, 2]
    journal.close()


def test_a_first_line_that_was_cut_off_is_written_anew(tmp_path: Path) -> None:
    file = tmp_path / "j"
    file.write_text('{"kind":"ru')
    kept(file, SAMPLE)
    journal = Journal(file, RUN)
    assert journal.samples == [SAMPLE]
    journal.close()


@pytest.mark.parametrize(
    ("run", "what"),
    [
        (replace(RUN, model="n"), "a run of model m, not n"),
        (replace(RUN, url="http://i/v1"), "a run of url http://h/v1, not http://i/v1"),
        (replace(RUN, settings=replace(SETTINGS, repeats=9)), "a run with other settings"),
    ],
)
def test_another_run_is_refused(tmp_path: Path, run: Run, what: str) -> None:
    file = tmp_path / "j"
    kept(file, SAMPLE)
    with pytest.raises(ConfigError) as caught:
        Journal(file, run)
    assert str(caught.value) == f"{file}:1: {what}; expected the same command to go on, or --fresh to begin anew"


def test_without_a_sample_there_is_no_journal(tmp_path: Path) -> None:
    file = tmp_path / "j"
    kept(file)
    assert not file.exists()
    kept(file, SAMPLE)
    kept(file)
    assert file.exists()


def test_what_a_crash_left_without_a_sample_binds_nobody(tmp_path: Path) -> None:
    file = tmp_path / "j"
    kept(file, SAMPLE)
    whole = file.read_bytes()
    file.write_bytes(whole[: whole.index(b"\n") + 1])
    other = replace(RUN, model="n")
    journal = Journal(file, other)
    journal.add(SAMPLE)
    journal.close()
    again = Journal(file, other)
    assert (again.samples, len(file.read_text().splitlines())) == ([SAMPLE], 2)
    again.close()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("x\n", ":1: got b'x'; expected a line of a journal"),
        ('{"kind":"stop","what":"prefill","x":1,"y":0,"why":""}\n', ":1: expected a journal"),
    ],
)
def test_other_files_are_no_journals(tmp_path: Path, text: str, what: str) -> None:
    file = tmp_path / "j"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        Journal(file, RUN)
    assert what in str(caught.value)
    assert file.read_text() == text


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written: No such file or directory"):
        Journal(tmp_path / "none" / "j", RUN)


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    journal = Journal(tmp_path / "j", RUN)
    journal.add(SAMPLE)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="j: cannot be written: No space left on device"):
        journal.add(SAMPLE)
    journal.close()
    assert (tmp_path / "j").exists()


def beyond(limit: Probe) -> list[str]:
    return [probe.text() for probe in probes(SETTINGS) if probe.beyond(limit)]


def test_what_cannot_work_if_less_did_not() -> None:
    assert beyond(Probe("prefill", 2048, 0)) == [
        "prefill of 2048 tokens",
        "prefill of 1024 tokens after 8192 cached",
        "prefill of 2048 tokens after 8192 cached",
        "decode of 1 at once, 8192 tokens each",
        "decode of 4 at once, 8192 tokens each",
    ]
    assert beyond(Probe("prefill", 1024, 8192)) == [
        "prefill of 1024 tokens after 8192 cached",
        "prefill of 2048 tokens after 8192 cached",
    ]
    assert beyond(Probe("decode", 4, 1024)) == [
        "decode of 4 at once, 1024 tokens each",
        "decode of 4 at once, 8192 tokens each",
    ]
