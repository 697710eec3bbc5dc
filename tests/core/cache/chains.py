"""Chains for tests: words become block ids, so that equal ids at equal positions mean equal prefixes."""

from __future__ import annotations

from hypothesis import strategies as st

from prfaas.core.cache.spec import PoolSpec

BLOCK = 64
WORDS = st.lists(st.integers(0, 2), max_size=7)
SPECS = [PoolSpec(BLOCK), PoolSpec(BLOCK, 1), PoolSpec(BLOCK, 3), PoolSpec(16, 2), PoolSpec(BLOCK, 2, 0, 150)]


class Chains:
    """Numbers prefixes in the order in which they are met."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int, ...], int] = {}

    def of(self, word: list[int]) -> list[int]:
        """The chain of `word`, one id a letter."""
        return [self._ids.setdefault(tuple(word[: end + 1]), len(self._ids)) for end in range(len(word))]
