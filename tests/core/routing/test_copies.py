"""When a longer prefix elsewhere is copied, and what stands against it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prfaas.core.ids import ClusterName, LinkName, NodeName, RequestId, TransferId
from prfaas.core.routing.cached import NOTHING, Cached
from prfaas.core.routing.chooser import Chooser
from prfaas.core.routing.copying import Copy
from prfaas.core.routing.curve import Curve
from prfaas.core.routing.effects import Decided
from prfaas.core.routing.events import Arrived, CreditGranted, LegFailed, PrefillBound, PrefillDone
from prfaas.core.routing.ledger import Ledger
from prfaas.core.routing.placement import Choice
from prfaas.core.routing.router import Router, RouterPolicy
from prfaas.core.routing.threshold import Threshold
from prfaas.core.routing.view import Back, DecodeSeen, Source, SourceSeen, View

HOME, FAR, OTHER = ClusterName("home"), ClusterName("far"), ClusterName("other")
CURVE = Curve([(1, 1_000), (100_000, 100_000_000)])
"""A microsecond a token; a token's KV is 2 bytes, and a link of 8 Gbit/s carries a byte in a nanosecond."""
LINK, BACK = LinkName("far->home"), LinkName("home->far")
R = RequestId("r")


def sources(back: bool = True) -> tuple[Source, ...]:
    return (
        Source(HOME, LinkName("home->home"), True),
        Source(FAR, LINK, False, 8 * 10**9, 5, Back(BACK, 8 * 10**9, 7) if back else None),
        Source(OTHER, LinkName("other->home"), False),
    )


def report(cluster: ClusterName, copies: bool = True, curve: Curve | None = CURVE) -> SourceSeen:
    return SourceSeen(cluster, 1, 0, 0, 100_000, curve=curve, nodes=1, copies=copies)


def ledger(back: bool = True, on: bool = True) -> Ledger:
    made = Ledger(sources(back), 0.0, on)
    for cluster in (HOME, FAR, OTHER):
        made.report(0, report(cluster))
    made.kv.seen(100, 200)
    made.kv.seen(1000, 2000)
    return made


def cached(**tokens: int) -> Cached:
    """So many tokens in each cluster, on a node of that name."""
    clusters = {ClusterName(name): count for name, count in tokens.items()}
    return Cached(clusters, lenders={name: NodeName(f"{name}-1") for name in clusters})


def copy(made: Ledger, at: int, what: Cached, now_ns: int = 0) -> Copy | None:
    made.priced(now_ns, R, 10_000, [True] * 3, what)
    return made.copy(now_ns, R, at)


def test_a_longer_prefix_is_copied_in_the_links_direction() -> None:
    made = ledger()
    wanted = Copy("copy", FAR, 6000, NodeName("far-1"), LINK, 8000, 8_000 + 5 + 4_000_000, 4_000_000)
    assert copy(made, 0, cached(home=2000, far=6000)) == wanted
    wanted = Copy("copy", HOME, 6000, NodeName("home-1"), BACK, 12_000, 12_000 + 7 + 4_000_000, 6_000_000)
    assert copy(made, 1, cached(home=6000)) == wanted


def test_prefill_takes_as_long_as_the_copy_and_the_rest() -> None:
    made = ledger()
    job = made.priced(0, R, 10_000, [True] * 3, cached(far=6000))
    assert job.prefill_ns == [12_000 + 5 + 4_000_000, 4_000_000, 10_000_000]
    assert job.uncached == [10_000, 4000, 10_000]
    made.report(1, replace(report(HOME), curve=Curve([(1, 2_000), (100_000, 200_000_000)])))
    assert made.priced(1, R, 10_000, [True] * 3, cached(far=6000)).prefill_ns[0] == 12_000 + 5 + 8_000_000


@pytest.mark.parametrize("what", [NOTHING, cached(home=6000), cached(home=6000, far=6000), cached(home=6000, far=64)])
def test_where_nobody_has_more_nothing_is_said(what: Cached) -> None:
    assert copy(ledger(), 0, what) is None


def test_what_stands_against_a_copy() -> None:
    found = Copy("no_link", HOME, 6000, NodeName("home-1"))
    assert copy(ledger(back=False), 1, cached(home=6000)) == found
    assert copy(ledger(), 2, cached(far=6000)) == Copy("no_link", FAR, 6000, NodeName("far-1")), "between others"
    assert copy(ledger(), 0, cached(other=6000)) == Copy("copy_unknown", OTHER, 6000, NodeName("other-1")), "its rate"
    assert copy(ledger(), 0, Cached({FAR: 6000})) == Copy("cannot_copy", FAR, 6000)
    assert copy(ledger(on=False), 0, cached(far=6000)) is None
    for cluster in (HOME, FAR):
        made = ledger()
        made.report(1, report(cluster, copies=False))
        assert copy(made, 0, cached(far=6000)) == Copy("cannot_copy", FAR, 6000, NodeName("far-1"))
    made = ledger()
    made.backlogs[1].links[0].carries(0, 1000)
    assert copy(made, 0, cached(far=6000), now_ns=10**9) == Copy("copy_slower", FAR, 6000, NodeName("far-1"))


def test_unknown_sizes_and_times() -> None:
    made = Ledger(sources(), 0.0)
    for cluster in (HOME, FAR):
        made.report(0, report(cluster))
    assert copy(made, 0, cached(far=6000)) == Copy("copy_unknown", FAR, 6000, NodeName("far-1"))
    assert made.priced(0, R, 10_000, [True] * 3, cached(far=6000)).lenders == ()
    made = Ledger(sources(), 0.0)
    made.report(0, report(HOME, curve=None))
    made.report(0, report(FAR))
    made.kv.seen(100, 200)
    made.kv.seen(1000, 2000)
    assert copy(made, 0, cached(far=6000)) == Copy("copy_unknown", FAR, 6000, NodeName("far-1"))


def test_of_several_one_that_can_be_copied() -> None:
    """Rather than a longer one that cannot."""
    found = copy(ledger(), 0, cached(far=5000, other=6000))
    assert found is not None
    assert (found.reason, found.cluster, found.tokens) == ("copy", FAR, 5000)


def test_a_loaded_link_is_scarce() -> None:
    """KV of a prefill that just ended crosses; while that takes more than a second, nothing is copied."""
    made = ledger()
    uplink = made.backlogs[1].links[0]
    made.kv.seen(100_000, 4 * 10**9)
    made.priced(0, RequestId("big"), 100_000, [True] * 3)
    made.follow(0, RequestId("big"), (TransferId("big.1"), FAR, True))
    assert uplink.unsent_bytes == 4 * 10**9
    assert copy(made, 0, cached(far=6000)) == Copy("link_busy", FAR, 6000, NodeName("far-1"))
    found = copy(made, 0, cached(far=6000), now_ns=3_500_000_000)
    assert found is not None
    assert found.reason != "link_busy"


def test_what_is_copied_is_on_its_link_until_the_prefill_ends() -> None:
    made = ledger()
    uplink = made.backlogs[1].links[0]
    for name in ("a", "b"):
        request = RequestId(name)
        made.priced(0, request, 10_000, [True] * 3, cached(far=6000))
        assert made.copy(0, request, 0) is not None
        made.follow(0, request, (TransferId(f"{name}.1"), HOME, False))
    assert uplink.unsent_bytes == 0
    made.follow(0, RequestId("a"), (TransferId("a.1"), HOME, True))
    assert uplink.unsent_bytes == 12_000
    made.follow(0, RequestId("b"), (TransferId("b.1"), HOME, True))
    assert uplink.unsent_bytes == 24_000
    stages = {RequestId(name): (TransferId(f"{name}.1"), HOME, True) for name in ("a", "b")}
    made.validate(stages)
    made.follow(1000, RequestId("a"), None)
    assert uplink.unsent_bytes == 12_000
    made.follow(20_000, RequestId("b"), None)
    assert uplink.unsent_bytes == 0
    made.forget(20_000, RequestId("a"))
    made.forget(20_000, RequestId("b"))
    made.validate({})


def choice(
    kind: str, what: Cached, back: bool = True, scarce: bool = False, busy: bool = False, **seen: bool
) -> Choice:
    """Of a policy with a threshold of 5,000 tokens."""
    chooser, view = Chooser(kind, Threshold(5_000), 0.0, 1 << 20, sources(back)), View(sources(back))
    for cluster in (HOME, FAR):
        said = report(cluster, copies=seen.get(cluster, True))
        view.seen[cluster] = said
        chooser.ledger.report(0, said)
    chooser.ledger.kv.seen(100, 200)
    chooser.ledger.kv.seen(1000, 2000)
    if scarce:
        chooser.ledger.backlogs[1].links[0].unsent_bytes = 0
        chooser.ledger.kv.seen(100_000, 4 * 10**9)
        chooser.ledger.priced(0, RequestId("big"), 100_000, [True] * 3)
        chooser.ledger.follow(0, RequestId("big"), (TransferId("big.1"), FAR, True))
    if busy:
        chooser.ledger.priced(0, RequestId("busy"), 90_000, [True] * 3)
        chooser.ledger.follow(0, RequestId("busy"), (TransferId("busy.1"), HOME, True))
    return chooser.choose(0, R, 10_000, view, set(), "", cached=what)


@pytest.mark.parametrize("kind", ["threshold", "paper"])
def test_plentiful_the_longer_prefix_counts_for_both(kind: str) -> None:
    """Section 6 of the paper: what is left after it decides, and it is copied."""
    found = choice(kind, cached(far=6000))
    assert found.source is not None
    assert (found.source.cluster, found.reason) == (HOME, "short")
    assert found.copy is not None
    assert (found.copy.reason, found.copy.cluster, found.copy.tokens) == ("copy", FAR, 6000)
    found = choice(kind, cached(far=4000))
    assert found.source is not None
    assert (found.source.cluster, found.reason, found.copy) == (FAR, "long", None)
    found = choice(kind, cached(home=4000, far=64))
    assert found.source is not None
    assert (found.source.cluster, found.reason) == (FAR, "long")
    assert found.copy is not None
    assert (found.copy.reason, found.copy.cluster, found.copy.tokens) == ("copy", HOME, 4000)


@pytest.mark.parametrize("kind", ["threshold", "paper"])
@pytest.mark.parametrize("how", [{"scarce": True}, {"far": False}, {"home": False}])
def test_scarce_or_impossible_each_cache_is_judged_alone(kind: str, how: dict[str, bool]) -> None:
    found = choice(kind, cached(far=6000), **how)
    assert found.source is not None
    assert (found.source.cluster, found.reason, found.copy) == (FAR, "long", None)


def test_ours_copies_where_it_places() -> None:
    found = choice("ours", cached(home=2000), busy=True)
    assert found.source is not None
    assert found.source.cluster == FAR
    assert found.copy is not None
    assert (found.copy.reason, found.copy.link) == ("copy", BACK)
    found = choice("ours", cached(home=2000), busy=True, back=False)
    assert found.copy is not None
    assert found.copy.reason == "no_link"


def test_an_idle_node_that_claims_a_prefill_copies_what_the_other_has() -> None:
    router = Router(HOME, sources(), RouterPolicy(Threshold(5_000), 1 << 20, 4, "ours"))
    for cluster in (HOME, FAR):
        router.handle(0, report(cluster))
    router.handle(0, DecodeSeen(NodeName("d"), True, 0, 1 << 20))
    router._ledger.kv.seen(100, 200)
    router._ledger.kv.seen(1000, 2000)

    def arrive(name: str, tokens: int, what: Cached, runs: bool) -> Decided:
        request = RequestId(name)
        (decided,) = [e for e in router.handle(1, Arrived(request, tokens, 10**12, "", what)) if isinstance(e, Decided)]
        router.handle(1, CreditGranted(request, 1, "d"))
        if runs:
            router.handle(1, PrefillBound(request, 1, "p"))
        return decided

    assert arrive("short", 4_000, NOTHING, runs=True).cluster == HOME
    assert arrive("long", 10_000, NOTHING, runs=True).cluster == FAR
    waits = arrive("waits", 10_000, cached(far=6000), runs=False)
    assert (waits.cluster, waits.copy) == (FAR, None)
    effects = router.handle(2, PrefillDone(RequestId("short"), 1))
    (moved,) = [effect for effect in effects if isinstance(effect, Decided)]
    assert (moved.request, moved.cluster, moved.reason) == ("waits", HOME, "claimed")
    assert moved.copy is not None
    assert (moved.copy.reason, moved.copy.cluster, moved.copy.tokens) == ("copy", FAR, 6000)
    router.validate()


@pytest.mark.parametrize("kind", ["threshold", "paper", "ours"])
def test_a_retry_copies_nothing_from_the_cluster_that_failed(kind: str) -> None:
    """Another one that has less may lend."""
    made = (*sources()[:2], replace(sources()[2], bandwidth_bps=8 * 10**9))
    for what, lender in ((cached(far=6000), None), (cached(far=6000, other=4000), OTHER)):
        router = Router(HOME, made, RouterPolicy(Threshold(3_000), 1 << 20, 4, kind))
        for cluster in (HOME, FAR):
            router.handle(0, report(cluster))
        router.handle(0, replace(report(OTHER), ready=0))
        router.handle(0, DecodeSeen(NodeName("d"), True, 0, 1 << 20))
        router._ledger.kv.seen(100, 200)
        router._ledger.kv.seen(1000, 2000)
        (first,) = [e for e in router.handle(1, Arrived(R, 10_000, 10**12, "", what)) if isinstance(e, Decided)]
        assert first.cluster == FAR
        router.handle(1, CreditGranted(R, 1, "d"))
        effects = router.handle(2, LegFailed(R, 1, "prefill", "unreachable", "gone"))
        (again,) = [effect for effect in effects if isinstance(effect, Decided)]
        assert (again.cluster, again.reason) == (HOME, "retry")
        assert (again.copy.cluster if again.copy is not None else None) == lender
        router.handle(3, report(HOME, curve=Curve([(1, 2_000), (100_000, 200_000_000)])))
        router.validate()
