"""A scripted world for the router: the same script under any driver gives the same decision log.

It knows how long legs take and when they fail; it does not know which driver asks. Whatever a leg answers comes
back as an event after a fixed delay, so the log depends on the machine alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from prfaas.core.ids import ClusterName, LinkName, NodeName, RequestId
from prfaas.core.routing.effects import (
    AskCredit,
    CancelDecode,
    CancelPrefill,
    Decided,
    Ended,
    Refuse,
    Relay,
    ReleaseCredit,
    RequestEffect,
    StartDecode,
    StartPrefill,
)
from prfaas.core.routing.events import (
    Answered,
    Arrived,
    ClientGone,
    CreditGranted,
    FirstToken,
    LegFailed,
    PrefillBound,
    PrefillDone,
    PrefillQueued,
)
from prfaas.core.routing.request import Life
from prfaas.core.routing.router import Router, RouterEvent, RouterPolicy
from prfaas.core.routing.threshold import Threshold
from prfaas.core.routing.view import DecodeSeen, Source, SourceSeen

HOME, FAR = ClusterName("home"), ClusterName("far")
MS = 1_000_000


class Driving(Protocol):
    """What the world needs of a driver: both drivers have it."""

    def post(self, event: RouterEvent) -> None:
        """`event` happens now."""

    def later(self, delay_ns: int, event: RouterEvent, rank: int = 0) -> None:
        """`event` happens `delay_ns` from now."""


@dataclass(frozen=True, slots=True)
class Step:
    """At `at_ns` from the start, `event` happens."""

    at_ns: int
    event: RouterEvent


@dataclass(slots=True)
class World:
    """Answers effects on a script. `broken`: (request, attempt, leg) -> code, of legs that fail."""

    broken: dict[tuple[str, int, str], str]
    silent: frozenset[tuple[str, int, str]] = frozenset()
    log: list[tuple[int, RequestEffect]] = field(default_factory=list)
    cancelled: set[tuple[str, int, str]] = field(default_factory=set)

    def perform(self, driver: Driving) -> Callable[[int, RequestEffect], None]:
        """The effect handler for `driver`: logs everything, answers as scripted."""

        def act(now_ns: int, effect: RequestEffect) -> None:
            self.log.append((now_ns, effect))
            self._answer(driver, effect)

        return act

    def decisions(self) -> list[Decided]:
        """The decision log."""
        return [effect for _, effect in self.log if isinstance(effect, Decided)]

    def _answer(self, driver: Driving, effect: RequestEffect) -> None:
        match effect:
            case AskCredit(request, attempt):
                self._leg(driver, request, attempt, "credit", [(1, CreditGranted(request, attempt, "d0"))])
            case StartPrefill(request, attempt):
                steps: list[tuple[int, RouterEvent]] = [
                    (1, PrefillQueued(request, attempt, 0)),
                    (2, PrefillBound(request, attempt, "p0")),
                    (40, PrefillDone(request, attempt)),
                ]
                self._leg(driver, request, attempt, "prefill", steps)
            case StartDecode(request, attempt):
                self._leg(
                    driver,
                    request,
                    attempt,
                    "decode",
                    [(40, FirstToken(request, attempt)), (90, Answered(request, attempt))],
                )
            case CancelPrefill(request, attempt):
                self.cancelled.add((request, attempt, "prefill"))
            case CancelDecode(request, attempt):
                self.cancelled.add((request, attempt, "decode"))
            case ReleaseCredit(request, attempt):
                self.cancelled.add((request, attempt, "credit"))
            case Decided() | Relay() | Refuse() | Ended():
                pass

    def _leg(
        self, driver: Driving, request: RequestId, attempt: int, leg: str, steps: Sequence[tuple[int, RouterEvent]]
    ) -> None:
        if (request, attempt, leg) in self.silent:
            return
        code = self.broken.get((request, attempt, leg))
        if code is not None:
            first = steps[:2] if leg == "prefill" else []
            for delay, event in first:
                driver.later(delay * MS, event)
            driver.later(20 * MS, LegFailed(request, attempt, leg, code, f"scripted: {code}"))
            return
        for delay, event in steps:
            driver.later(delay * MS, event)


def router(threshold: int = 1000, whole_limit: int = 8000, kind: str = "threshold", remainder: int = 0) -> Router:
    """A router of one PD cluster `home` and one PrfaaS cluster `far`, by policy `kind`."""
    sources = (Source(FAR, LinkName("far->home"), False, 10**9, 20 * MS), Source(HOME, LinkName("home->home"), True))
    return Router(HOME, sources, RouterPolicy(Threshold(threshold), whole_limit, 4, kind, remainder=remainder))


def world_up() -> list[RouterEvent]:
    """Reports that make everything ready: one prefill node in each cluster, decode nodes d0 and d1."""
    return [
        SourceSeen(FAR, 1, 0, 0, 100_000),
        SourceSeen(HOME, 1, 0, 0, 100_000),
        DecodeSeen(NodeName("d0"), True, 0, 100_000),
        DecodeSeen(NodeName("d1"), True, 0, 100_000),
    ]


def busy_minute() -> tuple[list[Step], World]:
    """Forty requests, long and short, over one minute, with equal arrival times, failures, leavers and an outage."""
    steps = [Step(0, event) for event in world_up()]
    for i in range(40):
        request, at = RequestId(f"r{i:02}"), (i // 2) * 3000 * MS
        tokens = [1, 64, 999, 1000, 1001, 5000, 20_000][i % 7]
        deadline = at + (15 if i == 22 else 30_000) * MS
        steps.append(Step(at, Arrived(request, tokens, deadline)))
        if i % 9 == 5:
            steps.append(Step(at + 30 * MS, ClientGone(request)))
    steps.append(Step(20_000 * MS, SourceSeen(FAR, 0, 0, 0, 0, "unreachable")))
    steps.append(Step(35_000 * MS, SourceSeen(FAR, 2, 3, 2, 100_000)))
    broken = {
        ("r04", 1, "prefill"): "node_lost",
        ("r11", 1, "decode"): "kv_transfer_failed",
        ("r11", 2, "prefill"): "node_lost",
        ("r12", 1, "credit"): "landing_buffer_exceeded",
        ("r26", 1, "decode"): "engine_failed",
        ("r33", 1, "decode"): "kv_transfer_failed",
    }
    silent = frozenset({("r32", 1, "credit"), ("r39", 1, "decode")})
    return steps, World(broken, silent)


__all__ = ["FAR", "HOME", "MS", "Driving", "Life", "Step", "World", "busy_minute", "router", "world_up"]
