"""Canonical block hashes: one name for a prefix of whole 64-token blocks, the same in every program and cluster.

It knows token ids and the key of a cache; it does not know engines, who holds what, or any engine's own hashes. A
block's hash stands for the whole prefix up to its end, so equal hashes at equal positions mean equal prefixes:

    root    = BLAKE2b, 8 bytes, of seed, model revision, tenant, salt, adapter: each as UTF-8 after its length (4 bytes)
    hash[0] = XXH3-64 of tokens 0 to 63,   seeded with root
    hash[k] = XXH3-64 of tokens 64k to 64k+63, seeded with hash[k-1]

Tokens are little-endian 32-bit words, hashes integers below 2^64. Tokens beyond the last whole block have no hash. A
hash plans where a request goes and what is copied; it is no proof of content: engines match by hashes of their own.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from xxhash import xxh3_64_intdigest

BLOCK_TOKENS = 64
WORD_BYTES = 4
BLOCK_BYTES = BLOCK_TOKENS * WORD_BYTES


@dataclass(frozen=True, slots=True)
class CacheKey:
    """Whose cache: prefixes with different keys share no hash.

    `revision` names model and weights (`KVLayout.revision`), `seed` is the topology's, `tenant` or `salt` keep callers
    apart that must not share, `adapter` is a LoRA's name.
    """

    revision: str
    seed: str = ""
    tenant: str = ""
    salt: str = ""
    adapter: str = ""

    def root(self) -> int:
        """What the first block's hash is seeded with."""
        digest = blake2b(digest_size=8, person=b"prfaas-block")
        for part in (self.seed, self.revision, self.tenant, self.salt, self.adapter):
            raw = part.encode()
            digest.update(len(raw).to_bytes(4, "little") + raw)
        return int.from_bytes(digest.digest(), "little")


def block_hashes(tokens: Sequence[int], parent: int) -> list[int]:
    """Hashes of the whole blocks of `tokens`, one each, after `parent`: a root, or the hash of the block before.

    Fastest on an `array("I")`, which is read in place. Raises OverflowError for an id that does not fit 32 bits.
    """
    words = _words(tokens)
    hashes = []
    for start in range(0, len(words) // BLOCK_BYTES * BLOCK_BYTES, BLOCK_BYTES):
        parent = xxh3_64_intdigest(words[start : start + BLOCK_BYTES], parent)
        hashes.append(parent)
    return hashes


def _words(tokens: Sequence[int]) -> memoryview:
    packed = tokens if isinstance(tokens, array) and tokens.typecode == "I" else array("I", tokens)
    if packed.itemsize != WORD_BYTES:  # C promises no more than 16 bits for it
        raise OverflowError(f"array('I') has {packed.itemsize} bytes an item here; expected {WORD_BYTES}")
    if sys.byteorder == "big":
        packed = packed[:]
        packed.byteswap()
    return memoryview(packed).cast("B")
