"""What can happen to a member of a cluster. Each names its node; `epoch` is the incarnation that it is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prfaas.core.ids import Epoch, NodeName

Role = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a node that joins says of itself. `data`: host and port of each data listener; `layout`: the name
    of its KV layout; `slots`: sequences it takes at once."""

    url: str
    data: tuple[tuple[str, int], ...]
    model: str
    layout: str
    max_tokens: int
    slots: int


@dataclass(frozen=True, slots=True)
class Listed:
    """The topology names the node, at `url`. It has no lease of its own: each look that sees it renews `lease_ns`."""

    node: NodeName
    role: Role
    url: str
    lease_ns: int


@dataclass(frozen=True, slots=True)
class Join:
    """A node wants in, until `lease_ns` pass without a renewal."""

    node: NodeName
    role: Role
    epoch: Epoch
    geometry: Geometry
    lease_ns: int


@dataclass(frozen=True, slots=True)
class Renew:
    """The node is still there."""

    node: NodeName
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Leave:
    """The node wants to go, once what runs there has ended."""

    node: NodeName
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class LeaseRan:
    """A part of the lease went by and nothing renewed it; `left` more, and it has ended.

    In parts, so that time counts only while the head is awake: one that stood still, for however long, finds that one
    part is over, and time left for the signs of life that came meanwhile.
    """

    node: NodeName
    left: int


@dataclass(frozen=True, slots=True)
class Seen:
    """A look found the node well, as incarnation `epoch`, with this KV layout."""

    node: NodeName
    epoch: Epoch
    layout: str


@dataclass(frozen=True, slots=True)
class Unseen:
    """A look did not find the node, or found another one; `trouble` says what happened."""

    node: NodeName
    trouble: str


@dataclass(frozen=True, slots=True)
class Drained:
    """Nothing runs any more on a node that leaves."""

    node: NodeName


MemberEvent = Listed | Join | Renew | Leave | LeaseRan | Seen | Unseen | Drained
