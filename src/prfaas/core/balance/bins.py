"""Lengths in bins: 32 an octave, so that none is wider than 3.2 % of what is in it, and short lengths are exact.

It knows whole numbers only: a bin is the length's leading bits, the same on every machine. Bin `b` holds the lengths
above `top_of(b - 1)`, up to and with `top_of(b)`.
"""

from __future__ import annotations

_BITS = 5
_EACH = 1 << _BITS
MOST_TOKENS = 1 << 24
"""Longer ones are counted as this long."""


def bin_of(tokens: int) -> int:
    """The bin of a length; what is below 1 counts as 1."""
    below = min(max(tokens, 1), MOST_TOKENS) - 1
    shift = below.bit_length() - _BITS - 1
    return below if shift <= 0 else (shift << _BITS) + (below >> shift)


def top_of(index: int) -> int:
    """The longest length of a bin, tokens."""
    shift = max((index >> _BITS) - 1, 0)
    return (index - (shift << _BITS) + 1) << shift


BINS = bin_of(MOST_TOKENS) + 1
