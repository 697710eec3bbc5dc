"""Prefixes of an engine whose KV follows from tokens: a piece is the digest of the prefix that it stands for.

It knows chains, pieces and their lengths; it does not know pools or time. From a digest all bytes of a block follow, so
comparing digests is reading the bytes back: a prefix of other tokens, or of another length, is an error here.
"""

from __future__ import annotations

from prfaas.core.cache.spec import PoolSpec
from prfaas.core.errors import InvariantError
from prfaas.engine.emulated.derive import Chain
from prfaas.engine.reuse import Piece, Reuse, last_block


def check(reuse: Reuse, chain: Chain, spec: PoolSpec | None, *, landed: bool = False) -> None:
    """Raises InvariantError unless what `reuse` resumes from is the KV of the chain's first `reuse.tokens` tokens.

    `landed`: the KV of what follows landed, and with it a state, so that there need be none.
    """
    if reuse.tokens == 0:
        return
    if spec is None:
        raise InvariantError("a prefix of a layout of which none are kept")
    expected = _blocks(chain, spec, 0, reuse.tokens // spec.block_tokens)
    state = _state(chain, spec, reuse.tokens)
    stateless = landed and not reuse.state
    if reuse.tokens > chain.length or list(reuse.blocks) != expected or not (stateless or list(reuse.state) == state):
        raise InvariantError(f"what is kept as the first {reuse.tokens} tokens is of other ones")


def leave(reuse: Reuse, chain: Chain, spec: PoolSpec | None, length: int) -> None:
    """The KV of the chain's first `length` tokens is there: leaves it, with the snapshots on the way."""
    if not reuse.keeps or spec is None:
        return
    last = length - length % reuse.every if reuse.every else 0
    for stop in sorted({*reuse.stops, last}):
        if reuse.tokens < stop <= length and reuse.wants(stop, answering=stop == last):
            reuse.take(stop, _state(chain, spec, stop))
    reuse.leave(
        chain.tokens,
        length,
        _blocks(chain, spec, reuse.stored // spec.block_tokens, last_block(spec, length, reuse)),
    )


def adopt(reuse: Reuse, chain: Chain, spec: PoolSpec | None) -> None:
    """All of the chain came from elsewhere, and its state at the end: leaves it."""
    if spec is None:
        raise InvariantError("a prefix of a layout of which none are kept")
    if spec.stateful:
        reuse.take(chain.length, _state(chain, spec, chain.length))
    last = last_block(spec, chain.length, reuse)
    reuse.leave(chain.tokens, chain.length, _blocks(chain, spec, reuse.stored // spec.block_tokens, last))


def _blocks(chain: Chain, spec: PoolSpec, first: int, last: int) -> list[Piece]:
    return [chain.digest((at + 1) * spec.block_tokens) for at in range(first, last)]


def _state(chain: Chain, spec: PoolSpec, length: int) -> list[Piece]:
    return [(length, share, chain.digest(length)) for share in range(spec.snapshot_blocks)]
