"""Between cache tensors and pieces: what is kept of a sequence's blocks, and a cache made of them.

It knows the order of bytes in a piece and how a cache is filled; it does not know who keeps pieces. A piece is a tensor
of bytes of its own on the model's device, never written again: of a block of tokens the rows of every part that grows,
part after part; of a snapshot as many bytes of all windows and states in one as a block has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from prfaas.core.cache.layout import KVLayout, Part, PartKind
from prfaas.core.cache.spec import PoolSpec, block_bytes
from prfaas.core.errors import InvariantError
from prfaas.core.transfer.extent import PartKey
from prfaas.engine.reuse import Piece, Reuse
from prfaas.engine.transformers import kvmap
from prfaas.engine.transformers.layout import dtype_named, tensor_of
from prfaas.transport.base import LandedKV


def rows(cache: Any, layout: KVLayout, spec: PoolSpec, first: int, stop: int) -> list[Piece]:
    """The pieces of blocks [first, stop) of a cache that has at least these. Copies."""
    if stop <= first:
        return []
    start, end = first * spec.block_tokens, stop * spec.block_tokens
    columns = []
    for part in layout.parts:
        if part.kind is not PartKind.TOKENS:
            continue
        cut = tensor_of(cache.layers[part.layer], part.name)[0, :, start:end].transpose(0, 1).contiguous()
        columns.append(cut.view(torch.uint8).view(stop - first, -1))
    return [torch.cat([column[at] for column in columns]) for at in range(stop - first)]


def state(cache: Any, layout: KVLayout, spec: PoolSpec, length: int) -> list[Piece]:
    """The pieces of the snapshot of a cache that has exactly `length` tokens. Copies."""
    values = []
    for part in layout.parts:
        if part.kind is PartKind.TOKENS:
            continue
        tensor = tensor_of(cache.layers[part.layer], part.name)
        if part.kind is PartKind.WINDOW:
            tensor = tensor[0].transpose(0, 1)
            if tensor.shape[0] != length - part.first_row(length):
                raise InvariantError(f"layer {part.layer} has {tensor.shape[0]} rows of a window at {length} tokens")
        values.append(tensor.contiguous().view(-1).view(torch.uint8))
    whole, size = torch.cat(values), block_bytes(layout, spec.block_tokens)
    return [whole[at * size : (at + 1) * size].clone() for at in range(spec.snapshot_blocks)]


def landed_rows(landed: LandedKV, layout: KVLayout, spec: PoolSpec, first: int, device: str) -> list[Piece]:
    """The pieces of the full blocks from block `first` on of KV that came from elsewhere. Copies."""
    size, stop = spec.block_tokens, landed.length // spec.block_tokens
    if stop <= first:
        return []
    columns = []
    for part in layout.parts:
        if part.kind is PartKind.TOKENS:
            there, width = _landed(landed, part, landed.held), part.unit_bytes
            cut = there[(first * size - landed.held) * width : (stop * size - landed.held) * width]
            columns.append(cut.view(stop - first, -1))
    return [torch.cat([column[at] for column in columns]).to(device) for at in range(stop - first)]


def landed_state(landed: LandedKV, layout: KVLayout, spec: PoolSpec, device: str) -> list[Piece]:
    """The pieces of the snapshot at the end of KV that came from elsewhere, with all of its windows. Copies."""
    values = [
        _landed(landed, part, part.first_row(landed.length))
        for part in layout.parts
        if part.kind is not PartKind.TOKENS
    ]
    whole, size = torch.cat(values), block_bytes(layout, spec.block_tokens)
    return [whole[at * size : (at + 1) * size].clone().to(device) for at in range(spec.snapshot_blocks)]


def _landed(landed: LandedKV, part: Part, first: int) -> Any:
    """The bytes of `part` from row `first` on. Raises InvariantError when they are not all there."""
    buffer = landed.parts.get((part.layer, part.name), bytearray())
    wanted = part.unit_bytes * (1 if part.kind is PartKind.STATE else landed.length - first)
    if len(buffer) != wanted:
        where = f"landed KV of {landed.length} tokens: layer {part.layer} {part.name}"
        raise InvariantError(f"{where} has {len(buffer)} bytes, expected {wanted}")
    return torch.frombuffer(buffer, dtype=torch.uint8)


def resume(cache: Any, layout: KVLayout, spec: PoolSpec, reuse: Reuse) -> None:
    """Puts what `reuse` resumes from into the empty `cache`, as if the model had computed those tokens. Copies.

    Raises InvariantError when pieces are missing or have the wrong size.
    """
    there = values(layout, spec, reuse)
    for layer in layout.layers():
        filled = {}
        for part in layout.of_layer(layer):
            data = there.get((part.layer, part.name))
            if data is None:
                raise InvariantError(f"the snapshot at {reuse.tokens} tokens ends before layer {layer} {part.name}")
            filled[part.name] = kvmap.shaped(part, kvmap.flat(data).view(dtype_named(part.dtype)), data.device)
        kvmap.place(cache.layers[layer], filled, reuse.tokens)


def values(layout: KVLayout, spec: PoolSpec, reuse: Reuse) -> dict[PartKey, Any]:
    """What `reuse` resumes from: of each part its bytes, once they are `flat`. Without a snapshot only of those parts
    that grow.

    Raises InvariantError when pieces of rows are missing or have the wrong size.
    """
    length, size = reuse.tokens, block_bytes(layout, spec.block_tokens)
    blocks: Sequence[Any] = reuse.blocks
    if len(blocks) * spec.block_tokens != length or any(piece.numel() != size for piece in blocks):
        raise InvariantError(f"a prefix of {length} tokens has {len(blocks)} blocks, or one of another size")
    whole = torch.stack(list(blocks))
    states: Any = torch.cat(list(reuse.state)) if reuse.state else None
    found: dict[PartKey, Any] = {}
    grown = at = 0
    for part in layout.parts:
        if part.kind is PartKind.TOKENS:
            width = part.unit_bytes * spec.block_tokens
            found[part.layer, part.name] = whole[:, grown : grown + width]
            grown += width
            continue
        width = part.bytes_at(length)
        if states is not None and at + width <= states.numel():
            found[part.layer, part.name] = states[at : at + width]
        at += width
    return found
