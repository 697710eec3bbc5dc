"""A prefill: chunk by chunk and layer by layer, each handed over when it would have been computed.

It knows chunks, layers, time and the KV of a prompt; it does not know answers.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from prfaas.core.cache.layout import KVLayout, Part, PartKind
from prfaas.core.errors import InvariantError
from prfaas.core.transfer.extent import Extent
from prfaas.engine.base import KVSink
from prfaas.engine.emulated.derive import Chain, kv
from prfaas.engine.emulated.device import GRAIN_NS, Device
from prfaas.engine.emulated.faults import Faults
from prfaas.model.profile import Profile
from prfaas.runtime.driver import loop_now_ns

BUSY_NS = 2_000_000
"""The event loop gets its turn at least this often."""


class EmulatedFailure(Exception):
    """The engine was told to fail."""


@dataclass(slots=True)
class Pace:
    """What faults have done to one sequence. `corrupt`: the next bytes that it hands over are to be wrong."""

    faults: Faults
    device: Device
    factor: float = 1.0
    corrupt: bool = False
    _since_ns: int = field(default_factory=loop_now_ns)

    async def point(self, name: str) -> bool:
        """Suffer what happens at the point `name`; whether that took time. Raises EmulatedFailure."""
        struck = self.faults.at(name)
        self.factor *= struck.factor
        self.corrupt = self.corrupt or struck.corrupt
        if struck.stall_ns != 0:
            await self.device.wait(struck.stall_ns)
        if struck.fail:
            raise EmulatedFailure(f"told to fail at {name}")
        return struck.stall_ns != 0

    async def breathe(self) -> None:
        """Lets others run when this sequence has not for a while."""
        if loop_now_ns() - self._since_ns > BUSY_NS:
            await asyncio.sleep(0)
            self._since_ns = loop_now_ns()


class HeldBack:
    """A sink that keeps everything until `release`."""

    def __init__(self) -> None:
        self._puts: list[tuple[Extent, memoryview]] = []

    def put(self, extent: Extent, data: memoryview) -> None:
        """See KVSink."""
        self._puts.append((extent, data))

    def release(self, sink: KVSink) -> None:
        """All that was kept, into `sink`, in order."""
        for extent, data in self._puts:
            sink.put(extent, data)


@dataclass(slots=True)
class Prefill:
    """The first `length` tokens of `chain`, into `sink` if there is one. `order`: of arrival; lower ones go first.

    The first `cached` of them take no time. `done`: tokens whose KV is there.
    """

    layout: KVLayout
    profile: Profile
    time_scale: float
    chunk_tokens: int
    chain: Chain
    length: int
    sink: KVSink | None
    order: int
    pace: Pace
    device: Device
    cached: int = 0
    done: int = 0

    async def run(self) -> None:
        """Returns when all is computed and handed over."""
        pace = self.pace
        await pace.point("prefill:start")
        ready_ns = loop_now_ns()
        self.done = self.cached
        if self.cached:
            for layer in self.layout.layers():
                await self._hand_over(self.layout.of_layer(layer), 0, self.cached)
        for index, start in enumerate(self._starts()):
            if await pace.point(f"prefill:chunk:{index}"):
                ready_ns = loop_now_ns()
            stop = min((start // self.chunk_tokens + 1) * self.chunk_tokens, self.length)
            ready_ns = await self._chunk(start, stop, ready_ns)
            self.done = stop
        await pace.point("prefill:end")

    def _starts(self) -> list[int]:
        """Where chunks begin: at multiples of their size, the first one where the prefix ends."""
        if self.cached >= self.length:
            return []
        size = self.chunk_tokens
        return [self.cached, *range((self.cached // size + 1) * size, self.length, size)]

    async def _chunk(self, start: int, stop: int, ready_ns: int) -> int:
        """One chunk; when it was done."""
        layers = [self.layout.of_layer(layer) for layer in self.layout.layers()]
        done = 0
        async with self.device.turn(ready_ns, self.order) as began_ns:
            took_ns = int(self._cost_ns(start, stop) * self.time_scale * self.pace.factor)
            end_ns = began_ns + took_ns
            self.device.works_until(end_ns)
            while done < len(layers) - 1:
                # Several layers that are due at nearly one time leave together, late rather than early.
                due_ns = began_ns + took_ns * (done + 1) // len(layers)
                await self.device.until(max(due_ns, min(loop_now_ns() + GRAIN_NS, end_ns)))
                now_ns = max(loop_now_ns(), due_ns)
                while done < len(layers) - 1 and began_ns + took_ns * (done + 1) // len(layers) <= now_ns:
                    await self._hand_over(layers[done], start, stop)
                    done += 1
            await self.device.until(end_ns)
            if stop < self.length:
                await self._hand_over(layers[done], start, stop)
        if stop == self.length:
            await self.pace.point("prefill:last_layer")
            await self._hand_over(layers[done], start, stop)
        return end_ns

    def _cost_ns(self, start: int, stop: int) -> int:
        first = self.cached
        before_ns = self.profile.prefill_ns(start - first, start) if start > first else 0
        return max(0, self.profile.prefill_ns(stop - first, stop) - before_ns)

    async def _hand_over(self, parts: tuple[Part, ...], start: int, stop: int) -> None:
        if self.sink is None:
            return
        async with self.device.making:
            await self._make(self.sink, parts, start, stop)

    async def _make(self, sink: KVSink, parts: tuple[Part, ...], start: int, stop: int) -> None:
        for part in parts:
            if part.kind is PartKind.STATE:
                if stop < self.length:
                    continue
                first = 0
            else:
                first = max(start, part.first_row(self.length))
                if first >= stop:
                    continue
            data = kv(part, self.chain, first, stop, self.length)
            if self.pace.corrupt:
                data, self.pace.corrupt = flipped(data), False
            sink.put(Extent(part.layer, part.name, first, stop, (0, part.shape[0])), memoryview(data))
            await self.pace.breathe()


def flipped(data: bytes | bytearray) -> bytes:
    """`data` with one bit changed, in the middle."""
    if not data:
        raise InvariantError("no bytes to corrupt")
    at = len(data) // 2
    return bytes(data[:at]) + bytes([data[at] ^ 1]) + bytes(data[at + 1 :])
