"""From one engine's KV events to changes of the index: its own block hashes become canonical ones.

It knows what vLLM's events say and leave out; it does not know sequence numbers or the index. Canonical hashes are
computed from the tokens that events carry, so two engines with other hashes and other block sizes agree. What cannot be
placed is left out, and counted: blocks after one that was never told of, blocks with images or embeddings (their tokens
do not say what is in them).

An engine may hold several copies of a block, in one tier too (vLLM does not merge equal blocks that were computed at
the same time): each is stored and removed once, so copies are counted, and a block is gone when the last one is. (So
vLLM must not be asked to report reuse as well, `kv_cache_report_mode` "full": it reports that as stored.)
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence

from prfaas.cluster.stretch import NO_TOKENS, Key, Stretch
from prfaas.core.index.changes import Apart, Change, Cleared, Removed, Stored
from prfaas.core.index.places import Place
from prfaas.model.blockhash import BLOCK_TOKENS
from prfaas.wire.kvevents import AllCleared, BlockHash, BlocksRemoved, BlocksStored, KVEvent

STRETCH_BLOCKS = 64
MOST_WAITING = 1 << 16
DENSE_KINDS = (None, "full_attention", "mla_attention", "sink_full_attention")
WINDOW_KINDS = ("sliding_window", "sliding_window_mla")
STATE_KINDS = ("mamba",)
IGNORED_KINDS = ("encoder_only_attention", "cross_attention")
NO_GROUP = -2
"""The dense groups, where None would be all groups."""
EVERY_BLOCK = 0
"""What a group of a kind that is not known needs: nothing less is sure to be enough."""

Roots = Callable[[str, str], int]
"""The root of a cache with this salt and adapter: see `model.blockhash`."""


class EngineMap:
    """The blocks of one place. `canonical`: its hashes are canonical already (our engines'), of 64 tokens."""

    def __init__(self, place: Place, roots: Roots, *, canonical: bool = False) -> None:
        self._place, self._roots, self._canonical = place, roots, canonical
        self._stretches: dict[int, Stretch] = {}
        self._copies: dict[tuple[Key, int], int] = {}
        self._waiting: dict[int, set[Key]] = {}
        self._groups: dict[int, int] = {}
        self._dense_group: int | None = None
        self.unplaced = 0
        """Blocks that were stored, and have no canonical hash."""

    def __len__(self) -> int:
        return len(self._stretches)

    def changes(self, events: Iterable[KVEvent]) -> list[Change]:
        """What `events` change, in order."""
        out: list[Change] = []
        for event in events:
            match event:
                case BlocksStored():
                    self._stored(event, out)
                case BlocksRemoved():
                    self._removed(event, out)
                case AllCleared():
                    self.forget()
                    out.append(Cleared(self._place))
        return out

    def forget(self) -> None:
        """Nothing is held any more. Groups stay known."""
        self._stretches, self._copies, self._waiting = {}, {}, {}

    # Stored.

    def _stored(self, event: BlocksStored, out: list[Change]) -> None:
        if event.kind in IGNORED_KINDS or not event.hashes:
            return
        group, tier = self._group(event, out), event.medium or ""
        hashes = [_number(one) for one in event.hashes]
        if self._canonical:
            parent = None if event.parent is None else _number(event.parent)
            out.append(Stored(self._place, tuple(hashes), parent, tier, group))
        elif group is not None or len(event.tokens) != len(hashes) * event.block_tokens:
            # Which blocks these are is not said where some are left out: whoever knows them by their hashes knows.
            self._known(hashes, (group, tier), out)
        else:
            self._placed(event, hashes, (None, tier), out)

    def _group(self, event: BlocksStored, out: list[Change]) -> int | None:
        """The event's group, if it is one that is kept apart. The first dense one that is heard of is not."""
        group = event.group
        if event.kind in DENSE_KINDS:
            if self._dense_group is None:
                self._dense_group = group
            if group is None or group == self._dense_group:
                return None
            needed = EVERY_BLOCK
        elif event.kind in STATE_KINDS:
            needed = 1
        elif event.kind in WINDOW_KINDS and event.window:
            needed = max(1, -(-(event.window - 1) // BLOCK_TOKENS))
        else:
            needed = EVERY_BLOCK
        number = -1 if group is None else group
        if number not in self._groups:
            self._groups[number] = needed
            out.append(Apart(self._place, number, needed))
        return number

    def _placed(self, event: BlocksStored, hashes: list[int], key: Key, out: list[Change]) -> None:
        """Dense blocks, all with their tokens."""
        size, count = event.block_tokens, _plain_blocks(event)
        self.unplaced += len(hashes) - count
        parent = None if event.parent is None else _number(event.parent)
        salt = _salt(event)
        done = 0
        while done < count:
            known = self._stretches.get(hashes[done])
            if known is not None:
                at = known.hashes.index(hashes[done])
                some = 1
                while (
                    done + some < count
                    and known.hashes[at + some : at + some + 1] == hashes[done + some : done + some + 1]
                ):
                    some += 1
                self._hold(known, at, at + some, key, out)
            else:
                some = 1
                while done + some < count and hashes[done + some] not in self._stretches:
                    some += 1
                some = min(some, STRETCH_BLOCKS)
                above = None if parent is None else self._stretches.get(parent)
                if parent is not None and above is None:
                    self.unplaced += count - done
                    return
                tokens = array("I", event.tokens[done * size : (done + some) * size])
                new, at = self._grown(
                    above, parent, hashes[done : done + some], tokens, size, salt, event.adapter or ""
                )
                some = len(new.hashes) - at
                self._hold(new, at, at + some, key, out)
                self._settle_waiting(new, at, out)
            done += some
            parent = hashes[done - 1]

    def _grown(
        self,
        above: Stretch | None,
        parent: int | None,
        hashes: list[int],
        tokens: array[int],
        size: int,
        salt: str,
        adapter: str,
    ) -> tuple[Stretch, int]:
        """The stretch that has these new blocks, and from which position on."""
        at = -1 if above is None or parent is None else above.hashes.index(parent)
        room = 0 if above is None else STRETCH_BLOCKS - len(above.hashes)
        if above is not None and room > 0 and above.size == size and at == len(above.hashes) - 1:
            stretch, at, hashes = above, at + 1, hashes[:room]
            tokens = tokens[: len(hashes) * size]
        elif above is not None:
            start = above.end(at)
            head = above.tail(start) if start % BLOCK_TOKENS else NO_TOKENS
            stretch, at = Stretch(size, start, above.hash_before(start), head, above, at), 0
        else:
            stretch, at = Stretch(size, 0, self._roots(salt, adapter), NO_TOKENS, None, -1), 0
        stretch.extend(hashes, tokens)
        self._stretches.update(dict.fromkeys(hashes, stretch))
        return stretch, at

    def _hold(self, stretch: Stretch, low: int, high: int, key: Key, out: list[Change]) -> None:
        """`key` has a copy of these positions, or one more."""
        bits, held = ((1 << (high - low)) - 1) << low, stretch.held.get(key, 0)
        if held & bits:
            for at in range(low, high):
                if held >> at & 1:
                    name = (key, stretch.hashes[at])
                    self._copies[name] = self._copies.get(name, 0) + 1
            if held & bits == bits:
                return
        stretch.held[key] = held | bits
        group, tier = key
        if group is not None and self._groups[group] == 1:
            ends = [one for at in range(low, high) if (one := stretch.ending(at)) is not None]
            if ends:
                out.append(Stored(self._place, tuple(ends), None, tier, group))
            return
        for hashes, parent in stretch.whole(low, high, key):
            out.append(Stored(self._place, hashes, parent, tier, group))

    def _known(self, hashes: Sequence[int], key: Key, out: list[Change]) -> None:
        """Blocks that must be known by their hashes: those of a group that is kept apart may come before the dense
        ones, and wait."""
        for one in hashes:
            stretch = self._stretches.get(one)
            if stretch is not None:
                at = stretch.hashes.index(one)
                self._hold(stretch, at, at + 1, key, out)
            elif key[0] is None:
                self.unplaced += 1
            else:
                self._waiting.setdefault(one, set()).add(key)
                if len(self._waiting) > MOST_WAITING:
                    self.unplaced += len(self._waiting.pop(next(iter(self._waiting))))

    def _settle_waiting(self, stretch: Stretch, first: int, out: list[Change]) -> None:
        if not self._waiting or self._waiting.keys().isdisjoint(stretch.hashes):
            return
        for at in range(first, len(stretch.hashes)):
            for key in sorted(self._waiting.pop(stretch.hashes[at], ()), key=str):
                self._hold(stretch, at, at + 1, key, out)

    # Removed.

    def _removed(self, event: BlocksRemoved, out: list[Change]) -> None:
        tier, group = event.medium or "", event.group
        numbers = [None, *self._groups] if group is None else [group if group in self._groups else None]
        keys: list[Key] = [(number, tier) for number in numbers]
        hashes = [_number(one) for one in event.hashes]
        if self._canonical:
            of = None if group is None else NO_GROUP if numbers[0] is None else group
            out.append(Removed(self._place, tuple(hashes), tier, of))
            return
        for one in hashes:
            stretch = self._stretches.get(one)
            if stretch is None:
                waiting = self._waiting.get(one)
                if waiting is not None:
                    waiting.difference_update(keys)
                    if not waiting:
                        del self._waiting[one]
                continue
            at = stretch.hashes.index(one)
            for key in keys:
                self._let_go(stretch, at, key, out)
            self._tidy(stretch)

    def _let_go(self, stretch: Stretch, at: int, key: Key, out: list[Change]) -> None:
        """`key` has a copy less."""
        held = stretch.held.get(key, 0)
        if not held >> at & 1:
            return
        name = (key, stretch.hashes[at])
        more = self._copies.get(name, 0)
        if more:
            if more == 1:
                del self._copies[name]
            else:
                self._copies[name] = more - 1
            return
        group, tier = key
        if group is not None and self._groups[group] == 1:
            end = stretch.ending(at)
            gone = [] if end is None else [end]
        else:
            gone = stretch.touched(at, at + 1)
        stretch.held[key] = held & ~(1 << at)
        if not stretch.held[key]:
            del stretch.held[key]
        if gone:
            out.append(Removed(self._place, tuple(gone), tier, NO_GROUP if group is None else group))

    def _tidy(self, stretch: Stretch) -> None:
        """Forgets blocks at the end of `stretch` that nobody holds, and that nothing reaches over from."""
        needed = max((child.at + 1 for child in stretch.children), default=0)
        keep = max(stretch.union().bit_length(), needed)
        if keep == len(stretch.hashes):
            return
        for one in stretch.hashes[keep:]:
            self._stretches.pop(one, None)
        if keep:
            stretch.shorten(keep)
        elif stretch.parent is not None:
            stretch.hashes = []
            stretch.parent.children.remove(stretch)
            self._tidy(stretch.parent)


def _number(block: BlockHash) -> int:
    """An engine's hash in 64 bits: of a digest, the first eight bytes."""
    return block if isinstance(block, int) else int.from_bytes(block[:8], "big")


def _salt(event: BlocksStored) -> str:
    """What a prompt's first block is salted with."""
    return next((one for one in (event.extra[0] if event.extra else None) or () if _is_salt(one, event)), "")


def _is_salt(key: object, event: BlocksStored) -> bool:
    return isinstance(key, str) and key != event.adapter


def _plain_blocks(event: BlocksStored) -> int:
    """How many blocks, from the first, have nothing in their hashes but tokens, adapter, and the first one a salt."""
    for at, keys in enumerate(event.extra):
        salts = 1 if at == 0 and event.parent is None else 0
        for key in keys or ():
            if key == event.adapter:
                continue
            if not isinstance(key, str) or not salts:
                return at
            salts -= 1
    return len(event.hashes)
