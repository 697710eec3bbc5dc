"""How one attention layer's rows lie inside its pages: views of them as (block, row, head, width).

It knows the tensors that vLLM 0.32 hands to connectors, (blocks, heads, rows, numbers), and that its CPU kernels pack K
and V of a page in an order of their own, which is asked of the kernel itself. It does not know layers or requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch

from prfaas.core.errors import ConfigError


class RowView(Protocol):
    """Rows of one part. `blocks` and `rows` are index tensors of the same length: the kernel's blocks, rows in them."""

    def read(self, blocks: Any, rows: Any) -> Any:
        """(tokens, heads, width), a copy."""

    def write(self, blocks: Any, rows: Any, values: Any) -> None:
        """Put (tokens, heads, width) there."""


@dataclass(frozen=True, slots=True)
class Strided:
    """Rows that a view of shape (blocks, rows, heads, width) shows."""

    view: Any

    def read(self, blocks: Any, rows: Any) -> Any:
        """See RowView."""
        return self.view[blocks, rows]

    def write(self, blocks: Any, rows: Any, values: Any) -> None:
        """See RowView."""
        self.view[blocks, rows] = values


@dataclass(frozen=True, slots=True)
class Scattered:
    """Rows whose numbers lie anywhere in a head's share of the page: `pages` is (blocks, heads, numbers), `places`
    (rows, width) says where."""

    pages: Any
    places: Any

    def _at(self, blocks: Any, rows: Any) -> tuple[Any, Any, Any]:
        heads = torch.arange(self.pages.shape[1], device=self.pages.device)
        return blocks[:, None, None], heads[None, :, None], self.places[rows][:, None, :]

    def read(self, blocks: Any, rows: Any) -> Any:
        """See RowView."""
        return self.pages[self._at(blocks, rows)]

    def write(self, blocks: Any, rows: Any, values: Any) -> None:
        """See RowView."""
        self.pages[self._at(blocks, rows)] = values


Probe = Callable[[Any, Any, Any, Any], None]
"""(key, value, cache, slots): let the kernel write rows into a cache of one block."""


def plain(cache: Any, widths: tuple[int, ...]) -> tuple[RowView, ...]:
    """One view a part of a cache (blocks, heads, rows, sum of `widths`), whose parts lie side by side in each row."""
    views, at = [], 0
    for width in widths:
        views.append(Strided(cache[..., at : at + width].transpose(1, 2)))
        at += width
    return tuple(views)


def packed(cache: Any, width: int, places: tuple[Any, Any]) -> tuple[RowView, RowView]:
    """K and V of a cache whose pages are packed as `places` (see `places_of`) say."""
    blocks, heads, rows, _ = cache.shape
    pages = cache.view(blocks, heads, -1)
    return _view(pages, rows, width, places[0]), _view(pages, rows, width, places[1])


def places_of(probe: Probe, rows: int, width: int, dtype: Any) -> tuple[Any, Any]:
    """Where in a page the kernel puts each number of K and of V: two tensors (rows, width) of offsets.

    Found out by letting it write numbers that name their row and column. Raises ConfigError when it does not put each
    of them in a place of its own.
    """
    found = []
    for side in (0, 1):
        row = _digits(probe, rows, width, dtype, side, torch.arange(rows)[:, None].expand(rows, width))
        column = _digits(probe, rows, width, dtype, side, torch.arange(width)[None, :].expand(rows, width))
        places = torch.full((rows, width), -1)
        here = row >= 0
        places[row[here], column[here]] = torch.nonzero(here).flatten()
        if int(here.sum()) != rows * width or bool((places < 0).any()):
            raise ConfigError("this attention kernel packs its cache in a way that cannot be moved")
        found.append(places)
    return found[0], found[1]


def _digits(probe: Probe, rows: int, width: int, dtype: Any, side: int, numbers: Any) -> Any:
    """What of `numbers` (rows, width) is at each offset of a page, -1 where nothing was written."""
    total = torch.zeros(2 * rows * width, dtype=torch.long)
    seen = torch.zeros(2 * rows * width, dtype=torch.bool)
    for power in (1, 100):  # two digits of base 100: exact in 8 bits of mantissa
        digit = (numbers // power % 100 + 1).to(dtype).view(rows, 1, width).contiguous()
        nothing, page = torch.zeros_like(digit), torch.zeros(1, 1, rows, 2 * width, dtype=dtype)
        pair = (digit, nothing) if side == 0 else (nothing, digit)
        probe(pair[0], pair[1], page, torch.arange(rows))
        flat = page.flatten().to(torch.long)
        seen |= flat > 0
        total += (flat - 1).clamp(min=0) * power
    return torch.where(seen, total, torch.full_like(total, -1))


def _view(pages: Any, rows: int, width: int, places: Any) -> RowView:
    blocks, heads, _ = pages.shape
    row_step, column_step = _step(places[:, 0]), _step(places[0])
    base = int(places[0, 0])
    regular = base + row_step * torch.arange(rows)[:, None] + column_step * torch.arange(width)[None, :]
    if not torch.equal(regular, places):
        return Scattered(pages, places.to(pages.device))
    strides = (pages.stride(0), row_step, pages.stride(1), column_step)
    offset = pages.storage_offset() + base
    return Strided(pages.as_strided((blocks, rows, heads, width), strides, offset))


def _step(offsets: Any) -> int:
    return int(offsets[1] - offsets[0]) if len(offsets) > 1 else 1


@cache
def cpu_places(isa: str, rows: int, width: int, dtype: Any) -> tuple[Any, Any]:
    """`places_of` vLLM's CPU attention kernel for the instruction set `isa`."""
    from vllm import _custom_ops as ops

    def probe(key: Any, value: Any, page: Any, slots: Any) -> None:
        pages = page.view(1, 1, rows * 2, width)
        key_cache, value_cache = pages.chunk(2, dim=2)
        ops.cpu_attn_reshape_and_cache(key, value, key_cache, value_cache, slots, isa)

    return places_of(probe, rows, width, dtype)
