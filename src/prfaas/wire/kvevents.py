"""vLLM's KV events as they cross ZeroMQ: what an engine stored in, and removed from, its prefix cache.

It knows both encodings that are in use: events as maps with a `type` (vLLM 0.30 and later; ours are written so), and as
arrays with the type first (before). It knows neither sockets nor what the hashes mean. A message has three frames:
topic, sequence number (8 bytes, big-endian), and MessagePack of `[time, [event, ...], data-parallel rank]`; ours have
the publisher's epoch as a fourth item, which others pass over.

What was missed is asked for at another socket of the publisher's: 8 bytes, the sequence number to begin at. The answers
are such messages, and `END` instead of a sequence number is the last. Ours also know `SNAPSHOT`: all that is held, in
messages that bear the number of the last one published. As a number that is beyond any, so vLLM answers just `END`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import msgspec

from prfaas.core.errors import ProtocolError

BlockHash = bytes | int
"""An engine's own name of a block's content; of no meaning to another engine."""

MAX_BYTES = 64 << 20
END = (-1).to_bytes(8, "big", signed=True)
SNAPSHOT = b"snapshot"


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Full blocks that can be reused from now on: `tokens` of all of them, `block_tokens` in each; none where hashes
    are canonical, which need no tokens to be understood.

    `hashes` may be empty: hybrid models tell so of groups whose blocks cannot be looked up. `group` and `kind` say
    which group of layers it is, where the engine has several. `medium`: "GPU", "CPU", ...; None: not said.

    `adapter`: a LoRA's name, or `#` and its number. `extra`: what else is in the hash, by block: the adapter, a salt
    (text), images (pairs), digests.
    """

    hashes: tuple[BlockHash, ...]
    parent: BlockHash | None
    tokens: tuple[int, ...]
    block_tokens: int
    medium: str | None = None
    group: int | None = None
    kind: str | None = None
    window: int | None = None
    adapter: str | None = None
    extra: tuple[tuple[Any, ...] | None, ...] = ()


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """Blocks that are gone, of one group of layers or of all (None)."""

    hashes: tuple[BlockHash, ...]
    medium: str | None = None
    group: int | None = None


@dataclass(frozen=True, slots=True)
class AllCleared:
    """Nothing is cached any more."""


KVEvent = BlocksStored | BlocksRemoved | AllCleared


@dataclass(frozen=True, slots=True)
class KVEvents:
    """One message. A gap in `sequence` means that some were lost. `rank` is None when there is but one, `epoch` (the
    publisher's incarnation) when it is not said."""

    sequence: int
    at_s: float
    events: tuple[KVEvent, ...]
    rank: int | None = None
    epoch: int | None = None


def encode(topic: str, message: KVEvents) -> list[bytes]:
    """The frames of `message`."""
    batch = [message.at_s, [_plain(event) for event in message.events], message.rank]
    if message.epoch is not None:
        batch.append(message.epoch)
    return [topic.encode(), message.sequence.to_bytes(8, "big"), _ENCODER.encode(batch)]


def decode(frames: Sequence[bytes]) -> KVEvents:
    """The message of these `frames`. Raises ProtocolError, "kv_events", that says what is wrong."""
    if len(frames) != 3 or len(frames[1]) != 8:
        raise _wrong(f"{[len(frame) for frame in frames[:8]]} bytes; expected topic, 8 bytes and events")
    if len(frames[2]) > MAX_BYTES:
        raise _wrong(f"{len(frames[2])} bytes; expected at most {MAX_BYTES}")
    try:
        batch = _BATCH.decode(frames[2])
        events = tuple((_ARRAY if _is_array(raw) else _MAP).decode(raw).event() for raw in batch.events)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise _wrong(str(error)) from None
    return KVEvents(int.from_bytes(frames[1], "big"), batch.ts, events, batch.data_parallel_rank, batch.epoch)


class _Stored(msgspec.Struct, gc=False):
    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None

    def event(self) -> KVEvent:
        if self.block_size < 1 or 0 < len(self.token_ids) < len(self.block_hashes) * self.block_size:
            blocks = f"{len(self.block_hashes)} blocks of {self.block_size} tokens"
            raise _wrong(f"{len(self.token_ids)} tokens for {blocks}")
        return BlocksStored(
            tuple(self.block_hashes),
            self.parent_block_hash,
            tuple(self.token_ids),
            self.block_size,
            self.medium,
            self.group_idx,
            self.kv_cache_spec_kind,
            self.kv_cache_spec_sliding_window,
            self.lora_name if self.lora_name is not None or self.lora_id is None else f"#{self.lora_id}",
            tuple(None if keys is None else tuple(keys) for keys in self.extra_keys or ()),
        )


class _Removed(msgspec.Struct, gc=False):
    block_hashes: list[BlockHash]
    medium: str | None = None
    group_idx: int | None = None

    def event(self) -> KVEvent:
        return BlocksRemoved(tuple(self.block_hashes), self.medium, self.group_idx)


class _Cleared(msgspec.Struct, gc=False):
    def event(self) -> KVEvent:
        return AllCleared()


class _StoredMap(_Stored, gc=False, tag_field="type", tag="BlockStored"):
    pass


class _RemovedMap(_Removed, gc=False, tag_field="type", tag="BlockRemoved"):
    pass


class _ClearedMap(_Cleared, gc=False, tag_field="type", tag="AllBlocksCleared"):
    pass


class _StoredArray(_Stored, gc=False, array_like=True, tag="BlockStored"):
    pass


class _RemovedArray(_Removed, gc=False, array_like=True, tag="BlockRemoved"):
    pass


class _ClearedArray(_Cleared, gc=False, array_like=True, tag="AllBlocksCleared"):
    pass


class _Batch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[msgspec.Raw]
    data_parallel_rank: int | None = None
    epoch: int | None = None


_ENCODER = msgspec.msgpack.Encoder()
_BATCH = msgspec.msgpack.Decoder(_Batch)
_MAP = msgspec.msgpack.Decoder(_StoredMap | _RemovedMap | _ClearedMap)
_ARRAY = msgspec.msgpack.Decoder(_StoredArray | _RemovedArray | _ClearedArray)


def _plain(event: KVEvent) -> dict[str, Any]:
    """`event` as vLLM writes it."""
    match event:
        case BlocksStored():
            return {
                "type": "BlockStored",
                "block_hashes": event.hashes,
                "parent_block_hash": event.parent,
                "token_ids": event.tokens,
                "block_size": event.block_tokens,
                "lora_id": None,
                "medium": event.medium,
                "lora_name": event.adapter,
                "extra_keys": event.extra or None,
                "group_idx": event.group,
                "kv_cache_spec_kind": event.kind,
                "kv_cache_spec_sliding_window": event.window,
            }
        case BlocksRemoved():
            removed = {"type": "BlockRemoved", "block_hashes": event.hashes, "medium": event.medium}
            return removed | {"group_idx": event.group}
        case AllCleared():
            return {"type": "AllBlocksCleared"}
        case _:
            assert_never(event)


def _is_array(raw: msgspec.Raw) -> bool:
    first = memoryview(raw)[0]
    return first in (0xDC, 0xDD) or 0x90 <= first <= 0x9F


def _wrong(what: str) -> ProtocolError:
    return ProtocolError("kv_events", what)
