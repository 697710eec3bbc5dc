"""Tensor parallelism: which heads of which sender rank each receiver rank takes, when the two sides have other sizes.

It knows layouts and ranks; it does not know tensors or connections. Rank r of n holds, of a sharded part, heads
[r * heads / n, (r + 1) * heads / n); when there are more ranks than heads, each head is held by n / heads neighbouring
ranks, as vLLM has it. A part that is not sharded (MLA's latent) is whole on every rank, and one owner sends it.
"""

from __future__ import annotations

from dataclasses import dataclass

from prfaas.core.cache.layout import KVLayout, Part, PartKind
from prfaas.core.errors import LocalError
from prfaas.core.transfer.extent import PartKey


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
        raise LocalError(f"layer {part.layer} {part.name}: {heads} heads cannot be dealt out to {ranks} ranks")
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
            said = f"layer {part.layer} {part.name}: a state of {senders} ranks cannot be given to {receivers}"
            raise LocalError(f"{said}; run both sides with the same tensor parallelism")
        if part.kind is PartKind.STATE:
            found.append(Share(key, receiver, held_state(part, receiver, receivers)))
            continue
        first, stop = held_heads(part, receiver, receivers)
        while first < stop:
            source, upto = _source(part, senders, receivers, receiver, first)
            found.append(Share(key, source, (first, min(stop, upto))))
            first = min(stop, upto)
    return tuple(found)


def held_state(part: Part, rank: int, ranks: int) -> tuple[int, int]:
    """The slice of a state's first axis that rank `rank` holds: all of it where that axis has no heads."""
    return held_heads(part, rank, ranks) if part.sharded and part.shape[0] > 1 else (0, part.shape[0])


def _source(part: Part, senders: int, receivers: int, receiver: int, head: int) -> tuple[int, int]:
    """A sender rank that holds `head`, and where its heads end."""
    holding = [rank for rank in range(senders) if _holds(part, rank, senders, head)]
    source = holding[receiver * senders // receivers % len(holding)]
    return source, held_heads(part, source, senders)[1]


def _holds(part: Part, rank: int, ranks: int, head: int) -> bool:
    first, stop = held_heads(part, rank, ranks)
    return first <= head < stop
