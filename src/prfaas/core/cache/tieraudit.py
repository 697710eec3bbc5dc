"""The books of a cache of two tiers, added up again from nothing.

It knows what the pools and moves keep and what must hold of them; it changes nothing. The cost is of all that is
stored: for tests, and for whoever suspects a bug.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prfaas.core.errors import InvariantError

if TYPE_CHECKING:
    from prfaas.core.cache.tiers import TieredPool


def audit_tiers(pool: TieredPool) -> None:
    """Raises InvariantError when a tier's books do not balance, when a block that a move reads may be written to or
    one that it writes is a hit, when others than requests and moves hold blocks, or when a request waits for a move
    that is over."""
    near, host = pool.near, pool.host
    near.validate()
    readers: dict[int, list[int]] = {}
    for number, saving in pool._savings.items():
        for block in saving.move.near:
            readers.setdefault(block, []).append(number)
    _demand(_sorted(near.free.readers) == _sorted(readers), "the blocks that are read are not those of the moves")
    free = set(near.free.numbers())
    _demand(set(near.free._late) == free & set(readers), "a free block that is read may be taken, or the reverse")
    left = {("left", number) for number, fetch in pool._fetches.items() if fetch.work is None}
    _demand(set(near._jobs) == {*pool._work, *left}, "the accelerator's blocks are held by others than requests")
    if host is None:
        _demand(not pool.moving, "something moves, and there is one tier")
        return
    host.validate()
    _demand(set(host._jobs) == {*pool._savings, *pool._fetches}, "the host's blocks are held by others than moves")
    for number, saving in pool._savings.items():
        held = host.held(number)
        _demand([*held.own] == [*saving.move.far], f"move {number} does not write what it reserved")
        _demand(len(saving.move.near) == len(saving.move.far), f"move {number} has not one block for one")
    for number, fetch in pool._fetches.items():
        holder = fetch.work.request if fetch.work is not None else ("left", number)
        sources = host.held(number)
        _demand(set(fetch.move.far) <= {*sources.prefix, *sources.state}, f"move {number} reads what may go")
        _demand(set(fetch.move.near) <= set(near.held(holder).own), f"move {number} writes where others do")
        _demand(len(fetch.move.near) == len(fetch.move.far), f"move {number} has not one block for one")
        _demand(fetch.work is None or fetch.work.fetch is fetch, f"nobody waits for move {number}")
    for request, work in pool._work.items():
        read = {move for block in near.held(request).own for move in readers.get(block, ())}
        _demand(work.waits == read, f"{request} waits for {work.waits}, its blocks are read by {read}")
        _demand(work.fetch is None or work.fetch.move.number in pool._fetches, f"{request} waits for nothing")
    waiting: dict[int, list[int]] = {}
    for work in pool._work.values():
        for move in work.waits:
            waiting.setdefault(move, []).append(id(work))
    booked = {move: [id(work) for work in works] for move, works in pool._waiting.items() if works}
    _demand(_sorted(booked) == _sorted(waiting), "who waits is not told")


def _sorted(lists: dict[int, list[int]]) -> dict[int, list[int]]:
    return {key: sorted(values) for key, values in lists.items()}


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantError(what)
