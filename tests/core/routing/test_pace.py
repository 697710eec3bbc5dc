"""How long prefills take, learned: near the truth in spite of outliers, unknown while there is too little."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prfaas.core.routing.pace import KEPT, LEAST, REACH, Pace

MS = 10**6


def told(samples: list[tuple[int, int]]) -> Pace:
    pace = Pace()
    for tokens, took_ns in samples:
        pace.finished(tokens, took_ns)
    return pace


def at(pace: Pace, tokens: int) -> int:
    assert pace.curve is not None
    found = pace.curve.at(tokens)
    assert found is not None
    return found


@given(
    st.floats(0, 1e8),
    st.floats(1, 1e5),
    st.floats(0, 1.0),
    st.integers(0, 2**30),
    st.lists(st.sampled_from([1.0, 3.0, 8.0]), min_size=5 * 7, max_size=5 * 7),
)
def test_it_finds_the_formula_through_outliers(a: float, b: float, c: float, seed: int, slow: list[float]) -> None:
    """Less than half of each octave's samples may be anything slower. Samples are told by what a token took, at the
    octave's median length, so a fixed cost is taken for up to twice itself where outliers leave only short ones."""
    chance = Random(seed)
    samples = []
    for octave in range(5):
        factors = sorted(slow[7 * octave : 7 * octave + 3]) + [1.0] * 4
        for factor in factors:
            tokens = chance.randint(2 ** (octave + 9), 2 ** (octave + 10) - 1)
            samples.append((tokens, round((a + b * tokens + c * tokens**2) * factor)))
    chance.shuffle(samples)
    pace = told(samples)
    for tokens in (1024, 3000, 8192):
        true = a + b * tokens + c * tokens**2
        assert true / 2 - 1000 <= at(pace, tokens) <= 2 * true + 1000
    clean = told([(tokens, round(a + b * tokens + c * tokens**2)) for tokens, _ in samples])
    for tokens in (1024, 3000, 8192):
        assert at(clean, tokens) == pytest.approx(a + b * tokens + c * tokens**2, rel=0.1, abs=1000)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**12)), max_size=60))
def test_whatever_it_is_told_the_table_is_one(samples: list[tuple[int, int]]) -> None:
    curve = told(samples).curve  # Curve checks itself
    if curve is not None:
        assert curve.points[0][1] >= 1
        assert curve.points[-1][0] > curve.points[0][0]


def test_unknown_until_a_few_samples_over_a_range_of_lengths() -> None:
    pace = told([(1000, 10 * MS)] * 40)
    assert pace.curve is None, "one length says nothing about others"
    for _ in range(LEAST - 1):
        pace.finished(1500, 15 * MS)
    pace.finished(8000, 80 * MS)
    pace.finished(8000, 80 * MS)
    assert pace.curve is None, "two samples, of which one may be anything"
    pace.finished(8000, 80 * MS)
    assert at(pace, 4000) == pytest.approx(40 * MS, rel=0.01)


def test_it_reaches_some_way_beyond_what_it_saw_and_no_further() -> None:
    curve = told([(n, 10 * n) for n in [1000] * 3 + [5000] * 3]).curve
    assert curve is not None
    assert curve.points[0][0] == pytest.approx(1000 / REACH, abs=1)
    assert curve.at(1000 // REACH - 2) is None
    assert curve.at(5000 * REACH) == pytest.approx(50_000 * REACH, rel=0.01)
    assert curve.at(5000 * REACH * 2) is None


def test_what_was_long_ago_is_forgotten() -> None:
    pace = told([(n, 10 * n) for n in [1000] * 5 + [8000] * 5])
    assert at(pace, 1000) == pytest.approx(10_000, rel=0.01)
    for n in (1000, 8000):
        for _ in range(KEPT):
            pace.finished(n, 20 * n)
    assert at(pace, 1000) == pytest.approx(20_000, rel=0.01)
