"""Tensor parallelism: which heads of which sender rank each receiver rank takes, when the two sides have other sizes.

It knows layouts and ranks; it does not know tensors or connections. Rank r of n holds, of a sharded part, heads
[r * heads / n, (r + 1) * heads / n); when there are more ranks than heads, each head is held by n / heads neighbouring
ranks, as vLLM has it. A part that is not sharded (MLA's latent) is whole on every rank, and one owner sends it. A
layout is that of the whole model, but for states, which are listed as each rank has them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from prfaas.core.cache.layout import KVLayout, Part, PartKind
from prfaas.core.errors import LocalError
from prfaas.core.ids import TransferId
from prfaas.core.transfer.extent import PartKey

MOST_RANKS = 64
_OF_A_RANK = re.compile(r"(.+)@(0|[1-9][0-9]?)/([1-9][0-9]?)", re.DOTALL)


def rank_transfer(transfer: TransferId, rank: int, ranks: int) -> TransferId:
    """The name of what rank `rank` of `ranks` receives of `transfer`, where the sender has another number of ranks."""
    return TransferId(f"{transfer}@{rank}/{ranks}")


def whole_transfer(name: TransferId) -> TransferId:
    """The transfer that `name` is a rank's share of; `name` itself when it is none."""
    found = _OF_A_RANK.fullmatch(name)
    if found is None or not int(found[2]) < int(found[3]) <= MOST_RANKS:
        return name
    return TransferId(found[1])


@dataclass(frozen=True, slots=True, order=True)
class Share:
    """Heads [heads[0], heads[1]) of one part, counted over the whole model, come from sender rank `source`."""

    part: PartKey
    source: int
    heads: tuple[int, int]


def held_heads(part: Part, rank: int, ranks: int) -> tuple[int, int]:
    """The heads of `part` that rank `rank` of `ranks` holds. Raises LocalError when they cannot be dealt out evenly."""
    heads = part.shape[0]
    if not 0 <= rank < ranks:
        raise LocalError(f"there is no rank {rank} of {ranks}")
    if not part.sharded:
        return 0, heads
    if heads % ranks and ranks % heads:
        raise LocalError(f"{name_of(part)}: {heads} heads cannot be dealt out to {ranks} ranks")
    if ranks >= heads:
        head = rank * heads // ranks
        return head, head + 1
    each = heads // ranks
    return rank * each, (rank + 1) * each


def shares(layout: KVLayout, senders: int, receivers: int, receiver: int) -> tuple[Share, ...]:
    """What rank `receiver` of `receivers` takes from ranks of `senders`: every head that it holds, each exactly once.

    Of several senders with the same heads, those are chosen that give neighbouring receivers different ones. Raises
    LocalError, by name, for states that would have to be cut otherwise (a convolution's channels are laid out by rank),
    and for heads that cannot be dealt out.
    """
    found: list[Share] = []
    for part in layout.parts:
        key = (part.layer, part.name)
        if part.kind is PartKind.STATE and senders != receivers:
            raise LocalError(uneven_states(name_of(part), senders, receivers))
        if part.kind is PartKind.STATE:
            found.append(Share(key, receiver, (0, part.shape[0])))
            continue
        first, stop = held_heads(part, receiver, receivers)
        while first < stop:
            source, upto = _source(part, senders, receivers, receiver, first)
            found.append(Share(key, source, (first, min(stop, upto))))
            first = min(stop, upto)
    return tuple(found)


def sources(layout: KVLayout, senders: int, receivers: int, receiver: int) -> tuple[int, ...]:
    """The ranks of `senders` that have something for rank `receiver` of `receivers`. Raises LocalError as `shares`."""
    return tuple(sorted({share.source for share in shares(layout, senders, receivers, receiver)}))


def cut(layout: KVLayout, rank: int, ranks: int) -> KVLayout:
    """The layout of what rank `rank` of `ranks` holds. Raises LocalError when heads cannot be dealt out."""
    return KVLayout(layout.revision, tuple(_cut(part, rank, ranks) for part in layout.parts))


def fixed_part(layout: KVLayout) -> str:
    """The first part, by name, that only as many ranks can take as gave it; "" when there is none."""
    return next((name_of(part) for part in layout.parts if part.kind is PartKind.STATE), "")


def name_of(part: Part) -> str:
    """For people."""
    return f"layer {part.layer} {part.name}"


def uneven_states(name: str, senders: int, receivers: int) -> str:
    """Why the state `name` cannot be handed over, for people."""
    said = f"{name}: a state of {senders} ranks cannot be given to {receivers}"
    return f"{said}; run both sides with the same tensor parallelism"


def _cut(part: Part, rank: int, ranks: int) -> Part:
    if part.kind is PartKind.STATE:
        return part
    first, stop = held_heads(part, rank, ranks)
    return replace(part, shape=(stop - first, *part.shape[1:]))


def _source(part: Part, senders: int, receivers: int, receiver: int, head: int) -> tuple[int, int]:
    """A sender rank that holds `head`, and where its heads end."""
    holding = [rank for rank in range(senders) if _holds(part, rank, senders, head)]
    source = holding[receiver * senders // receivers % len(holding)]
    return source, held_heads(part, source, senders)[1]


def _holds(part: Part, rank: int, ranks: int, head: int) -> bool:
    first, stop = held_heads(part, rank, ranks)
    return first <= head < stop
