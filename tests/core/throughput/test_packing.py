"""The linear program: equal to trying every vertex, and proved by its own bound."""

from __future__ import annotations

from itertools import product
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prfaas.core.throughput.packing import Group, Option, Packed, Packing

from .small import best_vertex

amounts = st.floats(0.05, 5.0)


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[Group], list[float]]:
    rows = draw(st.integers(1, 4))
    caps = draw(st.lists(st.floats(0.1, 10), min_size=rows, max_size=rows))
    groups = []
    for _ in range(draw(st.integers(1, 2))):
        classes = draw(st.integers(1, 3))
        weights = draw(st.lists(st.floats(0.05, 1), min_size=classes, max_size=classes))
        options = []
        for _ in range(draw(st.integers(1, 2))):
            used = draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=2, unique=True))
            table = st.lists(amounts, min_size=classes, max_size=classes)
            options.append(Option(tuple((row, draw(table)) for row in used)))
        groups.append(Group(weights, tuple(options)))
    return groups, caps


def loads_of(groups: list[Group], caps: list[float], picks: tuple[tuple[int, ...], ...]) -> list[float]:
    loads = [0.0] * len(caps)
    for group, chosen in zip(groups, picks, strict=True):
        for at, option in enumerate(chosen):
            for row, table in group.options[option].uses:
                loads[row] += group.weights[at] * table[at] / caps[row]
    return loads


@settings(max_examples=60, deadline=None)
@given(programs())
def test_it_equals_the_best_vertex_and_keeps_within_capacity(program: tuple[list[Group], list[float]]) -> None:
    groups, caps = program
    every = list(product(*(product(range(len(g.options)), repeat=len(g.weights)) for g in groups)))
    columns = sorted({tuple(loads_of(groups, caps, picks)) for picks in every})
    packed = Packing(groups).solve(caps)
    if len(columns) <= 12:
        assert packed.rate == pytest.approx(best_vertex([list(column) for column in columns]), rel=1e-6)
    assert packed.rate <= packed.bound <= packed.rate * (1 + 1e-6)
    used = [0.0] * len(caps)
    for rate, pattern in packed.mix:
        for row, load in enumerate(loads_of(groups, caps, tuple(tuple(p) for p in pattern))):
            used[row] += rate * load
    assert max(used) <= 1 + 1e-9
    assert sum(packed.worth) == pytest.approx(1)


@settings(max_examples=30, deadline=None)
@given(programs(), st.integers(0, 3), st.floats(1, 4))
def test_more_capacity_is_never_less(program: tuple[list[Group], list[float]], row: int, factor: float) -> None:
    groups, caps = program
    packing = Packing(groups)
    before = packing.solve(caps).rate
    more = [cap * factor if at == row else cap for at, cap in enumerate(caps)]
    assert packing.solve(more).rate >= before * (1 - 1e-6)


@settings(max_examples=30, deadline=None)
@given(programs(), st.sampled_from([1e-12, 1e-6, 1e9]))
def test_sizes_do_not_matter(program: tuple[list[Group], list[float]], size: float) -> None:
    groups, caps = program
    small = [Group([w * size for w in group.weights], group.options) for group in groups]
    before, after = Packing(groups).solve(caps), Packing(small).solve(caps)
    assert after.rate * size == pytest.approx(before.rate, rel=1e-6)
    assert after.bound <= after.rate * (1 + 1e-6)


def two_machines() -> list[Group]:
    """Two classes, two machines, each good at one."""
    return [Group([0.5, 0.5], (Option(((0, [1.0, 4.0]),)), Option(((1, [4.0, 1.0]),))))]


def test_comparative_advantage_decides() -> None:
    packed = Packing(two_machines()).solve([1.0, 1.0])
    assert packed.rate == pytest.approx(2.0)
    assert packed.shares(0, 2, 2) == [[pytest.approx(1), pytest.approx(0)], [pytest.approx(0), pytest.approx(1)]]


def test_without_a_machine_the_other_does_all() -> None:
    packed = Packing(two_machines()).solve([0.0, 1.0])
    assert packed.rate == pytest.approx(1 / 2.5)
    assert packed.shares(0, 2, 2)[0] == [0.0, 0.0]


def test_without_any_machine_nothing_is_done() -> None:
    assert Packing(two_machines()).solve([0.0, 0.0]) == Packed(0.0, 0.0, (), (0.0, 0.0))


def test_what_uses_nothing_has_no_limit() -> None:
    assert Packing([Group([1.0], (Option(((0, [0.0]),)),))]).solve([1.0]).rate == inf
