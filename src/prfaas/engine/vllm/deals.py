"""What this rank gives to each rank of a receiving node, and takes from which ranks of a sending one.

It knows ranks, heads and the names of transfers; it does not know tensors or connections. Between nodes of equal sizes
rank r gives to rank r, under the transfer's own name. Else what each receiving rank takes is a transfer of its own, in
the layout of what that rank holds; each rank that gives it something offers it its heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from prfaas.core.cache.layout import KVLayout, Part, PartKind
from prfaas.core.errors import LocalError
from prfaas.core.ids import TransferId
from prfaas.core.transfer.extent import PartKey, Span
from prfaas.core.transfer.shards import MOST_RANKS, cut, held_heads, rank_transfer, shares, sources


@dataclass(frozen=True, slots=True)
class Slice:
    """Heads `mine` of those that this rank holds of a part are heads `theirs` of those that rank `to` holds."""

    to: int
    mine: Span
    theirs: Span


@dataclass(frozen=True, slots=True)
class Giving:
    """To a node of so many ranks. `layouts`: of each rank that takes something, what it holds. `refusal`: why nothing
    can be given, "" when it can."""

    names: Mapping[int, str] = field(default_factory=dict)
    """By rank what comes after the transfer's own name."""
    layouts: Mapping[int, KVLayout] = field(default_factory=dict)
    slices: Mapping[PartKey, tuple[Slice, ...]] = field(default_factory=dict)
    refusal: str = ""

    def name(self, transfer: str, to: int) -> TransferId:
        """Under which rank `to` asks for its share of `transfer`."""
        return TransferId(transfer + self.names[to])


@dataclass(frozen=True, slots=True)
class Taking:
    """From a node of so many ranks: those in `sources` have something for this one."""

    suffix: str = ""
    sources: tuple[int, ...] = ()
    refusal: str = ""

    def name(self, transfer: str) -> TransferId:
        """Under which this rank asks for its share of `transfer`."""
        return TransferId(transfer + self.suffix)


class Deals:
    """Of rank `rank` of `ranks`. `layout` is the model's, `mine` what this rank holds. Raises LocalError when that
    cannot be said."""

    def __init__(self, layout: KVLayout, rank: int, ranks: int) -> None:
        self.layout, self.mine = layout, cut(layout, rank, ranks)
        self._rank, self._ranks = rank, ranks
        self._givings: dict[int, Giving] = {}
        self._takings: dict[int, Taking] = {}

    def give(self, receivers: int) -> Giving:
        """To a node of `receivers` ranks; 0: as many as there are here. Thread-safe."""
        wanted = receivers or self._ranks
        if not 1 <= wanted <= MOST_RANKS:
            return Giving(refusal=_TOO_MANY.format(wanted))
        if wanted not in self._givings:
            try:
                self._givings[wanted] = self._give(wanted)
            except LocalError as error:
                self._givings[wanted] = Giving(refusal=str(error))
        return self._givings[wanted]

    def take(self, senders: int) -> Taking:
        """From a node of `senders` ranks. Thread-safe."""
        if not 1 <= senders <= MOST_RANKS:
            return Taking(refusal=_TOO_MANY.format(senders))
        if senders not in self._takings:
            try:
                self._takings[senders] = self._take(senders)
            except LocalError as error:
                self._takings[senders] = Taking(refusal=str(error))
        return self._takings[senders]

    def _give(self, receivers: int) -> Giving:
        parts = {(part.layer, part.name): part for part in self.layout.parts}
        slices: dict[PartKey, list[Slice]] = {}
        takers: set[int] = set()
        for to in range(receivers):
            for share in shares(self.layout, self._ranks, receivers, to):
                if share.source != self._rank:
                    continue
                here, there = (
                    _from(parts[share.part], rank, ranks, share.heads)
                    for rank, ranks in ((self._rank, self._ranks), (to, receivers))
                )
                slices.setdefault(share.part, []).append(Slice(to, here, there))
                takers.add(to)
        return Giving(
            {to: self._suffix(to, self._ranks, receivers) for to in sorted(takers)},
            {to: cut(self.layout, to, receivers) for to in takers},
            {key: tuple(found) for key, found in slices.items()},
        )

    def _take(self, senders: int) -> Taking:
        suffix = self._suffix(self._rank, senders, self._ranks)
        return Taking(suffix, sources(self.layout, senders, self._ranks, self._rank))

    @staticmethod
    def _suffix(to: int, senders: int, receivers: int) -> str:
        return rank_transfer(TransferId(""), to, receivers) if senders != receivers else ""


def _from(part: Part, rank: int, ranks: int, heads: Span) -> Span:
    """`heads` of the whole model, counted from the first one that `rank` holds."""
    first = 0 if part.kind is PartKind.STATE else held_heads(part, rank, ranks)[0]
    return heads[0] - first, heads[1] - first


_TOO_MANY = f"tensor parallelism of {{}} on the other side; expected 1 to {MOST_RANKS}"
