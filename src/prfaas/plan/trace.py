"""Recorded requests in Mooncake's format, and what of each a prefix cache would have saved.

A row is `{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}`: one id for each block
of the prompt, equal ids at equal places for equal prefixes. It knows rows, blocks and bytes a block; it does not know
models.
"""

from __future__ import annotations

import gzip
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, cast

import msgspec
from msgspec import Meta, Struct

from prfaas.core.errors import ConfigError

MAX_LINE_BYTES = 4 << 20
MAX_ROWS = 5_000_000


class Row(Struct, frozen=True):
    """One request."""

    input_length: Annotated[int, Meta(ge=1, le=1 << 30)]
    output_length: Annotated[int, Meta(ge=0, le=1 << 30)]
    hash_ids: tuple[int, ...] = ()
    timestamp: Annotated[float, Meta(ge=0)] = 0.0


@dataclass(frozen=True, slots=True)
class Asked:
    """Tokens of one request: those that must be computed, those of the whole prompt, those of the answer."""

    uncached: int
    context: int
    output: int


def read_trace(path: Path, block_tokens: int | None = None) -> Iterator[Row]:
    """The rows of `path`, in its order. Raises ConfigError with the line.

    `block_tokens`: what a hash id stands for, when rows are to be played against a cache. Then rows are in the order of
    their times, and one that has ids has one for each block of its prompt, the last of which may be part of one.
    """
    decoder = msgspec.json.Decoder(Row)
    number = rows = 0
    latest = 0.0
    try:
        with _opened(path) as file:
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES or number > MAX_ROWS:
                    what = f"a line above {MAX_LINE_BYTES >> 20} MiB" if number <= MAX_ROWS else f"row {number}"
                    raise ConfigError(f"{path}:{number}: {what}; expected a smaller trace")
                if line.strip():
                    row = decoder.decode(line)
                    if block_tokens is not None:
                        if wrong := _wrong(row, block_tokens, latest):
                            raise ConfigError(f"{path}:{number}: {wrong}")
                        latest = row.timestamp
                    rows += 1
                    yield row
    except msgspec.DecodeError as error:
        what = str(error).replace("`", "")
        raise ConfigError(f"{path}:{number}: {what}; expected a row of a trace, such as {_EXAMPLE}") from None
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; expected a trace, .jsonl or .jsonl.gz") from None
    except (OSError, EOFError, zlib.error) as error:
        what = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{path}:{number + 1}: cannot be read: {what}") from None
    if not rows:
        what = "no rows, only blank lines" if number else "the file is empty"
        raise ConfigError(f"{path}:1: {what}; expected a trace, .jsonl or .jsonl.gz")


def _wrong(row: Row, block_tokens: int, latest: float) -> str | None:
    """Why a row cannot be played against a cache after one that came at `latest`."""
    if row.timestamp < latest:
        return f"timestamp: got {row.timestamp:.15g}, after {latest:.15g} above it; expected rows in the order of time"
    blocks = -(-row.input_length // block_tokens)
    if row.hash_ids and len(row.hash_ids) != blocks:
        return (
            f"hash_ids: got {len(row.hash_ids)} for {row.input_length} tokens; expected {blocks}, "
            f"one for each block of {block_tokens} tokens (`block_tokens`)"
        )
    return None


def with_hits(rows: Iterable[Row], block_tokens: int, most_blocks: int | None) -> Iterator[Asked]:
    """What is left to compute of each row when all before it share one prefix cache of `most_blocks` blocks (None:
    boundless), the least recently used of which go first. The last token of a prompt is always computed."""
    held: OrderedDict[int, None] = OrderedDict()
    for row in rows:
        found = 0
        for block in row.hash_ids:
            if block not in held:
                break
            found += 1
        for block in reversed(row.hash_ids):  # the head of a prefix is the last of it to go
            held[block] = None
            held.move_to_end(block)
        while most_blocks is not None and len(held) > most_blocks:
            held.popitem(last=False)
        cached = min(found * block_tokens, row.input_length - 1)
        yield Asked(row.input_length - cached, row.input_length, row.output_length)


def without_hits(rows: Iterable[Row]) -> Iterator[Asked]:
    """Every row computed whole."""
    return (Asked(row.input_length, row.input_length, row.output_length) for row in rows)


def _opened(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb"))


_EXAMPLE = '{"timestamp": 0, "input_length": 4096, "output_length": 100, "hash_ids": [1, 2, 3, 4, 5, 6, 7, 8]}'
