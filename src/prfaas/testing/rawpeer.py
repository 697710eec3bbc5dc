"""A data connection spoken by hand, to say what no transport of ours would say.

It knows frames and asyncio streams; it does not know transfers. For tests of either side.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import msgspec

from prfaas.core.ids import TransferId
from prfaas.core.transfer.extent import Extent
from prfaas.testing.conformance import Pair
from prfaas.transport.base import Peer
from prfaas.wire import messages as m
from prfaas.wire.frame import Data, Decoder, encode, encode_data
from prfaas.wire.layout import fingerprint

T = TypeVar("T", bound=m.Message)


class RawPeer:
    """One end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._decoder = Decoder(frozenset(m.Kind), lambda head, size: memoryview(bytearray(size)))
        self._frames: deque[m.Message | Data] = deque()

    @classmethod
    async def dial(cls, peer: Peer) -> RawPeer:
        """A new connection."""
        return cls(*await asyncio.open_connection(peer.host, peer.port))

    def say(self, *what: m.Message | bytes) -> None:
        """Messages, or any bytes."""
        for one in what:
            self._writer.write(one if isinstance(one, bytes) else encode(one))

    async def hear(self, kind: type[T]) -> T:
        """The next frame, which must be of this kind."""
        frame = await self.next()
        assert isinstance(frame, kind), frame
        return frame

    async def next(self) -> m.Message | Data | None:
        """The next frame; None when the other end has closed."""
        while not self._frames:
            data = await self._reader.read(1 << 16)
            if not data:
                return None
            self._frames.extend(self._decoder.feed(data))
        return self._frames.popleft()

    async def gone(self) -> bool:
        """Waits until the other end has closed, whatever it still says."""
        try:
            while await self.next() is not None:
                pass
        except ConnectionError:
            pass
        return True

    async def close(self) -> None:
        """Close this end."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


def hello(pair: Pair, transfer: str, **changes: Any) -> m.Hello:
    """A good HELLO for `pair`, but for `changes`."""
    good = m.Hello(
        version=m.VERSION,
        ticket=pair.ticket(transfer),
        transfer=TransferId(transfer),
        session="5e55",
        receiver="home0",
        connection=0,
        connections=1,
        layout=fingerprint(pair.layout),
        length=100,
        held=0,
    )
    return msgspec.structs.replace(good, **changes)


def frames(pair: Pair, pieces: Iterable[tuple[Extent, memoryview]]) -> list[bytes]:
    """DATA frames for pieces."""
    parts = {(part.layer, part.name): part for part in pair.layout.parts}
    return [
        encode_data(m.data_head(parts[extent.layer, extent.part], extent), data) + bytes(data)
        for extent, data in pieces
    ]


@asynccontextmanager
async def listening(script: Callable[[RawPeer, m.Hello], Awaitable[None]]) -> Any:
    """A listener that runs `script` for each connection, after its HELLO; gives its address. Its errors are raised."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(raw: RawPeer) -> None:
        try:
            await script(raw, await raw.hear(m.Hello))
        except ConnectionError:
            pass
        finally:
            await raw.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.get_running_loop().create_task(serve(RawPeer(reader, writer))))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield Peer("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result
