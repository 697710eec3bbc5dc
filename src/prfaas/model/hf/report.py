"""What `prfaas model --json` says, and its JSON Schema, made from the same types.

It knows the shape of the answer; it does not know files or the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from prfaas.config.jsonschema import components, schema_text
from prfaas.core.cache.layout import KVLayout
from prfaas.model.hf.groups import STATE, WINDOW, bytes_per_token, groups_of, state_bytes

Bytes = Annotated[int, Meta(ge=0)]


class PartReport(Struct, frozen=True, kw_only=True):
    """One tensor of a layer."""

    name: Annotated[str, Meta(description="What it is: k, v, latent, recurrent, conv and so on.")]
    shape: Annotated[
        tuple[int, ...], Meta(description="Of one token's row as heads and width; of a state, all of it, heads first.")
    ]
    dtype: Annotated[str, Meta(description="Type of its numbers, as torch calls it.")]
    bytes: Annotated[int, Meta(ge=0, description="Bytes of one token's row, or of the whole state.")]


class GroupReport(Struct, frozen=True, kw_only=True):
    """Layers that keep the same. A layer that has both attention and a state is in two groups."""

    kind: Annotated[Literal["attention", "mla", "window", "state"], Meta(description="What the layers keep.")]
    layers: Annotated[tuple[int, ...], Meta(min_length=1, description="The layers, counted from 0.")]
    parts: Annotated[tuple[PartReport, ...], Meta(min_length=1, description="The tensors of one of the layers.")]
    bytes_per_token: Annotated[
        int | UnsetType, Meta(description="Bytes a token, all layers; of a window until it is full. Not of states.")
    ] = UNSET
    window: Annotated[int | UnsetType, Meta(description="Tokens that a window keeps. Of windows only.")] = UNSET
    state_bytes: Annotated[int | UnsetType, Meta(description="Bytes, all layers. Of states only.")] = UNSET


class LengthReport(Struct, frozen=True, kw_only=True):
    """The whole cache of one sequence."""

    bytes: Bytes
    mib: Annotated[float, Meta(ge=0, description="The same in MiB, 1048576 bytes.")]


class ModelReport(Struct, frozen=True, kw_only=True):
    """What a model's KV cache is made of and weighs."""

    groups: Annotated[tuple[GroupReport, ...], Meta(description="All that is kept, in groups of layers.")]
    bytes_per_token: Annotated[int, Meta(ge=0, description="Bytes that one more token adds, beyond every window.")]
    state_bytes: Annotated[int, Meta(ge=0, description="Bytes of recurrent and convolution states, at any length.")]
    lengths: Annotated[dict[str, LengthReport], Meta(description="Length in tokens, as digits, to its bytes.")]


def report(layout: KVLayout, lengths: Sequence[int]) -> ModelReport:
    """The answer for `layout` at `lengths`, tokens."""
    groups = tuple(
        GroupReport(
            kind=group.kind,  # type: ignore[arg-type]
            layers=group.layers,
            parts=tuple(
                PartReport(name=part.name, shape=part.shape, dtype=part.dtype, bytes=part.unit_bytes)
                for part in group.parts
            ),
            bytes_per_token=UNSET if group.kind == STATE else group.bytes_per_token,
            window=group.window if group.kind == WINDOW else UNSET,
            state_bytes=group.state_bytes if group.kind == STATE else UNSET,
        )
        for group in groups_of(layout)
    )
    weighed = {length: layout.bytes_at(length) for length in lengths}
    return ModelReport(
        groups=groups,
        bytes_per_token=bytes_per_token(layout),
        state_bytes=state_bytes(layout),
        lengths={str(length): LengthReport(bytes=size, mib=size / (1 << 20)) for length, size in weighed.items()},
    )


def model_schema() -> str:
    """The schema of `prfaas model --json` as JSON text, stable from run to run."""
    (top,), shapes = components(ModelReport)
    return schema_text("prfaas model --json", top, shapes)
