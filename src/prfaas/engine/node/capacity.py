"""How much KV a node's memory holds: from bytes to blocks.

It knows layouts and limits; it does not know engines. Rows of every token go into blocks; what a sequence has beside
them (states, windows) is set aside for as many sequences as may run at once. Prefixes that are kept take what is free.
"""

from __future__ import annotations

from dataclasses import replace

from prfaas.core.cache.layout import KVLayout, PartKind
from prfaas.core.cache.spec import PoolSpec, block_bytes
from prfaas.core.errors import ConfigError
from prfaas.engine.base import Limits


def within_memory(limits: Limits, layout: KVLayout, memory_bytes: int) -> Limits:
    """`limits` with no more blocks than `memory_bytes` hold, and no longer context than the blocks.

    Raises ConfigError, with the sizes, when not even two tokens fit.
    """
    row_bytes = sum(part.unit_bytes for part in layout.parts if part.kind is PartKind.TOKENS)
    longest = limits.max_model_len
    beside = sum(part.bytes_at(longest) for part in layout.parts if part.kind is not PartKind.TOKENS)
    aside_bytes, block_bytes = beside * limits.max_sequences, row_bytes * limits.block_tokens
    if memory_bytes < aside_bytes:
        raise ConfigError(
            f"KV memory of {memory_bytes} bytes; expected more: states and windows of {limits.max_sequences} sequences "
            f"take {aside_bytes}"
        )
    if block_bytes == 0:
        return limits
    blocks = min(limits.kv_blocks, (memory_bytes - aside_bytes) // block_bytes)
    if blocks * limits.block_tokens < 2:
        raise ConfigError(
            f"KV memory of {memory_bytes} bytes; expected at least {aside_bytes + block_bytes}: {aside_bytes} for "
            f"states and windows, {block_bytes} a block of {limits.block_tokens} tokens"
        )
    return replace(limits, kv_blocks=blocks, max_model_len=min(longest, blocks * limits.block_tokens))


def pool_blocks(limits: Limits, layout: KVLayout, spec: PoolSpec | None, memory_bytes: int | None) -> int:
    """Blocks of the node's one pool, which rows, states and kept prefixes share: those of `limits`, which are for rows,
    and what is set aside for states, as far as `memory_bytes` has it (None: as `limits` say)."""
    if spec is None:
        return limits.kv_blocks
    aside = spec.snapshot_blocks * limits.max_sequences
    if memory_bytes is not None:
        left = memory_bytes // block_bytes(layout, spec.block_tokens) - limits.kv_blocks
        aside = min(aside, max(spec.snapshot_blocks, left))
    return limits.kv_blocks + aside
