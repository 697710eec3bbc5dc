"""Who can hold prefixes, and how well that is known.

It knows names, incarnations and groups of layers; it does not know blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from prfaas.core.ids import ClusterName, Epoch, NodeName

if TYPE_CHECKING:
    from prfaas.core.index.runs import Run


class Place(NamedTuple):
    """One prefix cache: a node's, or that of one of its data-parallel ranks, which share nothing."""

    cluster: ClusterName
    node: NodeName
    rank: int = 0


class Known(Enum):
    """How well it is known what a place holds. What is unknown is in no answer."""

    UNKNOWN = "unknown"
    """Something was missed, and removals may be among it: nothing is said."""
    PARTLY = "partly"
    """What is said is so, but the place may hold more: it was followed from some time on."""
    WHOLLY = "wholly"
    """What is said is all."""


class Keeper:
    """The index's record of a place. `number`: its bit in bitmaps; `runs`: those in which it holds anything.

    `tiers`: planes of dense blocks by tier. `groups`: blocks of a group that must be held up to a length to resume
    there (1: a state; more: a window; 0: all). `states`: planes of such a group by tier. `loose`: blocks of which it
    holds a state, but which the index has not seen. A plane is a number under which a run keeps a mask of positions.
    """

    __slots__ = ("epoch", "groups", "known", "loose", "number", "place", "planes", "runs", "states", "tiers")

    def __init__(self, place: Place, number: int, epoch: Epoch, groups: Mapping[int, int], known: Known) -> None:
        self.place = place
        self.number = number
        self.epoch = epoch
        self.known = known
        self.groups = dict(groups)
        self.tiers: dict[str, int] = {}
        self.states: dict[int, dict[str, int]] = {group: {} for group in groups}
        self.planes: set[int] = set()
        self.runs: set[Run] = set()
        self.loose: set[int] = set()
