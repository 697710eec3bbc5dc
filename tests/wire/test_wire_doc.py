"""`docs/wire.md` says what the code does: bytes, kinds and bounds, entries, array fields."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from prfaas.wire import messages as m
from prfaas.wire.frame import Data, Decoder, encode, encode_data

PAGE = (Path(__file__).parents[2] / "docs" / "wire.md").read_text(encoding="utf-8")

PAYLOAD = bytes(range(3 * 2 * 4 * 2))
EXAMPLES = [
    encode(m.Welcome(version=1, epoch=1_700_000_000_000_000_000, session="5e55", round=1, lease_ms=15000)),
    encode_data(m.DataHead(0, "k", 0, 3, 0, 2, "bfloat16", False, True), memoryview(PAYLOAD)) + PAYLOAD,
]


def dumped(block: str) -> bytes:
    return b"".join(bytes.fromhex(line[6:53]) for line in block.strip().splitlines())


def test_the_examples() -> None:
    blocks = re.findall(r"```hex\n(.*?)```", PAGE, re.DOTALL)
    assert [dumped(block) for block in blocks] == EXAMPLES
    decoder = Decoder(frozenset(m.Kind), lambda head, size: memoryview(bytearray(size)))
    welcome, data = [frame for example in EXAMPLES for frame in decoder.feed(example)]
    assert isinstance(welcome, m.Welcome)
    assert isinstance(data, Data)
    assert data.intact


def test_kinds_and_bounds() -> None:
    rows = re.findall(r"^\| (\d+) \| ([A-Z]+) \| \w+ \| (\d+) \| (?:at most (\d+) )?\|$", PAGE, re.MULTILINE)
    told = [(int(kind), name, int(body), int(payload or 0)) for kind, name, body, payload in rows]
    payload = {m.Kind.DATA: m.MAX_PAYLOAD_BYTES}
    assert told == [(int(kind), kind.name, m.MAX_BODY_BYTES[kind], payload.get(kind, 0)) for kind in m.Kind]


@pytest.mark.parametrize("struct", m.KIND_OF)
def test_the_entries_of_each_message(struct: type[msgspec.Struct]) -> None:
    [(tag, entries)] = re.findall(rf"^\| {struct.__name__.upper()} \| `(\w+)` \| (.*?) ?\|$", PAGE, re.MULTILINE)
    told = [(name, bool(star)) for star, name in re.findall(r"(\*?)`(\w+)`", entries)]
    fields = msgspec.structs.fields(struct)
    assert tag == struct.__struct_config__.tag
    assert told == [(field.name, not field.required) for field in fields]


@pytest.mark.parametrize("struct", [m.DataHead, m.ExtentBody, m.PartBody])
def test_the_fields_of_arrays(struct: type[msgspec.Struct]) -> None:
    page = re.sub(r"\s+", " ", PAGE)
    assert f"`[{', '.join(struct.__struct_fields__)}]`" in page
