"""Policies by name, for drivers that let people choose.

It knows every policy and what each needs; it does not know drivers.
"""

from __future__ import annotations

from collections.abc import Callable

from prfaas.core.routing.greedy import Fastest, Priced
from prfaas.core.routing.ours import Ours
from prfaas.core.routing.policy import Policy
from prfaas.core.routing.pull import Pull
from prfaas.core.routing.reference import Balanced, Local, Paper, Remote

DEFAULT = "ours"

_MAKERS: dict[str, Callable[[int, float], Policy]] = {
    "ours": lambda threshold, order: Ours(threshold, order),
    "paper": lambda threshold, order: Paper(threshold, order),
    "threshold": lambda threshold, order: Paper(threshold, order, feedback=False),
    "balanced": lambda threshold, order: Balanced(order),
    "local": lambda threshold, order: Local(order),
    "remote": lambda threshold, order: Remote(order),
    "fastest": lambda threshold, order: Fastest(order),
    "priced": lambda threshold, order: Priced(order),
    "pull": lambda threshold, order: Pull(threshold, order),
}

NAMES = tuple(_MAKERS)


def policy_of(name: str, threshold: int, order: float | None = None) -> Policy:
    """The policy called `name`, one of `NAMES`. `threshold`: uncached tokens; `order`: see `Policy`, None: its own."""
    made = _MAKERS[name](threshold, 0.0 if order is None else order)
    if order is None and name == DEFAULT:
        made.order = Ours.own_order
    return made
