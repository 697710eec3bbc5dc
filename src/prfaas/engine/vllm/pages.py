"""The workers' cache tensors by layer and part: rows and states out of the pages, and into them.

It knows which tensor is which part of the layout; how rows lie in a page is `packing`'s, how bytes leave the device is
`staging`'s. It does not know requests or transfers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from prfaas.core.cache.layout import Part, PartKind
from prfaas.core.errors import InvariantError
from prfaas.core.transfer.extent import Extent, PartKey
from prfaas.engine.vllm.deals import Slice
from prfaas.engine.vllm.groups import Rows
from prfaas.engine.vllm.layout import CacheMap, LayerCache
from prfaas.engine.vllm.packing import RowView, cpu_places, packed, plain
from prfaas.engine.vllm.staging import Staging

Put = Callable[[int, Extent, memoryview], None]
"""The rank that it is for, what it is there, and its bytes."""

Slices = Mapping[PartKey, Sequence[Slice]]


@dataclass(frozen=True, slots=True)
class _Attention:
    parts: tuple[tuple[Part, RowView], ...]
    block_tokens: int
    kernel_tokens: int
    """Rows of one block of the tensor: vLLM may cut its blocks into several for the kernel."""


@dataclass(frozen=True, slots=True)
class _Recurrent:
    parts: tuple[Part, ...]
    pages: Any
    """(blocks, bytes): one page a block, the states one after the other at its beginning."""


class Pages:
    """All cache tensors of one worker. `isas`: the instruction set of each CPU attention layer, by name; empty on other
    devices."""

    def __init__(
        self, cache: CacheMap, tensors: Mapping[str, Any], blocks: int, isas: Mapping[str, str], staging: Staging
    ) -> None:
        self._staging = staging
        self._attention: dict[str, _Attention] = {}
        self._recurrent: dict[str, _Recurrent] = {}
        for name, layer in cache.layers.items():
            tensor = tensors[name]
            if layer.parts[0].kind is PartKind.STATE:
                raw = tensor.view(torch.uint8) if tensor.dtype != torch.uint8 else tensor
                self._recurrent[name] = _Recurrent(layer.parts, raw.reshape(raw.shape[0], -1))
            else:
                views = _views(layer, tensor, isas.get(name))
                tokens = cache.groups[layer.group].block_tokens
                kernel = tensor.shape[2]
                if tensor.shape[0] * kernel != blocks * tokens:
                    raise InvariantError(f"{name}: {tuple(tensor.shape)} is not {blocks} blocks of {tokens} tokens")
                self._attention[name] = _Attention(tuple(zip(layer.parts, views, strict=True)), tokens, kernel)

    def rows_out(self, name: str, rows: Rows, slices: Slices, put: Put) -> None:
        """Give the bytes of `rows` of attention layer `name` to `put`, by part and slice."""
        layer = self._attention[name]
        blocks, inside = _places(layer, rows)
        for part, view in layer.parts:
            given = slices.get((part.layer, part.name), ())
            if not given:
                continue
            values = view.read(blocks, inside)
            for one in given:
                extent = Extent(part.layer, part.name, rows.start, rows.stop, one.theirs)
                self._staging.gather(values[:, slice(*one.mine)], _bound(put, one.to, extent))

    def rows_in(
        self, name: str, rows: Rows, held: int, length: int, parts: Mapping[tuple[int, str], bytearray]
    ) -> None:
        """Put `rows` into layer `name` from landed `parts`, which begin after `held` of `length` tokens."""
        layer = self._attention[name]
        blocks, inside = _places(layer, rows)
        for part, view in layer.parts:
            first = max(held, part.first_row(length))
            data = _landed(parts, part, (length - first) * part.unit_bytes)
            piece = data[(rows.start - first) * part.unit_bytes : (rows.stop - first) * part.unit_bytes]
            shape = (rows.stop - rows.start, *part.shape)
            view.write(blocks, inside, self._staging.scatter(piece, _torch(part), shape))

    def state_out(self, name: str, block: int, length: int, slices: Slices, put: Put) -> None:
        """Give the states of recurrent layer `name` in `block`, true at `length` tokens, to `put`. A state is never
        cut."""
        layer, at = self._recurrent[name], 0
        for part in layer.parts:
            for one in slices.get((part.layer, part.name), ()):
                extent = Extent(part.layer, part.name, 0, length, one.theirs)
                piece = layer.pages[block, at : at + part.unit_bytes].clone()
                self._staging.gather(piece, _bound(put, one.to, extent))
            at += part.unit_bytes

    def state_in(self, name: str, block: int, parts: Mapping[tuple[int, str], bytearray]) -> None:
        """Put landed states into `block` of recurrent layer `name`."""
        layer, at = self._recurrent[name], 0
        for part in layer.parts:
            data = _landed(parts, part, part.unit_bytes)
            value = self._staging.scatter(data, torch.uint8, (part.unit_bytes,))
            layer.pages[block, at : at + part.unit_bytes] = value
            at += part.unit_bytes

    def settle(self) -> None:
        """Waits until all that went out has been put."""
        self._staging.settle()

    def is_recurrent(self, name: str) -> bool:
        """Whether layer `name` has states rather than rows."""
        return name in self._recurrent


def _bound(put: Put, to: int, extent: Extent) -> Callable[[memoryview], None]:
    return lambda data: put(to, extent, data)


def _views(layer: LayerCache, tensor: Any, isa: str | None) -> tuple[RowView, ...]:
    widths = tuple(part.shape[1] for part in layer.parts)
    heads = layer.parts[0].shape[0]
    if tensor.dim() != 4 or tensor.shape[1] != heads or tensor.shape[3] != sum(widths):
        raise InvariantError(f"{layer.name}: {tuple(tensor.shape)} is not (blocks, {heads}, rows, {sum(widths)})")
    if isa is None or len(widths) == 1:
        return plain(tensor, widths)
    if widths[0] != widths[1]:
        raise InvariantError(f"{layer.name}: keys of {widths[0]} and values of {widths[1]} in one packed page")
    return packed(tensor, widths[0], cpu_places(isa, tensor.shape[2], widths[0], tensor.dtype))


def _places(layer: _Attention, rows: Rows) -> tuple[Any, Any]:
    """For each row its block of the tensor, and its row in that."""
    first = rows.start - rows.start % layer.block_tokens
    offset = torch.arange(rows.start - first, rows.stop - first)
    blocks = torch.tensor(rows.blocks)[offset // layer.block_tokens]
    inside = offset % layer.block_tokens
    cut = layer.block_tokens // layer.kernel_tokens
    return blocks * cut + inside // layer.kernel_tokens, inside % layer.kernel_tokens


def _landed(parts: Mapping[tuple[int, str], bytearray], part: Part, wanted: int) -> memoryview:
    data = parts.get((part.layer, part.name))
    if data is None or len(data) != wanted:
        got = "nothing" if data is None else f"{len(data)} bytes"
        raise InvariantError(f"landed KV: layer {part.layer} {part.name} has {got}, expected {wanted} bytes")
    return memoryview(data)


def _torch(part: Part) -> Any:
    assert prod(part.shape) > 0
    return getattr(torch, part.dtype)
