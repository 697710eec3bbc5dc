"""Equations 1 to 8, one by one, against published figures and against trying everything."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prfaas.core.throughput.equations import (
    balanced_threshold,
    decode_rate,
    egress_bps,
    kv_throughput_bps,
    lambda_max,
    prefill_nodes,
    theta_pd_d,
    theta_pd_p,
    theta_prfaas,
)

MIB = 2**20
TABLE_5 = [(190.8, 0.44, 3.61), (308.9, 0.72, 3.59), (701.3, 1.84, 3.19), (2316.3, 7.40, 2.62)]


@pytest.mark.parametrize(("mib", "seconds", "gbps"), TABLE_5)
def test_equation_1_gives_table_5(mib: float, seconds: float, gbps: float) -> None:
    assert kv_throughput_bps(mib * MIB, seconds) / 1e9 == pytest.approx(gbps, rel=0.015)


def test_equation_2_gives_what_512_h200_send() -> None:
    """Section 2: MiniMax-M2.5 at 59.93 Gbps an instance of 8: 3.8 Tbps."""
    assert egress_bps(512 / 8, 59.93e9 / 8, 1.0) == pytest.approx(3.8e12, rel=0.02)


def test_equation_3_is_the_lesser_of_computing_and_link() -> None:
    assert theta_prfaas(4, 2.5, 1e12, 1e9) == 4 / 2.5
    assert theta_prfaas(4, 2.5, 8e9, 1e9) == 1.0


def test_equations_4_to_6_give_the_papers_table_6() -> None:
    """With the published p and times that follow from its Thetas."""
    each = decode_rate(20, 0.025, 1024)
    pd_d = theta_pd_d(5, each)
    assert each == pytest.approx(0.781, abs=0.001)
    assert pd_d == pytest.approx(3.91, abs=0.005)
    pd_p = theta_pd_p(3, 1.83)
    assert pd_p == pytest.approx(1.64, abs=0.005)
    assert lambda_max(0.496, 1.61, pd_p, pd_d) == pytest.approx(3.24, abs=0.015)


def test_a_class_without_requests_never_binds() -> None:
    assert lambda_max(0.0, 0.0, 2.0, 3.0) == 2.0
    assert lambda_max(1.0, 2.5, 0.0, 3.0) == 2.5
    assert lambda_max(0.0, 0.0, inf, 3.0) == 3.0


@given(st.integers(1, 60), st.floats(0.01, 50), st.floats(0.01, 50))
def test_equation_8_in_whole_nodes_is_the_best_of_all(nodes: int, prefill: float, decode: float) -> None:
    found = prefill_nodes(nodes, prefill, decode)

    def rate(n: int) -> float:
        return min(n * prefill, (nodes - n) * decode)

    assert 0 <= found < nodes
    assert rate(found) == max(rate(n) for n in range(nodes))


def test_no_prefill_needs_no_nodes() -> None:
    assert prefill_nodes(8, inf, 0.5) == 0


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9)), min_size=1, max_size=40))
def test_equation_7_by_bisection_is_the_best_of_all(pairs: list[tuple[float, float]]) -> None:
    rising = sorted(a for a, _ in pairs)
    falling = sorted((b for _, b in pairs), reverse=True)
    assert all(a <= b for a, b in pairwise(rising))
    at = balanced_threshold(len(pairs), rising.__getitem__, falling.__getitem__)
    least = [min(a, b) for a, b in zip(rising, falling, strict=True)]
    assert least[at] == max(least)
