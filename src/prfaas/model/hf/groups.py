"""A layout put in groups for people: layers that keep the same are one.

It knows parts and adds bytes up; it does not know models or how a group is shown.
"""

from __future__ import annotations

from dataclasses import dataclass

from prfaas.core.cache.layout import KVLayout, Part, PartKind

ATTENTION, MLA, WINDOW, STATE = "attention", "mla", "window", "state"


@dataclass(frozen=True, slots=True)
class Group:
    """`parts`: of one layer, the first of `layers`, which keep the same. Bytes are of all layers together.

    `bytes_per_token`: growth, of windows only until they are full; `state_bytes`: of states alone.
    """

    kind: str
    layers: tuple[int, ...]
    parts: tuple[Part, ...]

    @property
    def window(self) -> int:
        """The rows that a window keeps; 0 for other groups."""
        return self.parts[0].window

    @property
    def bytes_per_token(self) -> int:
        return 0 if self.kind == STATE else len(self.layers) * sum(part.unit_bytes for part in self.parts)

    @property
    def state_bytes(self) -> int:
        return len(self.layers) * sum(part.unit_bytes for part in self.parts) if self.kind == STATE else 0

    def bytes_at(self, length: int) -> int:
        """Bytes of the group for a sequence of `length` tokens."""
        return len(self.layers) * sum(part.bytes_at(length) for part in self.parts)


def groups_of(layout: KVLayout) -> tuple[Group, ...]:
    """The groups of `layout`: what grows first, then windows, then states; each by its first layer. A layer that has
    both attention and a state is in two."""
    found: dict[tuple[object, ...], list[int]] = {}
    parts: dict[tuple[object, ...], tuple[Part, ...]] = {}
    for kind in PartKind:
        for layer in layout.layers():
            some = tuple(part for part in layout.of_layer(layer) if part.kind is kind)
            if some:
                key = (kind, *((part.name, part.shape, part.dtype, part.window) for part in some))
                found.setdefault(key, []).append(layer)
                parts.setdefault(key, some)
    return tuple(Group(_kind(parts[key]), tuple(layers), parts[key]) for key, layers in found.items())


def bytes_per_token(layout: KVLayout) -> int:
    """What one more token adds, beyond every window."""
    return sum(part.unit_bytes for part in layout.parts if part.kind is PartKind.TOKENS)


def state_bytes(layout: KVLayout) -> int:
    """What is kept whatever the length: recurrent and convolution states."""
    return sum(part.unit_bytes for part in layout.parts if part.kind is PartKind.STATE)


def _kind(parts: tuple[Part, ...]) -> str:
    if parts[0].kind is PartKind.STATE:
        return STATE
    if parts[0].kind is PartKind.WINDOW:
        return WINDOW
    return MLA if parts[0].name == "latent" else ATTENTION
