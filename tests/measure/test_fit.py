"""Samples to a profile: medians, held-out repeats, no falling, contexts made the same."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prfaas.core.errors import LocalError
from prfaas.measure.fit import Fit, fit_decode, fit_prefill, profile_of_samples
from prfaas.measure.samples import Sample
from prfaas.model.profilefile import contradictions, profile_of

MS = 1_000_000


def prefill(x: int, *ms: float, y: int = 0, of: int | None = None, over: int = 0) -> list[Sample]:
    return [Sample("prefill", x, y, at, of or x, over, round(one * MS)) for at, one in enumerate(ms)]


def decode(batch: int, context: int, *ms: float, over: int | None = None) -> list[Sample]:
    return [Sample("decode", batch, context, at, batch, over or context, round(one * MS)) for at, one in enumerate(ms)]


def test_the_last_repeat_is_held_out() -> None:
    fit = fit_prefill(prefill(1024, 100, 104, 102, 112.2) + prefill(2048, 200, 200, 200, 190))
    assert fit.points == {(0, 1024): 102 * MS, (0, 2048): 200 * MS}
    assert fit.errors == pytest.approx((0.1, 0.05))
    assert fit.moved == ()
    assert fit.text() == "held-out repeats are off by 7.5% (median), 10.0% (most); no point had to be moved"


def test_one_repeat_is_better_than_none() -> None:
    fit = fit_prefill(prefill(1024, 100))
    assert fit.points == {(0, 1024): 100 * MS}
    assert fit.text() == "no repeats to test the fit; no point had to be moved"


def test_what_falls_is_pooled_and_said() -> None:
    fit = fit_prefill(prefill(1024, 110, 110) + prefill(2048, 90, 90) + prefill(4096, 300, 300))
    assert fit.points == {(0, 1024): 100 * MS, (0, 2048): 100 * MS, (0, 4096): 300 * MS}
    assert max(fit.moved) == pytest.approx(10 / 90)
    assert "points moved so as not to fall: by up to 11.1%" in fit.text()


def test_what_interpolation_is_worth() -> None:
    fit = fit_prefill(prefill(1000, 100) + prefill(2000, 250) + prefill(3000, 300))
    assert fit.between == pytest.approx((50 / 250,))


def test_tokens_are_as_the_endpoint_counted() -> None:
    samples = prefill(1024, 100, 100, of=1030) + prefill(512, 60, 60, y=8192, of=520, over=8176)
    assert fit_prefill(samples).points == {(0, 1030): 100 * MS, (8176, 520): 60 * MS}


def test_a_first_token_that_is_always_cached_is_no_prefix() -> None:
    assert fit_prefill(prefill(1024, 100, 100, of=1024, over=1)).points == {(0, 1024): 100 * MS}


def test_contexts_are_made_the_same() -> None:
    """A batch of 4 was 100 tokens longer in finding each other; its own slope says what that cost."""
    samples = decode(1, 1000, 10, over=1000) + decode(4, 1000, 21, over=1100)
    samples += decode(1, 9000, 18, over=9000) + decode(4, 9000, 100, over=9000)
    fit = fit_decode(samples)
    assert list(fit.points) == [(1, 1050), (1, 9000), (4, 1050), (4, 9000)]
    assert fit.points[1, 1050] == 10_050_000
    assert fit.points[4, 1050] == pytest.approx(21 * MS - 50 * (79 / 7900) * MS, abs=1000)


def test_one_context_is_as_it_is() -> None:
    assert fit_decode(decode(1, 1000, 10, over=1000) + decode(4, 1000, 21, over=1100)).points == {
        (1, 1050): 10 * MS,
        (4, 1050): 21 * MS,
    }


def samples_of(times: dict[tuple[int, int], list[int]]) -> list[Sample]:
    return [
        Sample("decode", batch, context, at, batch, context + batch, ns * 1000)
        for (batch, context), some in times.items()
        for at, ns in enumerate(some)
    ]


@given(
    st.dictionaries(
        st.tuples(st.sampled_from([1, 2, 4, 8]), st.sampled_from([100, 1000, 8000])),
        st.lists(st.integers(1, 10**6), min_size=1, max_size=4),
        min_size=1,
    )
)
def test_whatever_was_measured_makes_a_good_file(times: dict[tuple[int, int], list[int]]) -> None:
    samples = samples_of(times) + [
        Sample("prefill", batch * 100, 0, 0, batch * 100, 0, some[0] * 1000) for (batch, _), some in times.items()
    ]
    said, _, _ = profile_of_samples(samples, "x", "y", date(2026, 5, 1))
    assert list(contradictions(said)) == []
    profile_of(said)


def test_the_file() -> None:
    samples = prefill(1024, 100, 101) + prefill(512, 60, 60, y=8192, over=8192) + decode(1, 1000, 10, 10)
    said, prefills, decodes = profile_of_samples(samples, "mine", "http://h/v1", date(2026, 5, 1))
    assert isinstance(prefills, Fit)
    assert isinstance(decodes, Fit)
    assert (said.name, said.source, said.date) == ("mine", "http://h/v1", date(2026, 5, 1))
    assert (said.prefill.basis, said.decode.basis) == ("measured", "measured")
    assert said.prefill.note.startswith("Time to the first token at the client. Held-out repeats are off by ")
    assert profile_of(said).prefill_ns(512, 512 + 8192) == 60 * MS


@pytest.mark.parametrize("samples", [prefill(1024, 100), decode(1, 1000, 10)])
def test_half_a_profile_is_none(samples: list[Sample]) -> None:
    with pytest.raises(LocalError, match="was measured; expected at least one point of it"):
        profile_of_samples(samples, "x", "y", date(2026, 5, 1))
