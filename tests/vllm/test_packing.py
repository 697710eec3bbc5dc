"""Rows in and out of pages, whatever order a kernel packs them in."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from prfaas.core.errors import ConfigError  # noqa: E402
from prfaas.engine.vllm.packing import Scattered, Strided, packed, places_of, plain  # noqa: E402

ROWS, WIDTH = 32, 8


def row_major(row, column):
    return row * WIDTH + column


def transposed(row, column):
    return column * ROWS + row


def tiled(row, column):
    """Pairs of columns together, in tiles of 16 rows: what matrix units like."""
    return (row // 16) * 16 * WIDTH + (column // 2) * 32 + row % 16 * 2 + column % 2


def kernel(order):
    def write(key, value, page, slots):
        flat = page.view(-1)
        for row in range(ROWS):
            for column in range(WIDTH):
                flat[order(row, column)] = key[row, 0, column]
                flat[ROWS * WIDTH + row * WIDTH + column] = value[row, 0, column]

    return write


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("order", "kind"),
    [(row_major, Strided), (transposed, Strided), (tiled, Scattered)],
    ids=["rows", "columns", "tiles"],
)
def test_the_order_is_found_out_and_followed(order, kind, dtype):
    places = places_of(kernel(order), ROWS, WIDTH, dtype)
    assert all(int(places[0][row, column]) == order(row, column) for row in range(ROWS) for column in range(WIDTH))
    cache = torch.zeros(5, 2, ROWS, 2 * WIDTH, dtype=dtype)
    key, value = packed(cache, WIDTH, places)
    assert isinstance(key, kind)
    assert isinstance(value, Strided)
    blocks, rows = torch.tensor([3, 3, 1]), torch.tensor([30, 31, 0])
    given = torch.arange(3 * 2 * WIDTH).view(3, 2, WIDTH).to(dtype)
    key.write(blocks, rows, given)
    value.write(blocks, rows, -given)
    assert torch.equal(key.read(blocks, rows), given)
    assert torch.equal(value.read(blocks, rows), -given)
    assert int(torch.count_nonzero(cache)) == 2 * given.numel() - 2, "nothing else was written"
    assert cache[3, 1].flatten()[order(30, 2)] == given[0, 1, 2]


def test_a_kernel_that_keeps_less_than_it_is_given():
    def write(key, value, page, slots):
        page.view(-1)[: WIDTH * ROWS - 1] = key.flatten()[:-1]

    with pytest.raises(ConfigError, match="packs its cache in a way"):
        places_of(write, ROWS, WIDTH, torch.float32)


def test_parts_side_by_side_in_each_row():
    cache = torch.zeros(4, 2, ROWS, 24)
    key, value = plain(cache, (16, 8))
    at = torch.tensor([2]), torch.tensor([5])
    key.write(*at, torch.ones(1, 2, 16))
    value.write(*at, torch.full((1, 2, 8), 2.0))
    assert torch.equal(cache[2, :, 5], torch.tensor([1.0] * 16 + [2.0] * 8).expand(2, 24))
