"""vLLM's KV events in both encodings, and what is not one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from prfaas.core.errors import ProtocolError
from prfaas.wire.kvevents import (
    END,
    MAX_BYTES,
    SNAPSHOT,
    AllCleared,
    BlocksRemoved,
    BlocksStored,
    KVEvent,
    KVEvents,
    decode,
    encode,
)


def message(*events: Any, rank: Any = None, sequence: int = 7) -> list[bytes]:
    return [b"kv", sequence.to_bytes(8, "big"), msgspec.msgpack.encode([12.5, list(events), rank])]


STORED = {
    "type": "BlockStored",
    "block_hashes": [b"a" * 32, 2**63],
    "parent_block_hash": None,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
    "extra_keys": [None, ["salt"]],
    "group_idx": 1,
    "kv_cache_spec_kind": "sliding_window",
    "kv_cache_spec_sliding_window": 128,
    "of_a_later_version": {"x": 1},
}
REMOVED = {"type": "BlockRemoved", "block_hashes": [5], "medium": "GPU"}
KNOWN: list[tuple[Any, KVEvent]] = [
    (
        STORED,
        BlocksStored(
            (b"a" * 32, 2**63), None, (1, 2, 3, 4), 2, "GPU", 1, "sliding_window", 128, None, (None, ("salt",))
        ),
    ),
    (REMOVED, BlocksRemoved((5,), "GPU")),
    ({"type": "AllBlocksCleared"}, AllCleared()),
    (["BlockStored", [1], 9, [1, 2], 2, None], BlocksStored((1,), 9, (1, 2), 2)),
    (["BlockStored", [1], None, [1, 2], 2, None, "CPU", None, None, 3], BlocksStored((1,), None, (1, 2), 2, "CPU", 3)),
    (["BlockRemoved", [1, b"x"]], BlocksRemoved((1, b"x"))),
    (["BlockRemoved", [1], "GPU", 2, "LOCAL"], BlocksRemoved((1,), "GPU", 2)),
    (["AllBlocksCleared"], AllCleared()),
]


@pytest.mark.parametrize(("encoded", "event"), KNOWN)
def test_both_encodings(encoded: Any, event: KVEvent) -> None:
    assert decode(message(encoded, rank=3)) == KVEvents(7, 12.5, (event,), 3)


def test_encodings_may_mix_and_a_rank_may_be_left_out() -> None:
    frames = message(*(encoded for encoded, _ in KNOWN))
    assert decode(frames).events == tuple(event for _, event in KNOWN)
    frames[2] = msgspec.msgpack.encode([1, []])
    assert decode(frames) == KVEvents(7, 1.0, ())


def test_a_group_that_cannot_be_looked_up_has_no_hashes() -> None:
    (event,) = decode(message(STORED | {"block_hashes": []})).events
    assert isinstance(event, BlocksStored)
    assert event.hashes == ()
    assert event.tokens == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([], r"\[\] bytes; expected topic"),
        ([b"", b"1234", b""], "expected topic, 8 bytes"),
        ([b"", bytes(8), b""], "truncated"),
        ([b"", bytes(8), b"\xc1"], "malformed"),
        ([b"", bytes(8), msgspec.msgpack.encode({"ts": 1})], "Expected `array`"),
        (message({"type": "BlockMoved"}), "Invalid value 'BlockMoved'"),
        (message(["BlockMoved"]), "Invalid value 'BlockMoved'"),
        (message(17), "Expected `object`"),
        (message(STORED | {"block_hashes": ["text"]}), "Expected"),
        (message(STORED | {"token_ids": [1, 2, 3]}), "3 tokens for 2 blocks of 2 tokens"),
        (message(STORED | {"block_size": 0}), "blocks of 0 tokens"),
        (message(["BlockStored", [1]]), "Expected `array` of at least length"),
    ],
)
def test_what_is_not_one(frames: list[bytes], words: str) -> None:
    with pytest.raises(ProtocolError, match=words) as raised:
        decode(frames)
    assert raised.value.code == "kv_events"


@pytest.mark.parametrize("epoch", [None, 1_700_000_000_000_000_000])
def test_what_ours_write_is_read_back(epoch: int | None) -> None:
    events = (
        BlocksStored((2**64 - 1, b"x"), 3, (1, 2, 3, 4), 2, "GPU", 1, "mamba", None, "lora", (("lora", "salt"), None)),
        BlocksRemoved((1, b"y"), "CPU", 2),
        AllCleared(),
    )
    message = KVEvents(9, 1.5, events, 3, epoch)
    frames = encode("p0", message)
    assert frames[0] == b"p0"
    assert decode(frames) == message
    batch = msgspec.msgpack.decode(frames[2])
    assert batch[0] == 1.5
    assert [event["type"] for event in batch[1]] == ["BlockStored", "BlockRemoved", "AllBlocksCleared"]
    assert batch[2:] == [3] + ([] if epoch is None else [epoch])


def test_requests_are_numbers_to_a_publisher_that_knows_no_better() -> None:
    assert len(SNAPSHOT) == len(END) == 8
    assert int.from_bytes(SNAPSHOT, "big") > 2**62


def test_a_message_that_is_too_large() -> None:
    with pytest.raises(ProtocolError, match=f"at most {MAX_BYTES}"):
        decode([b"", bytes(8), bytes(MAX_BYTES + 1)])
