"""Random lives: whatever legs do, in whatever order, each request ends once and leaves nothing open.

By any policy, whatever heads report meanwhile of our jobs and of those of others: backlogs and lives agree after each
event, and when all requests have ended the backlogs have only what others are said to have.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prfaas.core.ids import NodeName, RequestId, TransferId
from prfaas.core.machine import Arm, Disarm
from prfaas.core.routing.cached import Cached
from prfaas.core.routing.catalog import NAMES
from prfaas.core.routing.curve import Curve
from prfaas.core.routing.effects import (
    AskCredit,
    CancelDecode,
    CancelPrefill,
    Decided,
    Ended,
    Refuse,
    Relay,
    ReleaseCredit,
    StartDecode,
    StartPrefill,
)
from prfaas.core.routing.events import (
    Answered,
    Arrived,
    ClientGone,
    CreditGranted,
    DeadlinePassed,
    FirstToken,
    LegFailed,
    PrefillBound,
    PrefillDone,
    PrefillQueued,
)
from prfaas.core.routing.router import Router, RouterEvent
from prfaas.core.routing.view import DecodeLost, DecodeSeen, JobSeen, SourceSeen
from prfaas.testing.scenario import FAR, HOME, router, world_up

CURVES = [None, Curve([(1, 10), (20_000, 200_000)]), Curve([(500, 1), (2000, 10**9)])]
FAILURES = ["node_lost", "kv_transfer_failed", "landing_buffer_exceeded", "engine_failed", "unreachable"]


REMAINDER = 512
LENGTHS = st.sampled_from([0, 512, 960, 4544, 4992])
CACHED = st.builds(
    Cached,
    clusters=st.dictionaries(st.sampled_from([HOME, FAR]), LENGTHS),
    decoders=st.dictionaries(st.sampled_from([NodeName("d0"), NodeName("d1"), NodeName("d2")]), LENGTHS),
)


class Books:
    """What the effects opened and what closed it again."""

    def __init__(self, machine: Router) -> None:
        self.machine = machine
        self.now = 0
        self.credit: set[tuple[str, int]] = set()
        self.asked: set[tuple[str, int]] = set()
        self.prefill: dict[tuple[str, int], str] = {}
        self.decode: dict[tuple[str, int], str] = {}
        self.answers: dict[str, list[str]] = {}
        self.armed: set[object] = set()
        self.held: set[tuple[str, str]] = set()

    def post(self, event: RouterEvent) -> None:
        self.now += 1
        for effect in self.machine.handle(self.now, event):
            self.book(effect)
        self.machine.validate()
        assert all(count > 0 for count in self.machine.view.assigned.values())

    def book(self, effect: object) -> None:
        match effect:
            case Arm(key):
                self.armed.add(key)
            case Disarm(key):
                self.armed.discard(key)
            case Decided(reason="held"):
                assert effect.tokens - effect.cached <= min(REMAINDER, effect.cached)
                assert effect.node in self.machine.view.decoders
                assert (effect.request, effect.node) not in self.held, "it failed there before"
                self.held.add((effect.request, effect.node))
            case AskCredit(request, attempt):
                self.credit.add((request, attempt))
                self.asked.add((request, attempt))
            case ReleaseCredit(request, attempt):
                self.credit.remove((request, attempt))
                self.asked.discard((request, attempt))
            case StartPrefill(request, attempt):
                assert (request, attempt) in self.credit, "a prefill was asked for without landing credit"
                self.prefill[request, attempt] = "asked"
            case StartDecode(request, attempt, handover=handover):
                assert handover == ((request, attempt) in self.credit)
                self.decode[request, attempt] = "started"
            case CancelPrefill(request, attempt):
                del self.prefill[request, attempt]
            case CancelDecode(request, attempt):
                del self.decode[request, attempt]
            case Relay(request):
                self.answers.setdefault(request, []).append("relay")
            case Refuse(request):
                assert "relay" not in self.answers.get(request, []), "an error after tokens were shown"
                self.answers.setdefault(request, []).append("refuse")
            case Ended(request, _, outcome):
                self.answers.setdefault(request, []).append(outcome)

    def news(self, draw: st.DrawFn) -> None:
        """One thing that may happen next, given what is open."""
        options: list[RouterEvent] = []
        for request, attempt in sorted(self.asked):
            options += [
                CreditGranted(RequestId(request), attempt, "d0", draw(st.sampled_from([0, 4096]))),
                LegFailed(RequestId(request), attempt, "credit", draw(st.sampled_from(FAILURES)), ""),
            ]
        for (request, attempt), state in sorted(self.prefill.items()):
            if state == "asked":
                options += [
                    PrefillQueued(RequestId(request), attempt, 3),
                    PrefillBound(RequestId(request), attempt, "p"),
                ]
            else:
                options.append(PrefillDone(RequestId(request), attempt))
            options.append(LegFailed(RequestId(request), attempt, "prefill", draw(st.sampled_from(FAILURES)), ""))
        for (request, attempt), state in sorted(self.decode.items()):
            if state == "started":
                options.append(FirstToken(RequestId(request), attempt))
            else:
                options.append(Answered(RequestId(request), attempt))
            fatal = draw(st.booleans())
            options.append(LegFailed(RequestId(request), attempt, "decode", draw(st.sampled_from(FAILURES)), "", fatal))
        for request in sorted(self.machine.requests):
            options += [ClientGone(request), DeadlinePassed(request)]
        options += [
            self.report(draw),
            DecodeSeen(NodeName(draw(st.sampled_from(["d0", "d1"]))), draw(st.booleans()), 0, 9000),
            DecodeLost(
                NodeName(draw(st.sampled_from(["d0", "d1"]))),
                draw(st.none() | st.integers(max(0, self.now - 5), self.now)),
                "restarted",
            ),
        ]
        self.happen(draw(st.sampled_from(options)))

    def report(self, draw: st.DrawFn) -> SourceSeen:
        """What a head may say: of ours, whatever has become of them, and of others'."""
        names = [*(f"r{i}.{attempt}" for i in range(4) for attempt in (1, 2)), "other.1", "other.2", "other.3"]
        listed = draw(st.lists(st.sampled_from(names), unique=True, max_size=6))
        jobs = [JobSeen(TransferId(name), draw(st.integers(1, 9000)), draw(st.integers(0, 50))) for name in listed]
        cut, more, running = (draw(st.integers(0, most)) for most in (len(jobs), 3, 3))
        return SourceSeen(
            draw(st.sampled_from([FAR, HOME])),
            draw(st.integers(0, 2)),
            cut + more,
            len(jobs) - cut + running,
            9000,
            queue=tuple(jobs[:cut]),
            busy=tuple(jobs[cut:]),
            rest_waiting=more * 700,
            rest_running=running * 700,
            curve=draw(st.sampled_from(CURVES)),
        )

    def happen(self, event: RouterEvent) -> None:
        """Book what the leg itself did, then tell the machine."""
        match event:
            case CreditGranted(request, attempt):
                self.asked.discard((request, attempt))
            case PrefillBound(request, attempt):
                self.prefill[request, attempt] = "bound"
            case PrefillDone(request, attempt):
                del self.prefill[request, attempt]
            case FirstToken(request, attempt):
                self.decode[request, attempt] = "answering"
                self.credit.discard((request, attempt))
            case Answered(request, attempt):
                del self.decode[request, attempt]
            case LegFailed(request, attempt, leg):
                legs = {"prefill": self.prefill, "decode": self.decode}.get(leg)
                if legs is not None:
                    del legs[request, attempt]
        self.post(event)


@pytest.mark.slow
@given(st.data())
def test_every_life_ends_once_and_leaves_nothing_open(data: st.DataObject) -> None:
    draw = data.draw
    books = Books(router(kind=draw(st.sampled_from(NAMES)), remainder=draw(st.sampled_from([0, REMAINDER]))))
    for event in world_up():
        books.post(event)
    for cluster in (FAR, HOME):
        books.post(SourceSeen(cluster, 1, 0, 0, 9000, curve=draw(st.sampled_from(CURVES))))
    sizes = draw(st.lists(st.sampled_from([1, 2, 1000, 1001, 5000, 9001]), min_size=1, max_size=4))
    for i, tokens in enumerate(sizes):
        books.post(Arrived(RequestId(f"r{i}"), tokens, 10**12, "", draw(CACHED)))

    @st.composite
    def step(draw_step: st.DrawFn) -> None:
        books.news(draw_step)

    for _ in range(draw(st.integers(0, 40))):
        draw(step())
    for request in sorted(books.machine.requests):
        books.post(DeadlinePassed(request))
    assert not books.machine.requests
    for cluster in (FAR, HOME):
        books.post(SourceSeen(cluster, 1, 0, 0, 9000))
    for backlog in books.machine.backlogs:
        assert (len(backlog), backlog.ends, backlog.work_ns) == (0, [], 0)
        assert all((link.queued_bytes, link.unsent_bytes) == (0, 0) for link in backlog.links.values())
    assert (books.credit, books.prefill, books.decode, books.armed) == (set(), {}, {}, set())
    for i in range(len(sizes)):
        said = books.answers[f"r{i}"]
        assert said[-1] in ("ok", "refused", "gone", "broken")
        assert len([s for s in said if s not in ("relay", "refuse")]) == 1
        assert said.count("refuse") <= 1
