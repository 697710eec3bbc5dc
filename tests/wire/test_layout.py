"""Fingerprints differ exactly when layouts do, and the difference is told by name."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

import msgspec
import pytest

from prfaas.core.cache.layout import KVLayout, Part, PartKind
from prfaas.core.errors import ProtocolError
from prfaas.testing.kv import hybrid_layout
from prfaas.wire.layout import describe_difference, fingerprint, layout_body, layout_of
from prfaas.wire.messages import LayoutBody, PartBody

LAYOUT = hybrid_layout()


def changed(index: int, **changes: object) -> KVLayout:
    parts = list(LAYOUT.parts)
    parts[index] = replace(parts[index], **changes)  # type: ignore[arg-type]
    return KVLayout(LAYOUT.revision, tuple(parts))


def test_the_same_everywhere() -> None:
    part = Part(0, "k", PartKind.TOKENS, (2, 8), "float32")
    packed = b"\x92\xa3m@1\x91\x97\x00\xa1k\xa6tokens\x92\x02\x08\xa7float32\x00\xc3"
    assert fingerprint(KVLayout("m@1", (part,))) == sha256(packed).hexdigest()


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (changed(0, dtype="float16"), "layer 0 k: dtype float32 here, float16 there"),
        (changed(0, shape=(2, 32)), "layer 0 k: shape (4, 16) here, (2, 32) there"),
        (changed(2, window=128), "layer 1 k: window 64 here, 128 there"),
        (changed(2, kind=PartKind.TOKENS), "layer 1 k: kind window here, tokens there"),
        (changed(0, sharded=False), "layer 0 k: sharded True here, False there"),
        (changed(0, name="q"), "layer 0 k: only here; layer 0 q: only there"),
        (replace(LAYOUT, revision="hybrid@2"), "revision 'hybrid@1' here, 'hybrid@2' there"),
        (replace(LAYOUT, parts=LAYOUT.parts[:-1]), "layer 3 latent: only here"),
        (replace(LAYOUT, parts=LAYOUT.parts[::-1]), "the order of the parts"),
    ],
)
def test_what_differs(other: KVLayout, told: str) -> None:
    assert fingerprint(other) != fingerprint(LAYOUT)
    assert describe_difference(LAYOUT, other) == told


def test_equal_layouts_do_not_differ() -> None:
    assert fingerprint(hybrid_layout()) == fingerprint(LAYOUT)
    assert describe_difference(LAYOUT, hybrid_layout()) == ""


def test_many_differences_are_cut_short() -> None:
    other = KVLayout("x", tuple(replace(part, dtype="int8") for part in LAYOUT.parts))
    assert describe_difference(LAYOUT, other).endswith("; and 3 more")


def test_there_and_back() -> None:
    body = msgspec.msgpack.decode(msgspec.msgpack.encode(layout_body(LAYOUT)), type=LayoutBody)
    assert layout_of(body) == LAYOUT
    with pytest.raises(ProtocolError, match="layout: "):
        layout_of(LayoutBody("r", [PartBody(0, "k", "gas", [1], "int8", 0, True)]))
