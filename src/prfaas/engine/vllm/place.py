"""Which of a node's workers this is."""

from __future__ import annotations

from dataclasses import dataclass

from prfaas.core.ids import Epoch


@dataclass(frozen=True, slots=True)
class Place:
    """Rank `rank` of `ranks` under tensor parallelism; all of them have the node's one `epoch`."""

    rank: int
    ranks: int
    epoch: Epoch
