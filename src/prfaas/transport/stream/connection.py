"""One connection: bytes in and out, frames to its owner, whoever that is now.

It knows frames, flow control, emulated delay and how to close without losing the last word. It does not know what
frames mean: the owner (a greeter, a transfer, the idle pool) decides, and may change between two frames.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol, cast

from prfaas.core.agenda import Entry
from prfaas.core.errors import ProtocolError
from prfaas.transport.stream.alarm import Alarm, Call
from prfaas.wire.frame import Data, Decoder, encode
from prfaas.wire.messages import KIB, MIB, DataHead, Kind, Message

_SLICE_BYTES = 256 * KIB
_SMALL_BYTES = 64 * KIB
_HIGH_BYTES = 64 * KIB
_DELAYED_BYTES = 64 * MIB
_LINGER_NS = 2_000_000_000

Buffer = bytes | memoryview


class Owner(Protocol):
    """Who a connection belongs to."""

    def on_read(self, connection: Connection, size: int, under_way: bool) -> None:
        """Bytes came; `under_way`: some of their frame was here before."""

    def place(self, connection: Connection, head: DataHead, size: int) -> memoryview | None:
        """Where a payload goes (see `Decoder`)."""

    def on_frame(self, connection: Connection, frame: Message | Data) -> None:
        """A frame came whole."""

    def on_misuse(self, connection: Connection, error: ProtocolError) -> None:
        """What came is not allowed; nothing more will be read. The owner hangs up."""

    def on_writable(self, connection: Connection) -> None:
        """`writable` may be true again."""

    def on_lost(self, connection: Connection, detail: str) -> None:
        """The connection is gone. Not called after `hang_up`."""


class Connection(asyncio.BufferedProtocol):
    """A byte stream with an owner."""

    def __init__(self, alarm: Alarm, owner: Owner, on_open: Callable[[Connection], None]) -> None:
        self.owner: Owner | None = owner
        self._on_open = on_open
        self.delay_ns = 0
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.decoder = Decoder(frozenset(), self._place)
        self._alarm = alarm
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._out: deque[Buffer] = deque()
        self._line: deque[tuple[int, Buffer]] = deque()
        self._line_bytes = 0
        self._line_timer: Entry[Call] | None = None
        self._linger: Entry[Call] | None = None
        self._scratch: memoryview | None = None

    @property
    def alive(self) -> bool:
        """Whether it can still carry frames."""
        return self.owner is not None and self._transport is not None and not self._transport.is_closing()

    @property
    def writable(self) -> bool:
        """Whether more KV should be given to it now. Control frames may be sent at any time."""
        return self.alive and not self._paused and not self._out and self._line_bytes < _DELAYED_BYTES

    @property
    def fileno(self) -> int:
        """The socket's file descriptor, -1 when there is none."""
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        return sock.fileno() if sock is not None else -1

    def give(self, owner: Owner, allowed: frozenset[Kind]) -> None:
        """From the next frame on it belongs to `owner`, who takes these kinds."""
        self.owner = owner
        self.decoder.allowed = allowed

    def send(self, message: Message) -> None:
        """Send a control frame; nothing happens when the connection is gone."""
        self.write((encode(message),))

    def write(self, buffers: Iterable[Buffer]) -> None:
        """Send bytes, in order. Views must stay as they are until they have left."""
        if not self.alive:
            return
        if self.delay_ns == 0 and not self._line:
            self._out.extend(buffers)
            self._flush()
            return
        due_ns = self._alarm.clock() + self.delay_ns
        for buffer in buffers:
            self._line.append((due_ns, buffer))
            self._line_bytes += len(buffer)
        self._watch_line()

    def hang_up(self) -> None:
        """Close when what was sent has left; whatever still comes is dropped. The owner hears no more of it."""
        if self.owner is None:
            return
        self.owner = None
        if self._transport is None or self._transport.is_closing():
            return
        self._scratch = memoryview(bytearray(64 * KIB))
        self._linger = self._alarm.at(self._alarm.clock() + _LINGER_NS + self.delay_ns, self.abort)
        self._flush()

    def finish(self) -> None:
        """`hang_up`, and what waits for its emulated delay leaves at once."""
        self._out.extend(buffer for _, buffer in self._line)
        self._line.clear()
        self._line_bytes = 0
        self.hang_up()

    def abort(self) -> None:
        """Close now."""
        self.owner = None
        if self._transport is not None:
            self._transport.abort()

    def reset(self) -> None:
        """Break it, as a network may: the owner hears of it. A fault hook for tests."""
        if self._transport is not None:
            self._transport.abort()

    def go_silent(self) -> None:
        """Neither say nor hear anything any more, and keep it open, as a machine without power does. A fault hook."""
        self.owner = None
        self._out.clear()
        self._line.clear()
        self._scratch = memoryview(bytearray(64 * KIB))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not isinstance: uvloop's transports are not asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_HIGH_BYTES)
        self._on_open(self)

    def connection_lost(self, exc: Exception | None) -> None:
        owner, self.owner = self.owner, None
        self._out.clear()
        self._line.clear()
        self._alarm.cancel(self._line_timer)
        self._alarm.cancel(self._linger)
        if not self.closed.done():
            self.closed.set_result(None)
        if owner is not None:
            owner.on_lost(self, f"connection lost: {exc}" if exc else "the peer closed the connection")

    def eof_received(self) -> None:
        # The peer says nothing more, so whatever we would still send finds nobody: do not linger over it.
        if self._transport is not None:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch if self._scratch is not None else self.decoder.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self.owner is None:
            return
        self.owner.on_read(self, nbytes, self.decoder.under_way)
        try:
            for frame in self.decoder.advance(nbytes):
                if self.owner is not None:
                    self.owner.on_frame(self, frame)
                if self.owner is None:
                    return
        except ProtocolError as error:
            if self.owner is not None:
                self.owner.on_misuse(self, error)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flush()
        if self.owner is not None and self.writable:
            self.owner.on_writable(self)

    def _place(self, head: DataHead, size: int) -> memoryview | None:
        return self.owner.place(self, head, size) if self.owner is not None else None

    def _flush(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        while self._out and not self._paused:
            if len(self._out[0]) > _SMALL_BYTES:
                first = memoryview(self._out.popleft())
                if len(first) > _SLICE_BYTES:
                    self._out.appendleft(first[_SLICE_BYTES:])
                transport.write(first[:_SLICE_BYTES])
                continue
            few: list[Buffer] = []
            size = 0
            while self._out and size < _SLICE_BYTES and len(self._out[0]) <= _SMALL_BYTES and len(few) < 512:
                few.append(self._out.popleft())
                size += len(few[-1])
            transport.writelines(few)
        if self.owner is None and not self._out and not self._line:
            if transport.can_write_eof():
                try:
                    transport.write_eof()
                except OSError:  # the peer has reset it, and the event loop has not looked yet
                    transport.abort()
            else:
                # TLS has no half-close; and its close must not run within its own read.
                asyncio.get_running_loop().call_soon(self._close)

    def _close(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def _watch_line(self) -> None:
        if self._line and (self._line_timer is None or not self._line_timer.live):
            self._line_timer = self._alarm.at(self._line[0][0], self._advance_line)

    def _advance_line(self) -> None:
        now_ns = self._alarm.clock()
        while self._line and self._line[0][0] <= now_ns:
            _, buffer = self._line.popleft()
            self._line_bytes -= len(buffer)
            self._out.append(buffer)
        self._watch_line()
        self._flush()
        if self.owner is not None and self.writable:
            self.owner.on_writable(self)
