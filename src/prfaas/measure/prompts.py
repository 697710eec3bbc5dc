"""Prompts of a wanted number of tokens that no cache has seen.

It knows words and counts; it does not know endpoints. Common words of four letters: one token each for most
tokenizers, five for one of bytes, so that prompts of as many words are nearly always of as many tokens.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

COMMON = """
time year work life hand part case week room home area game line city name team idea body back face door side kind head
hour book word blue gold land sand wind rain snow fire tree leaf rock ship boat road path wall roof lamp desk ring bell
song tale note page list plan task rule test code data file disk node link byte rate size
"""
WORDS = tuple(COMMON.split())


@dataclass(slots=True)
class Prompts:
    """Text of about so many tokens: `base` and `each` word, which two counted prompts tell. `chance` chooses words."""

    chance: random.Random
    base: float = 0.0
    each: float = 1.0

    def words(self, count: int) -> str:
        """`count` words."""
        return " ".join(self.chance.choices(WORDS, k=count))

    def calibrate(self, words: tuple[int, int], tokens: tuple[int, int]) -> None:
        """Prompts of so many words had so many tokens."""
        self.each = (tokens[1] - tokens[0]) / (words[1] - words[0])
        self.base = tokens[0] - self.each * words[0]

    def of_tokens(self, tokens: int) -> str:
        """A prompt of about that many tokens, at least one word."""
        return self.words(self._words(tokens))

    def expected(self, tokens: int) -> int:
        """How many tokens `of_tokens` really gives, as far as is known."""
        return max(1, round(self.base + self.each * self._words(tokens)))

    def more(self, tokens: int) -> str:
        """What makes a prompt about that many tokens longer."""
        return " " + self.words(max(1, round(tokens / self.each)))

    def _words(self, tokens: int) -> int:
        return max(1, round((tokens - self.base) / self.each))
