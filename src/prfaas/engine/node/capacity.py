"""How much KV a node's memory holds: from bytes to blocks.

It knows layouts and limits; it does not know engines. Rows of every token go into blocks; what a sequence has beside
them (states, windows) is set aside for as many sequences as may run at once.
"""

from __future__ import annotations

from dataclasses import replace

from prfaas.core.cache.layout import KVLayout, PartKind
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
