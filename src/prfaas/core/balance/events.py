"""What can happen to the balance of one PD cluster."""

from __future__ import annotations

from dataclasses import dataclass

from prfaas.core.ids import NodeName


@dataclass(frozen=True, slots=True)
class Staffed:
    """Who takes work now: all nodes of each role, in the order in which they came to it, those that drain or convert
    left out; and how many nodes each remote has."""

    prefill: tuple[NodeName, ...]
    decode: tuple[NodeName, ...]
    remotes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Look:
    """Time to judge."""


@dataclass(frozen=True, slots=True)
class Drained:
    """Nothing runs any more on a node that was to drain."""

    node: NodeName


@dataclass(frozen=True, slots=True)
class Converted:
    """A node takes work in its new role."""

    node: NodeName


@dataclass(frozen=True, slots=True)
class Failed:
    """A node that drains or converts will not come to an end with it: it died, or it refused."""

    node: NodeName
    cause: str


@dataclass(frozen=True, slots=True)
class Overdue:
    """A node drains or converts for longer than it may."""

    node: NodeName


BalanceEvent = Staffed | Look | Drained | Converted | Failed | Overdue
