"""Between extents and cache tensors: cut bytes out of a cache, build a cache from bytes.

It knows the canonical order of bytes (rows as (tokens, heads, width), states as they are) and that transformers
updates states in place and keeps (1, heads, tokens, width). It does not know models, chunks or who receives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from prfaas.core.cache.layout import KVLayout, Part, PartKind
from prfaas.core.errors import InvariantError
from prfaas.core.transfer.extent import Extent, PartKey
from prfaas.engine.landed import kept_rows
from prfaas.engine.transformers.layout import dtype_named, tensor_of
from prfaas.transport.base import LandedKV

NOTHING_KEPT: Mapping[PartKey, Any] = {}


def cut(layer: Any, part: Part, start: int, stop: int, length: int) -> Iterator[tuple[Extent, memoryview]]:
    """What of `part` is final once its layer computed tokens [start, stop) of `length`: at most one extent, its bytes.

    Rows that leave the window before `length` are left out; a state is final at `length` only. The bytes are a copy.
    """
    heads = (0, part.shape[0])
    tensor = tensor_of(layer, part.name)
    if part.kind is PartKind.STATE:
        if stop == length:
            yield Extent(part.layer, part.name, 0, length, heads), _copy_out(tensor, part)
        return
    first = max(start, part.first_row(length))
    if first < stop:
        base = stop - tensor.shape[2]  # the token of the first row that the layer still has
        rows = tensor[0, :, first - base : stop - base].transpose(0, 1)
        yield Extent(part.layer, part.name, first, stop, heads), _copy_out(rows, part)


def fill(
    cache: Any, layout: KVLayout, landed: LandedKV, device: str, kept: Mapping[PartKey, Any] = NOTHING_KEPT
) -> None:
    """Put `landed` into the empty `cache`, as if the model had computed those tokens. Copies everything.

    `kept`: bytes of the parts of the `landed.held` tokens that it builds on, to be made flat. Raises InvariantError
    when parts are missing or have the wrong size: a landed cache is complete by promise.
    """
    if landed.length == 0:
        return
    for index in layout.layers():
        filled = {}
        for part in layout.of_layer(index):
            filled[part.name] = _copy_in(part, landed, device, kept.get((part.layer, part.name)))
        place(cache.layers[index], filled, landed.length)


def place(layer: Any, filled: dict[str, Any], length: int) -> None:
    """Make `filled`, the tensors of all parts of an empty cache layer, its own, at `length` tokens."""
    if "k" in filled:
        layer.lazy_initialization(filled["k"], filled["v"])
        layer.keys, layer.values = filled["k"], filled["v"]
        if hasattr(layer, "cumulative_length"):
            layer.cumulative_length = length
    for name, value in filled.items():
        if name not in ("k", "v"):
            kind, state = name.split(".")
            layer.lazy_initialization(**{f"{kind}_states": value, "state_idx": int(state)})
            tensor_of(layer, name).copy_(value)
            layer.has_previous_state[int(state)] = True


def shaped(part: Part, values: Any, device: Any) -> Any:
    """A copy on `device` of `values`, flat and in the canonical order, as a cache has them."""
    if part.kind is PartKind.STATE:
        there = values.view(part.shape if part.name.startswith("conv") else (1, *part.shape))
    else:
        heads, width = part.shape
        there = values.view(-1, heads, width).transpose(0, 1).unsqueeze(0)
    return torch.empty(there.shape, dtype=values.dtype, device=device).copy_(there)


def flat(values: Any) -> Any:
    """A contiguous copy, in one dimension."""
    return values.clone().reshape(-1)


def settle(cache: Any, layout: KVLayout) -> None:
    """Lay the tensors of `cache` out as `fill` does: for other strides a kernel may round otherwise."""
    for part in layout.parts:
        layer = cache.layers[part.layer]
        tensor = tensor_of(layer, part.name)
        if tensor is None or tensor.is_contiguous():
            continue
        if part.name == "k":
            layer.keys = tensor.contiguous()
        elif part.name == "v":
            layer.values = tensor.contiguous()
        else:
            kind, state = part.name.split(".")
            (layer.conv_states if kind == "conv" else layer.recurrent_states)[int(state)] = tensor.contiguous()


def _copy_out(tensor: Any, part: Part) -> memoryview:
    buffer = bytearray(tensor.numel() * tensor.element_size())
    torch.frombuffer(buffer, dtype=dtype_named(part.dtype)).view(tensor.shape).copy_(tensor)
    return memoryview(buffer).toreadonly()


def _copy_in(part: Part, landed: LandedKV, device: str, kept: Any) -> Any:
    buffer = landed.parts.get((part.layer, part.name))
    rows = kept_rows(part, landed)
    before = len(rows) * part.unit_bytes
    wanted = part.bytes_at(landed.length) - before
    if buffer is None or len(buffer) != wanted:
        got = "nothing" if buffer is None else f"{len(buffer)} bytes"
        where = f"landed KV of {landed.length} tokens, {landed.held} held: layer {part.layer} {part.name}"
        raise InvariantError(f"{where} has {got}, expected {wanted} bytes")
    new = torch.frombuffer(buffer, dtype=dtype_named(part.dtype))
    if before == 0:
        return shaped(part, new, device)
    if kept is None or kept.numel() < before:
        got = "nothing" if kept is None else f"{kept.numel()} bytes"
        raise InvariantError(
            f"kept KV of {landed.held} tokens: layer {part.layer} {part.name} has {got}, expected {before} bytes"
        )
    old = flat(kept)[kept.numel() - before :].view(new.dtype)  # a window reaches less far back now than it did
    return shaped(part, torch.cat([old, new.to(old.device)]), device)
