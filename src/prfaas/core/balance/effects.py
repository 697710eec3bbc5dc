"""What is to be done about the balance of one PD cluster, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prfaas.core.ids import NodeName
from prfaas.core.membership.events import Role

Why = Literal["better", "best", "margin", "minimum", "few_requests", "under_way"]
"""better: a step is worth it; best: none is better; margin: one is, by too little; minimum: a role must keep its
nodes; few_requests: too few were seen to judge; under_way: a conversion is."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A look at the balance, and what came of it: an entry of the log.

    `n_p`, `n_d`: nodes that take work; `step`: prefill nodes to be added, -1 to 1; `target`: the best n_p. Rates in
    requests a second: `rate_rps` now, `step_rps` after the step towards the target, `best_rps` at the target. `gain`:
    relative, what the conversion costs taken off; `need`: what it has to be. `noise`: relative error of what was
    measured.
    """

    rule: str
    why: Why
    step: int
    n_p: int
    n_d: int
    target: int
    rate_rps: float
    step_rps: float
    best_rps: float
    gain: float
    need: float
    noise: float
    threshold: int
    requests: int
    arrivals_rps: float
    output: float


@dataclass(frozen=True, slots=True)
class Skipped:
    """A look at the balance without anything to compare."""

    why: Why
    n_p: int
    n_d: int
    requests: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Give the node no new work; say Drained when nothing runs there."""

    node: NodeName
    role: Role


@dataclass(frozen=True, slots=True)
class Convert:
    """Make the node one of `role`; say Converted when it takes work."""

    node: NodeName
    role: Role


@dataclass(frozen=True, slots=True)
class Resume:
    """The node stays what it is, `role`: give it work again."""

    node: NodeName
    role: Role
    cause: str


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The conversion to `role` came to nothing, and the node is no longer counted on: an entry of the log."""

    node: NodeName
    role: Role
    cause: str


@dataclass(frozen=True, slots=True)
class Retuned:
    """The threshold is `tokens` from now on, `before` until now. Rates: what all prefill sustains with each."""

    tokens: int
    before: int
    rate_rps: float
    before_rps: float
    n_p: int
    requests: int
    links_bps: tuple[float, ...]


BalanceEffect = Judged | Skipped | Drain | Convert | Resume | Abandoned
