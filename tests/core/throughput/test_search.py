"""The best threshold and nodes: equal to trying everything, and never worse for a node or a wider link more."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from prfaas.core.errors import InvariantError
from prfaas.core.throughput.lengths import histogram
from prfaas.core.throughput.search import Search, Shape, whole_nodes
from prfaas.core.throughput.site import Site
from prfaas.core.throughput.split import Formulas, Splits
from prfaas.core.throughput.spread import Anywhere, Away

from .small import BITS, brute_away, brute_rate, site_of, sites

FORMULAS = st.sampled_from(["paper", "exact"])


def best(site: Site, formulas: Formulas) -> Shape:
    return Search(site, Splits(site, formulas)).best()


@settings(max_examples=35, deadline=None)
@given(sites(remotes=1), FORMULAS)
def test_with_one_remote_it_equals_trying_everything(site: Site, formulas: Formulas) -> None:
    assert best(site, formulas).rate == pytest.approx(brute_rate(site, formulas), rel=1e-9)


@settings(max_examples=20, deadline=None)
@given(sites(remotes=3, homes=1), st.just("paper"))
def test_with_one_home_the_papers_formulas_equal_trying_everything(site: Site, formulas: Formulas) -> None:
    assert best(site, formulas).rate == pytest.approx(brute_rate(site, formulas), rel=1e-6)


@settings(max_examples=15, deadline=None)
@given(sites(remotes=2, homes=1, bins=3), FORMULAS)
def test_with_two_remotes_it_equals_trying_everything(site: Site, formulas: Formulas) -> None:
    assert best(site, formulas).rate == pytest.approx(brute_rate(site, formulas), rel=1e-6)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(sites(remotes=2, homes=2, bins=2), FORMULAS)
def test_two_by_two_equals_trying_everything(site: Site, formulas: Formulas) -> None:
    assert best(site, formulas).rate == pytest.approx(brute_rate(site, formulas), rel=1e-6)


@settings(max_examples=18, deadline=None)
@given(sites(remotes=1, homes=1), FORMULAS)
def test_the_closed_form_equals_the_linear_program(site: Site, formulas: Formulas) -> None:
    away = Away(site, Splits(site, formulas))
    for cut in range(len(site.lengths)):
        assert away.rate(cut) == pytest.approx(brute_away(site, cut, formulas), rel=1e-9)
        assert away._packed(cut).rate == pytest.approx(away.rate(cut), rel=1e-6)


@settings(max_examples=20, deadline=None)
@given(sites(), FORMULAS, st.data())
def test_a_node_more_is_never_less(site: Site, formulas: Formulas, data: st.DataObject) -> None:
    before = best(site, formulas).rate
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(site.remotes) - 1))
        remotes = [replace(one, nodes=one.nodes + (i == at)) for i, one in enumerate(site.remotes)]
        more = replace(site, remotes=tuple(remotes))
    else:
        at = data.draw(st.integers(0, len(site.homes) - 1))
        homes = [replace(one, nodes=one.nodes + (i == at)) for i, one in enumerate(site.homes)]
        more = replace(site, homes=tuple(homes))
    assert best(more, formulas).rate >= before * (1 - 1e-6)


@settings(max_examples=20, deadline=None)
@given(sites(), FORMULAS, st.floats(1, 10))
def test_a_wider_link_is_never_less(site: Site, formulas: Formulas, factor: float) -> None:
    assert best(site.with_links(factor), formulas).rate >= best(site, formulas).rate * (1 - 1e-6)


@settings(max_examples=18, deadline=None)
@given(sites(bins=5))
def test_nothing_exceeds_the_bound(site: Site) -> None:
    anywhere = Anywhere(site, Splits(site, "exact"), blind=False)
    bound, _ = whole_nodes(site, lambda n_p: anywhere.packed(n_p).rate)
    assert best(site, "exact").rate <= bound * (1 + 1e-6)


@settings(max_examples=18, deadline=None)
@given(sites(bins=4), st.booleans())
def test_whole_nodes_equals_trying_them_all(site: Site, blind: bool) -> None:
    anywhere = Anywhere(site, Splits(site, "exact"), blind=blind)

    def rate(n_p: tuple[int, ...]) -> float:
        decode = min((h.nodes - n) * h.decode_rate / h.share for h, n in zip(site.homes, n_p, strict=True))
        return min(anywhere.packed(n_p).rate, decode)

    every = max(rate(n_p) for n_p in product(*(range(home.nodes) for home in site.homes)))
    found, n_p = whole_nodes(site, lambda nodes: anywhere.packed(nodes).rate)
    assert found == pytest.approx(every, rel=1e-6)
    assert rate(n_p) == pytest.approx(found, rel=1e-6)


@settings(max_examples=18, deadline=None)
@given(sites(bins=5))
def test_the_spread_keeps_within_nodes_and_links(site: Site) -> None:
    search = Search(site, Splits(site, "exact"))
    shape = search.best()
    taken = search.away.taken(shape.cut)
    assume(taken.rate < 1e9)
    for k, remote in enumerate(site.remotes):
        busy = 0.0
        for home, rows in zip(site.homes, taken.shares, strict=True):
            goes = [home.share * w * part for w, part in zip(site.lengths.weights, rows[k], strict=True)]
            busy += taken.rate * sum(w * s for w, s in zip(goes, remote.prefill_s, strict=True))
            bits = taken.rate * BITS * sum(w * b for w, b in zip(goes, site.kv_bytes, strict=True))
            assert bits <= home.links_bps[k] * (1 + 1e-6)
        assert busy <= remote.nodes * (1 + 1e-6)
    for home, rows in zip(site.homes, taken.shares, strict=True):
        for at, parts in enumerate(zip(*rows, strict=True)):
            expected = 1.0 if home.linked and at >= shape.cut else 0.0
            assert sum(parts) == pytest.approx(expected, abs=1e-9)


@settings(max_examples=18, deadline=None)
@given(sites(remotes=2, homes=1), FORMULAS, st.data())
def test_of_given_nodes_the_threshold_is_the_best_of_all(site: Site, formulas: Formulas, data: st.DataObject) -> None:
    """What a live threshold asks, of measured lengths."""
    n_p = (data.draw(st.integers(0, site.homes[0].nodes - 1)),)
    search = Search(site, Splits(site, formulas))
    every = max(search.shape(cut, n_p).rate for cut in range(len(site.lengths) + 1))
    assert search.with_nodes(n_p).rate == pytest.approx(every, rel=1e-6)


@settings(max_examples=18, deadline=None)
@given(sites(), FORMULAS)
def test_the_best_nodes_are_the_best_of_all_each_with_its_own_threshold(site: Site, formulas: Formulas) -> None:
    """What a live balance asks: Lambda over N_p."""
    search = Search(site, Splits(site, formulas))
    every = max(search.with_nodes(n_p).rate for n_p in product(*(range(home.nodes) for home in site.homes)))
    assert search.best().rate == pytest.approx(every, rel=1e-6)


LENGTHS = histogram([(10, 4), (20, 3), (40, 2), (80, 1)])


def test_where_decode_is_the_limit_prefill_has_most_room() -> None:
    """Many thresholds do as well; eq. 7 is taken of the nodes that are left."""
    site = site_of(LENGTHS, [(2, 0.1, 0.01)], [(4, 0.1, 0.02, 0.05, [1e9])])
    search = Search(site, Splits(site, "exact"))
    shape = search.best()
    assert shape.rate == shape.decode
    room = [min(search.away.rate(cut), search.prefill(cut, shape.n_p)) for cut in range(5)]
    assert min(shape.remote, shape.prefill) == max(room)


def test_a_home_without_a_link_prefills_all_itself() -> None:
    site = site_of(LENGTHS, [(4, 0.1, 0.001)], [(6, 0.1, 0.02, 1.0, [1e6]), (6, 0.1, 0.02, 1.0, [0.0])])
    search = Search(site, Splits(site, "exact"))
    shape = search.best()
    assert not any(search.away.taken(shape.cut).shares[1][0])
    assert shape.n_p[1] > shape.n_p[0]


def test_a_thin_link_gets_what_weighs_least_for_its_work() -> None:
    """Two remotes that compute alike: of long prompts a second of prefill makes less KV here, so the thin link has
    them."""
    site = site_of(LENGTHS, [(2, 0.0, 0.01), (2, 0.0, 0.01)], [(9, 0.1, 0.5, 9.0, [1e6, 200.0])])
    search = Search(site, Splits(site, "exact"))
    wide, thin = search.away.taken(0).shares[0]
    mean = [
        sum(w * part * x for w, part, x in zip(LENGTHS.weights, row, LENGTHS.tokens, strict=True))
        / sum(w * part for w, part in zip(LENGTHS.weights, row, strict=True))
        for row in (wide, thin)
    ]
    assert mean[1] > mean[0]
    blind = Search(site, Splits(site, "paper")).away.rate(0)
    assert search.away.rate(0) > blind * 1.01


def test_sites_that_make_no_sense_are_refused() -> None:
    good = site_of(LENGTHS, [(1, 1.0, 0.0)], [(1, 1.0, 0.0, 1.0, [1.0])])
    with pytest.raises(InvariantError):
        replace(good, kv_bytes=(1.0,))
    with pytest.raises(InvariantError):
        replace(good, homes=(replace(good.homes[0], links_bps=()),))
    with pytest.raises(InvariantError):
        replace(good, homes=(replace(good.homes[0], share=0.5),))


@settings(max_examples=20, deadline=None)
@given(sites(), FORMULAS, st.data())
def test_the_part_of_links_in_the_limit_is_what_more_would_help(
    site: Site, formulas: Formulas, data: st.DataObject
) -> None:
    """All links a thousandth wider add that part of a thousandth, or less where something else is then in the way."""
    cut = data.draw(st.integers(0, len(site.lengths) - 1))
    away = Away(site, Splits(site, formulas))
    taken = away.taken(cut)
    assume(0 < taken.rate < 1e9)
    assert 0 <= taken.line <= 1 + 1e-9
    wider = site.with_links(1.001)
    gain = Away(wider, Splits(wider, formulas)).rate(cut) / taken.rate - 1
    assert -1e-6 <= gain <= 0.001 * taken.line + 1e-6
