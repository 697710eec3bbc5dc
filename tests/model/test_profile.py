"""Profiles: measured points come back as they are, what lies between is between, bad files are refused by row."""

from __future__ import annotations

from itertools import pairwise
from math import exp, log
from pathlib import Path
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from prfaas.core.errors import ConfigError, InvariantError
from prfaas.model.profile import Curve, Estimate, Profile
from prfaas.model.profilefile import (
    built_in,
    load_profile,
    load_profile_file,
    profile_text,
    read_profile,
    read_profile_file,
)

MS = 10**6
H200, H20 = load_profile("paper-h200"), load_profile("paper-h20")
ALL = [load_profile(name) for name in built_in()]


@pytest.mark.parametrize(("tokens", "ms"), [(1024, 440), (8192, 720), (32768, 1840), (131072, 7400)])
def test_table_5(tokens: int, ms: int) -> None:
    assert H200.prefill(tokens, tokens) == Estimate(ms * MS)


@pytest.mark.parametrize(("tokens", "ms"), [(10200, 1830), (27500, 4270), (62400, 9730)])
def test_what_table_6_says_of_the_h20(tokens: int, ms: int) -> None:
    assert H20.prefill(tokens, tokens) == Estimate(ms * MS)


def test_the_h20_points_lie_on_one_quadratic() -> None:
    (a, at), (b, bt), (c, ct) = (10200, 1.83), (27500, 4.27), (62400, 9.73)
    first, second = (bt - at) / (b - a), (ct - bt) / (c - b)
    curve = H20.prefills[0][1]
    for x, ns in zip(curve._xs, curve._ns, strict=True):
        assert ns / 1e9 == pytest.approx(
            at + first * (x - a) + (second - first) / (c - a) * (x - a) * (x - b), abs=1e-3
        )


def test_the_papers_ninetieth_percentile() -> None:
    """Linear between the points, as the published 3.51 s at the P90 of log-normal lengths in [128, 131072] needs."""
    lengths = NormalDist(9.90, 1.00)
    low, high = (lengths.cdf(log(bound)) for bound in (128, 131072))
    tokens = round(exp(lengths.inv_cdf(low + 0.9 * (high - low))))
    assert H200.prefill_ns(tokens, tokens) / 1e9 == pytest.approx(3.51, abs=0.01)


def test_every_built_in_says_where_it_comes_from() -> None:
    assert {"paper-h20", "paper-h200", "h200-8-minimax-m2.5"} <= set(built_in())
    for name in built_in():
        said = load_profile_file(name)
        assert said.name == load_profile(name).name == name
        assert said.date.year == 2026
        modelled = not name.startswith("paper-")
        assert ("aiconfigurator-core 0.12.0" if modelled else "2604.15039") in said.source
        assert {said.prefill.basis, said.decode.basis} <= ({"modelled"} if modelled else {"measured", "derived"})
        assert not modelled or "beyond, aiconfigurator extrapolates" in said.prefill.note
    assert "derived" in H20.source
    assert load_profile_file("paper-h20").prefill.basis == "derived"
    assert load_profile_file("paper-h200").prefill.basis == "measured"


@pytest.mark.parametrize("name", built_in())
def test_what_is_written_is_read_as_it_was(tmp_path: Path, name: str) -> None:
    said = load_profile_file(name)
    file = tmp_path / "p.yaml"
    file.write_text(profile_text(said))
    assert read_profile_file(file) == said


def test_odd_texts_are_written_well(tmp_path: Path) -> None:
    odd = replace(load_profile_file("paper-h20"), name="a: 'b' \"c\" # d", source="x\n- {y}\u0085\U0001f600 é\t")
    file = tmp_path / "p.yaml"
    file.write_text(profile_text(odd), encoding="utf-8")
    assert read_profile_file(file) == odd


@given(st.integers(0, 200_000), st.integers(0, 200_000))
def test_more_takes_no_less(one: int, other: int) -> None:
    less, more = sorted((one, other))
    for profile in ALL:
        assert profile.prefill_ns(less, less) <= profile.prefill_ns(more, more)
        if not profile.prefill(more, more).extrapolated:
            assert profile.prefill_ns(less, more) <= profile.prefill_ns(more, more)
        cached = more - less
        assert profile.prefill_ns(less // 2, less // 2 + cached) <= profile.prefill_ns(less, more)
        assert profile.decode_step_ns(less + 1, more) <= profile.decode_step_ns(more + 1, more)


def test_what_was_not_measured_is_marked() -> None:
    assert H200.prefill(500, 500).extrapolated
    assert H200.prefill(200_000, 200_000).extrapolated
    assert H200.prefill(1024, 4096).extrapolated
    assert not H200.prefill(5000, 5000).extrapolated
    assert H200.decode_step(20, 1) == Estimate(25 * MS)
    assert H200.decode_step(4, 1) == Estimate(25 * MS, extrapolated=True)
    assert H200.decode_step(30, 1) == Estimate(37_500_000, extrapolated=True)
    assert H200.prefill(0, 4096) == Estimate(0)


@pytest.mark.parametrize(("uncached", "context"), [(-1, 5), (6, 5)])
def test_impossible_questions(uncached: int, context: int) -> None:
    with pytest.raises(InvariantError):
        H200.prefill(uncached, context)
    with pytest.raises(InvariantError):
        H200.decode_step(0, 1)


def test_curves() -> None:
    with pytest.raises(InvariantError):
        Curve([])
    with pytest.raises(InvariantError):
        Curve([(2, 5), (1, 6)])
    with pytest.raises(InvariantError):
        Curve([(1, 5), (2, 4)])
    assert [Curve([(10, 100)]).at(x).ns for x in (5, 10, 20)] == [50, 100, 200]
    steep = Curve([(10, 10), (20, 110)])
    assert [steep.at(x).ns for x in (0, 10, 15, 20, 21)] == [0, 10, 60, 110, 120]


GOOD = """\
name: mine
source: a test
date: 2026-05-01
prefill:
  basis: measured
  points:
    - {uncached: 1000, time: 100ms}
    - {uncached: 2000, time: 200ms}
    - {uncached: 1000, cached: 8000, time: 140ms}
    - {uncached: 2000, cached: 8000, time: 300ms}
decode:
  basis: measured
  points:
    - {batch: 1, context: 1000, time: 10ms}
    - {batch: 1, context: 9000, time: 18ms}
    - {batch: 8, context: 1000, time: 17ms}
    - {batch: 8, context: 9000, time: 60ms}
"""


def read(tmp_path: Path, text: str) -> Profile:
    file = tmp_path / "p.yaml"
    file.write_text(text)
    return read_profile(file)


def test_a_file_with_two_dimensions(tmp_path: Path) -> None:
    profile = read(tmp_path, GOOD)
    assert load_profile(str(tmp_path / "p.yaml")).prefill_ns(1500, 1500) == 150 * MS
    assert profile.prefill(1500, 9500) == Estimate(220 * MS)
    assert profile.prefill(1000, 5000) == Estimate(120 * MS)  # half way between 0 and 8000 cached tokens
    beyond = profile.prefill(1000, 17000)
    assert beyond.extrapolated
    assert beyond.ns >= 140 * MS
    assert profile.decode_step(1, 5000) == Estimate(14 * MS)
    assert profile.decode_step(8, 5000) == Estimate(38_500_000)
    assert profile.decode_step(2, 1000) == Estimate(11 * MS)
    assert profile.decode_step(16, 1000) == Estimate(34 * MS, extrapolated=True)
    assert profile.decode_step(1, 10) == Estimate(10 * MS, extrapolated=True)
    steps = [profile.decode_step_ns(batch, context) for context in (1, 1000, 20_000) for batch in (1, 4, 8, 9)]
    assert all(a <= b for a, b in pairwise(steps[:4]))


def test_json_is_read_too(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.write_text(
        '{"name": "j", "source": "s", "date": "2026-05-01", "prefill": {"basis": "modelled", "points": '
        '[{"uncached": 10, "time": "1ms"}]}, "decode": {"basis": "modelled", "points": [{"batch": 1, "time": "1ms"}]}}'
    )
    assert read_profile(file).prefill_ns(20, 20) == 2 * MS


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        ("time: 200ms", "time: 20", 8, "prefill.points[1].time: got 20; expected a duration with a unit (ns, "),
        ("time: 200ms", "time: 0s", 8, "prefill.points[1].time: got '0s'; expected more than zero"),
        ("time: 200ms", "time: 99ms", 8, "prefill.points[1].time: got 99ms at uncached 2000, less than 100ms at 1000"),
        ("uncached: 2000, time", "uncached: 1000, time", 8, "prefill.points[1]: a second row for the same point"),
        ("uncached: 1000, time", "uncached: 0, time", 7, "prefill.points[0].uncached: got 0; expected a whole number"),
        ("uncached: 1000, time", "tokens: 1000, time", 7, "prefill.points[0].tokens: unknown setting; expected one of"),
        (
            "batch: 8, context: 1000, time: 17ms",
            "batch: 8, context: 1000, time: 9ms",
            16,
            "decode.points[2].time: got 9ms",
        ),
        (
            "batch: 8, context: 1000, time: 17ms",
            "batch: 8, time: 17ms",
            16,
            "decode.points[2]: batch 8 has a row for any",
        ),
        ("basis: measured", "basis: guessed", 5, "prefill.basis: got 'guessed'; expected one of derived, "),
        ("date: 2026-05-01", "date: soon", 3, "date: "),
        ("source: a test\n", "", 1, "`source` is missing"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, old: str, new: str, line: int, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, GOOD.replace(old, new, 1))
    assert str(caught.value).startswith(f"{tmp_path / 'p.yaml'}:{line}: {what}")


def test_rows_to_begin_from_are_needed(tmp_path: Path) -> None:
    rows = "    - {uncached: 1000, time: 100ms}\n    - {uncached: 2000, time: 200ms}\n"
    with pytest.raises(ConfigError, match=r"6: prefill\.points: every row has cached tokens; expected rows without"):
        read(tmp_path, GOOD.replace(rows, ""))


def test_unknown_and_missing_profiles(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"profile 'h300': expected one of .*, paper-h20, paper-h200, or a path with a slash"
    ):
        load_profile("h300")
    with pytest.raises(ConfigError, match="no such file; expected a profile"):
        load_profile(str(tmp_path / "none.yaml"))
