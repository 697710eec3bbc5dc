"""The threshold follows the measured lengths and the link, slowly, and not for little."""

from __future__ import annotations

import random

from prfaas.core.balance.effects import Retuned
from prfaas.core.balance.events import Look
from prfaas.core.balance.measured import MINUTE_NS, Measured
from prfaas.core.balance.outlook import Outlook
from prfaas.core.balance.tuner import TunePolicy, Tuner
from prfaas.core.machine import Arm

from .rig import HARDWARE, LINK_BPS, REMOTES, names

AGAIN = Arm("tune", 6 * MINUTE_NS, Look())


def seen(mean: int = 20_000, count: int = 1000) -> Measured:
    measured, chance = Measured((LINK_BPS,), 1000.0), random.Random(2)
    for at in range(count):
        tokens = 1 + int(chance.expovariate(1 / mean))
        measured.arrived(at * MINUTE_NS // count, tokens, tokens)
    return measured


def tuned(measured: Measured, threshold: int, policy: TunePolicy | None = None) -> Tuner:
    tuner = Tuner(policy or TunePolicy(), HARDWARE, measured, threshold)
    tuner.handle(MINUTE_NS, names(3, 5))
    return tuner


def test_it_takes_the_best_threshold_and_says_what_it_is_worth() -> None:
    measured = seen()
    tuner = Tuner(TunePolicy(), HARDWARE, measured, 1000)
    said, again = tuner.handle(MINUTE_NS, names(3, 5))
    assert again == AGAIN
    assert isinstance(said, Retuned)
    traffic = measured.traffic(MINUTE_NS)
    assert traffic is not None
    outlook = Outlook(traffic, HARDWARE, 8, REMOTES)
    assert said.tokens == tuner.threshold == outlook.threshold(3)
    assert said.before == 1000
    assert said.rate_rps == outlook.prefill(3) > said.before_rps * 1.02
    tuner.validate()


def test_what_is_good_enough_stays() -> None:
    measured = seen()
    best = tuned(measured, 1000).threshold
    near = round(best * 1.02)
    assert tuned(measured, near, TunePolicy(margin=0.05)).threshold == near


def test_equal_lists_are_no_reason_to_look() -> None:
    tuner = tuned(seen(), 1000)
    assert tuner.handle(MINUTE_NS, names(3, 5)) == []
    assert tuner.handle(MINUTE_NS, names(4, 4)) != []


def test_more_nodes_at_home_raise_it_and_a_thin_link_too() -> None:
    measured = seen()
    tuner = tuned(measured, 1000)
    before = tuner.threshold
    tuner.handle(MINUTE_NS, names(5, 3))
    assert tuner.threshold > before
    tuner.handle(MINUTE_NS, names(3, 5))
    assert tuner.threshold == before
    measured.carried(60 * MINUTE_NS, 0, 0.0)
    measured.carried(61 * MINUTE_NS, 0, 0.0)
    for _ in range(300):
        measured.arrived(61 * MINUTE_NS, 20_000, 20_000)
        measured.arrived(61 * MINUTE_NS, 90_000, 90_000)
    measured.carried(600 * MINUTE_NS, 0, 1e9)
    tuner.handle(61 * MINUTE_NS, Look())
    assert tuner.threshold > before


def test_few_requests_or_nobody_there_change_nothing() -> None:
    assert tuned(seen(count=199), 1000).threshold == 1000
    assert Tuner(TunePolicy(), HARDWARE, seen(), 1000).handle(MINUTE_NS, Look()) == []
