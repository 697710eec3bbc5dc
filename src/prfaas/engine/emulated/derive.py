"""KV and answers, derived from tokens: so every node makes the same ones, and knows wrong ones when it sees them.

A prefix has a digest, chained over blocks of 64 tokens. A part's rows of a block are expanded from the digest of the
block's prefix, a state from that of the whole prompt; so equal prefixes have equal blocks. The next token follows from
the digest of all tokens before it and from how the KV that is held differs from what it should be: from right KV comes
the right answer, from any other a different one. It knows layouts and tokens; it does not know time, sockets or
engines.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import shake_128

from xxhash import xxh3_64_intdigest, xxh3_128, xxh3_128_digest

from prfaas.core.cache.layout import KVLayout, Part, PartKind
from prfaas.engine.base import Logprobs
from prfaas.transport.base import LandedKV

BLOCK_TOKENS = 64
MEAN_ANSWER_TOKENS = 256
"""One token in so many ends the answer, unless end marks are ignored."""

_WORD = 4
_PAGE = 4096
_STEP_ROWS = BLOCK_TOKENS * 32
"""Rows that are made at a time while KV is checked, so that the event loop gets its turn."""


class Chain:
    """The digests of the prefixes of `tokens`, which may grow."""

    __slots__ = ("_blocks", "_words")

    def __init__(self, tokens: Sequence[int]) -> None:
        words = array("I", tokens)
        if sys.byteorder == "big":
            words.byteswap()
        self._words = bytearray(words.tobytes())
        self._blocks = [bytes(16)]
        self._extend()

    @property
    def length(self) -> int:
        """Tokens."""
        return len(self._words) // _WORD

    @property
    def tokens(self) -> array[int]:
        """All of them."""
        words = array("I", bytes(self._words))
        if sys.byteorder == "big":
            words.byteswap()
        return words

    def append(self, token: int) -> None:
        """One token more."""
        self._words += token.to_bytes(_WORD, "little")
        self._extend()

    def digest(self, length: int) -> bytes:
        """16 bytes: of the first `length` tokens."""
        block = length // BLOCK_TOKENS
        if length % BLOCK_TOKENS == 0:
            return self._blocks[block]
        return xxh3_128_digest(self._blocks[block] + self._words[block * BLOCK_TOKENS * _WORD : length * _WORD])

    def _extend(self) -> None:
        size = BLOCK_TOKENS * _WORD
        while len(self._blocks) <= len(self._words) // size:
            block = len(self._blocks) - 1
            self._blocks.append(xxh3_128_digest(self._blocks[block] + self._words[block * size : (block + 1) * size]))


def kv(part: Part, chain: Chain, start: int, stop: int, length: int) -> bytes:
    """The part's rows [start, stop) for a prompt of the chain's first `length` tokens, or its state there (STATE)."""
    salt = f"{part.layer} {part.name}".encode()
    unit = part.unit_bytes
    if part.kind is PartKind.STATE:
        return _expanded(chain.digest(length) + salt, unit)
    pieces = []
    for first in range(start // BLOCK_TOKENS * BLOCK_TOKENS, stop, BLOCK_TOKENS):
        last = min(first + BLOCK_TOKENS, length)
        piece = _expanded(chain.digest(last) + salt, (min(last, stop) - first) * unit)
        pieces.append(piece[(start - first) * unit :] if first < start else piece)
    return b"".join(pieces)


def _expanded(key: bytes, size: int) -> bytes:
    """`size` bytes from `key`; fewer are a beginning of more. Pages after the first are the first, numbered: making
    megabytes of chance would take longer than sending them."""
    page = shake_128(key).digest(min(size, _PAGE))
    if size <= _PAGE:
        return page
    pages = bytearray(page * -(-size // _PAGE))
    for at in range(1, -(-size // _PAGE)):
        pages[at * _PAGE : at * _PAGE + _WORD] = at.to_bytes(_WORD, "little")
    return bytes(pages[:size])


def deviations(layout: KVLayout, chain: Chain, landed: LandedKV) -> Iterator[bytes]:
    """What of `landed` is not the KV of the chain's first `landed.length` tokens: nothing when all is right.

    Yields b"" between pieces of work, and then once a digest of all that is wrong or missing, if anything is.
    """
    length, wrong = landed.length, xxh3_128()
    found = False
    for part in layout.parts:
        rows = part.kind is not PartKind.STATE
        first = max(landed.held, part.first_row(length)) if rows else 0
        got = memoryview(landed.parts.get((part.layer, part.name), b""))
        at = 0
        for start in range(first, length, _STEP_ROWS) if rows else (0,):
            expected = kv(part, chain, start, min(start + _STEP_ROWS, length), length)
            piece = bytes(got[at : at + len(expected)])  # a view would be compared byte by byte in Python's time
            at += len(expected)
            if piece != expected:
                found = True
                wrong.update(f"{part.layer} {part.name} {at} {len(piece)}".encode())
                wrong.update(piece)
            yield b""
        if at != len(got):
            found = True
            wrong.update(f"{part.layer} {part.name} {len(got)}".encode())
    if found:
        yield wrong.digest()


@dataclass(frozen=True, slots=True)
class Letters:
    """Which ids an answer is made of: `printable` ones, and `ends`, an end mark."""

    printable: tuple[int, ...]
    ends: int

    def next(self, digest: bytes, deviation: bytes, chance: bytes) -> int:
        """The id after the tokens of `digest`. `chance`: b"" for the likeliest, else one of the others by it too."""
        drawn = xxh3_64_intdigest(digest + deviation + chance)
        if drawn % MEAN_ANSWER_TOKENS == 0:
            return self.ends
        return self.printable[(drawn >> 16) % len(self.printable)]

    def likely(self, digest: bytes, deviation: bytes, chosen: int, top: int) -> Logprobs:
        """Made-up logarithms, falling by rank from the likeliest on; what is not among the first has those after."""
        best = self.next(digest, deviation, b"")
        others = (one for one in (*self.printable, self.ends) if one != best)
        ranked = [best, *others]
        own = ranked.index(chosen) if chosen in ranked else len(ranked)
        return Logprobs(_logarithm(own), tuple((one, _logarithm(rank)) for rank, one in enumerate(ranked[:top])))


def _logarithm(rank: int) -> float:
    return -(rank + 1) / 4
