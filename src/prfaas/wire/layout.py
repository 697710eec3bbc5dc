"""A KV layout as bytes: its fingerprint, and what differs between two, by name.

It knows `KVLayout` and MessagePack. It does not know when fingerprints are compared.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from prfaas.core.cache.layout import KVLayout, Part, PartKind
from prfaas.core.errors import ProtocolError
from prfaas.wire.messages import LayoutBody, PartBody

_SHOWN = 4
_REVISION = 16
"""Characters of a revision, which is a digest or a name that people chose."""


def layout_body(layout: KVLayout) -> LayoutBody:
    """As the wire has it."""
    parts = [PartBody(p.layer, p.name, p.kind.value, list(p.shape), p.dtype, p.window, p.sharded) for p in layout.parts]
    return LayoutBody(layout.revision, parts)


def layout_of(body: LayoutBody) -> KVLayout:
    """As core has it. Raises ProtocolError for a kind of part that is not known."""
    try:
        parts = [
            Part(p.layer, p.name, PartKind(p.kind), tuple(p.shape), p.dtype, p.window, p.sharded) for p in body.parts
        ]
    except ValueError as error:
        raise ProtocolError("layout", str(error)) from None
    return KVLayout(body.revision, tuple(parts))


def fingerprint(layout: KVLayout) -> str:
    """SHA-256, hex, of the layout's canonical MessagePack: the same on every machine, other for any other layout."""
    return sha256(msgspec.msgpack.encode(layout_body(layout))).hexdigest()


def layout_name(layout: KVLayout) -> str:
    """What nodes and heads tell each other of a layout, to be read by a person: dtype, layers, revision, fingerprint.
    Equal only for equal layouts."""
    dtypes = "+".join(sorted({part.dtype for part in layout.parts}))
    count = len(layout.layers())
    layers = f"{count} layer{'' if count == 1 else 's'}"
    return f"{dtypes}, {layers}, revision {layout.revision[:_REVISION]}, {fingerprint(layout)}"


def describe_difference(ours: KVLayout, theirs: KVLayout) -> str:
    """What differs, by name, for a person: "layer 3 k: dtype bfloat16 here, float16 there; ...". "" when nothing
    does."""
    found = []
    if ours.revision != theirs.revision:
        found.append(f"revision {ours.revision!r} here, {theirs.revision!r} there")
    here = {(p.layer, p.name): p for p in ours.parts}
    there = {(p.layer, p.name): p for p in theirs.parts}
    for key in dict.fromkeys([*here, *there]):
        name = f"layer {key[0]} {key[1]}"
        a, b = here.get(key), there.get(key)
        if a is None or b is None:
            found.append(f"{name}: only {'there' if a is None else 'here'}")
        elif a != b:
            fields = ("kind", "shape", "dtype", "window", "sharded")
            what = [f"{f} {_text(a, f)} here, {_text(b, f)} there" for f in fields if getattr(a, f) != getattr(b, f)]
            found.append(f"{name}: {', '.join(what)}")
    if not found and ours != theirs:
        found.append("the order of the parts")
    more = len(found) - _SHOWN
    return "; ".join(found[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _text(part: Part, field: str) -> str:
    value = getattr(part, field)
    return value.value if isinstance(value, PartKind) else str(value)
