"""What a layout is called: equal only for equal layouts, and to be read."""

from __future__ import annotations

from dataclasses import replace

from prfaas.core.cache.layout import KVLayout, Part, PartKind, shown
from prfaas.wire.layout import fingerprint, layout_name

LAYOUT = KVLayout(
    "46a23ca3b99c4f1e9d", tuple(Part(layer, "k", PartKind.TOKENS, (1, 64), "bfloat16") for layer in range(18))
)


def test_a_person_can_read_what_differs() -> None:
    other = replace(LAYOUT, parts=tuple(replace(part, dtype="float32") for part in LAYOUT.parts[:17]))
    assert shown(layout_name(LAYOUT)) == (f"bfloat16, 18 layers, revision 46a23ca3b99c4f1e, {fingerprint(LAYOUT)[:12]}")
    assert shown(layout_name(other)).startswith("float32, 17 layers, revision 46a23ca3b99c4f1e, ")


def test_what_a_person_cannot_see_makes_another_name_too() -> None:
    for other in (
        replace(LAYOUT, revision=LAYOUT.revision + "x"),
        replace(LAYOUT, parts=(replace(LAYOUT.parts[0], shape=(2, 64)), *LAYOUT.parts[1:])),
    ):
        assert layout_name(other) != layout_name(LAYOUT)
    assert layout_name(replace(LAYOUT)) == layout_name(LAYOUT)
