"""Token ids to text, piece by piece, and where stop strings end it.

It knows a tokenizer and strings; it does not know requests or streams of events. Whole answers are made by the same
machines as streamed ones, so both have the same text, whatever the tokens are.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"
MAX_HELD = 64
"""Tokens that are held back for an unfinished character. It has at most four bytes: more is noise."""


class Detokenizer:
    """Ids in, text out. A character whose bytes are spread over tokens comes when it is whole.

    Special tokens are no text. Tokens are decoded together with those of the piece before, since what a token adds may
    depend on its neighbour (a leading blank). `flush` gives what is held at the end: U+FFFD for a character that stayed
    unfinished.
    """

    __slots__ = ("_prefix", "_special", "_stable", "_tokenizer", "_window")

    def __init__(self, tokenizer: Tokenizer, special: frozenset[int]) -> None:
        self._tokenizer, self._special = tokenizer, special
        self._window: list[int] = []
        self._stable = 0  # ids of the window whose text, `_prefix`, was given out
        self._prefix = ""

    def push(self, token: int) -> str:
        """What `token` adds, perhaps nothing yet."""
        if token in self._special:
            return ""
        self._window.append(token)
        text = self._decode(self._window)
        if text.endswith(REPLACEMENT) and len(self._window) - self._stable < MAX_HELD:
            return ""
        return self._give(text)

    def flush(self) -> str:
        """What is still held back; the machine is empty then."""
        text = self._give(self._decode(self._window)) if len(self._window) > self._stable else ""
        self._window, self._stable, self._prefix = [], 0, ""
        return text

    def _give(self, text: str) -> str:
        fresh = self._window[self._stable :]
        alone = self._decode(fresh)
        # Where the decoder changed its mind about text that is out already (a run of byte tokens that turned out to be
        # no UTF-8), the new tokens count alone.
        piece = text[len(self._prefix) :] if text.startswith(self._prefix) else alone
        self._window, self._stable, self._prefix = fresh, len(fresh), alone
        return piece

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)


class StopMatcher:
    """Text in, text out up to the first stop string, which is no part of it.

    First is the one that ends first, the longer one if two end together: so it does not matter how the text was cut.
    Text that may be the beginning of a stop string is held back.
    """

    __slots__ = ("_held", "_stops", "hit")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(dict.fromkeys(stops))
        self._held = ""
        self.hit: str | None = None
        """The stop string that ended the text, or None."""

    def push(self, text: str) -> str:
        """What of the text so far is certain; "" after a hit."""
        if self.hit is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        ends = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            _, at, self.hit = min(ends)
            self._held = ""
            return text[:at]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What is held back at the end of the text."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


class TextStream:
    """A detokenizer and a stop matcher in a row: one answer's text."""

    __slots__ = ("_detokenizer", "_matcher", "chars")

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str]) -> None:
        self._detokenizer, self._matcher = detokenizer, StopMatcher(stops)
        self.chars = 0
        """Whole characters so far, those included that a stop string may still take away."""

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended the text."""
        return self._matcher.hit is not None

    def push(self, token: int) -> str:
        """What `token` adds to the text for certain."""
        return self._take(self._detokenizer.push(token))

    def finish(self) -> str:
        """The rest, when no token follows. `stopped` may become true by it."""
        return self._take(self._detokenizer.flush()) + self._matcher.flush()

    def _take(self, text: str) -> str:
        self.chars += len(text)
        return self._matcher.push(text)
