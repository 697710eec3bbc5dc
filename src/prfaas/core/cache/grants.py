"""What a prefix pool answers: what a request was given, what was kept of it, what it holds.

It knows lengths and block numbers; it does not know the pool.
"""

from __future__ import annotations


class Grant:
    """What `begin` gave. `cached_tokens`: usable prefix, pinned; `shared_tokens`: how far the stored blocks agree with
    the chain, at least `cached_tokens`: where the request leaves what is known, and so where a snapshot would serve
    the next one; `blocks`: working blocks that were reserved."""

    __slots__ = ("blocks", "cached_tokens", "shared_tokens")

    def __init__(self, cached_tokens: int, shared_tokens: int, blocks: int) -> None:
        self.cached_tokens = cached_tokens
        self.shared_tokens = shared_tokens
        self.blocks = blocks


class Kept:
    """What became reusable. `tokens`: length of the stored prefix now; `blocks`: numbers of its last blocks, those
    that were not stored before; `states`: of each new snapshot its length in tokens and its block numbers, for who has
    bytes to put there."""

    __slots__ = ("blocks", "states", "tokens")

    def __init__(self, tokens: int, blocks: list[int], states: list[tuple[int, list[int]]]) -> None:
        self.tokens = tokens
        self.blocks = blocks
        self.states = states


class Held:
    """The blocks of one request. `prefix`: shared, in order; `state`: the snapshot that it resumes from; `own`: its
    working or transfer blocks, those for tokens first and in order, then those for its running state."""

    __slots__ = ("own", "prefix", "state")

    def __init__(self, prefix: list[int], state: list[int], own: list[int]) -> None:
        self.prefix = prefix
        self.state = state
        self.own = own
