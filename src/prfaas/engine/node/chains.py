"""Names for prefixes of whole blocks, of one node and nobody else.

It knows token ids and block sizes; it does not know pools. An id stands for all tokens up to its block's end. It is 16
bytes of keyed BLAKE2b, after the id before it, and the key is made anew in each process: whoever writes prompts cannot
make two that share one, and so read what is not theirs.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from hashlib import blake2b

ID_BYTES = 16


class Chains:
    """Makes ids for blocks of `block_tokens` tokens."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._key = os.urandom(32)

    def of(self, tokens: Sequence[int], length: int, known: Sequence[int] = ()) -> list[int]:
        """The ids of the full blocks of the first `length` tokens. `known`: the first of them, when they are."""
        chain = list(known[: length // self._block_tokens])
        words = memoryview(tokens if isinstance(tokens, array) else array("I", tokens)).cast("B")
        size = self._block_tokens * (words.nbytes // max(1, len(tokens)))
        parent = chain[-1].to_bytes(ID_BYTES, "little") if chain else b""
        for at in range(len(chain), length // self._block_tokens):
            parent = blake2b(parent + words[at * size : (at + 1) * size], digest_size=ID_BYTES, key=self._key).digest()
            chain.append(int.from_bytes(parent, "little"))
        return chain
