"""Faults on demand: what an emulated node does wrongly, where, and how often.

    start                the engine loads, before the node is ready
    prefill:start        a prefill was asked for
    prefill:chunk[:N]    before chunk N (from 0) of a prompt; without N, before each
    prefill:last_layer   all but the last layer of the last chunk has been handed over
    prefill:end          everything has been handed over
    landed               KV that arrived is about to be looked at
    decode:first         before the first token
    decode:token[:N]     before token N (from 0); without N, before each

It knows points, chance and what to do there (`config.topology.Fault`); the engine asks at each point. Chance is seeded,
one source a fault, drawn each time the point is passed.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

import structlog

from prfaas.config.topology import Fault

log = structlog.get_logger(__name__)

DIED = 86
"""Exit code of a process that was told to die."""


@dataclass(slots=True)
class Struck:
    """What happens at one point. `factor`: how much slower it goes from here on. `stall_ns`: None for ever."""

    factor: float = 1.0
    stall_ns: int | None = 0
    corrupt: bool = False
    wrong_token: bool = False
    fail: bool = False


NOTHING = Struck()


@dataclass(slots=True)
class _Armed:
    fault: Fault
    chance: random.Random = field(init=False)
    struck: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.fault.seed)

    def strikes(self, point: str) -> bool:
        fault = self.fault
        which, _, number = point.rpartition(":")
        if fault.at != point and not (fault.at == which and number.isdigit()):
            return False
        if fault.times is not None and self.struck >= fault.times:
            return False
        if self.chance.random() >= fault.probability:
            return False
        self.struck += 1
        return True


class Faults:
    """The faults of one node. They may be replaced at any time."""

    def __init__(
        self,
        faults: Sequence[Fault] = (),
        end: Callable[[int], object] = os._exit,
        cut: Callable[[], None] = lambda: None,
    ) -> None:
        """`end(code)` ends the process; `cut()` resets the node's KV connections."""
        self._end, self._cut = end, cut
        self._armed: list[_Armed] = []
        self.replace(faults)

    @property
    def struck(self) -> list[tuple[Fault, int]]:
        """Each fault, and how often it struck."""
        return [(one.fault, one.struck) for one in self._armed]

    def replace(self, faults: Sequence[Fault]) -> None:
        """These instead of those that there were; counts and chance begin anew."""
        self._armed = [_Armed(fault) for fault in faults]

    def at(self, point: str) -> Struck:
        """What happens at `point`, all faults together. Does not return when the process is to die."""
        if not self._armed:
            return NOTHING
        found = Struck()
        for one in self._armed:
            if not one.strikes(point):
                continue
            fault = one.fault
            log.warning("fault", at=point, do=fault.do, times=one.struck)
            match fault.do:
                case "slow":
                    found.factor *= fault.factor
                case "stall":
                    left = None if fault.for_ns is None else int(fault.for_ns)
                    found.stall_ns = None if left is None or found.stall_ns is None else max(left, found.stall_ns)
                case "corrupt":
                    found.corrupt = True
                case "wrong_token":
                    found.wrong_token = True
                case "fail":
                    found.fail = True
                case "cut":
                    self._cut()
                case "die":
                    sys.stdout.flush()
                    sys.stderr.flush()
                    self._end(DIED)
                case _:
                    assert_never(fault.do)
        return found
