"""An HTTP client that may send anything: bytes out, answers in as they are on the wire.

It knows just enough of HTTP/1.1 to cut a connection's bytes into answers; it corrects nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncGenerator, Generator, Sequence
from dataclasses import dataclass
from typing import Any, cast


@dataclass(slots=True)
class RawAnswer:
    """One answer. `headers` in lower case; of several of a name, the last."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> Any:
        """OpenAI's error of the body."""
        return json.loads(self.body)["error"]


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, *chunks: bytes) -> None:
        """Each chunk by itself, as far as a socket can tell; a peer that closed is no error."""
        with contextlib.suppress(ConnectionError):
            for chunk in chunks:
                self._writer.write(chunk)
                await self._writer.drain()
                await asyncio.sleep(0)

    async def answer(self, *, head: bool = False) -> RawAnswer | None:
        """The next answer, None when the peer closed instead. `head`: it is to a HEAD, so without a body."""
        try:
            raw = await self._reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        first, *lines = raw.decode("latin-1").split("\r\n")[:-2]
        assert first.startswith("HTTP/1."), first
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        status = int(first.split()[1])
        if head or status in (204, 304) or status < 200:
            return RawAnswer(status, headers, b"")
        if "chunked" in headers.get("transfer-encoding", ""):
            return RawAnswer(status, headers, await self._chunks())
        if "content-length" in headers:
            return RawAnswer(status, headers, await self._reader.readexactly(int(headers["content-length"])))
        return RawAnswer(status, headers, await self._reader.read())

    async def answers(self) -> list[RawAnswer]:
        """All answers until the peer closes."""
        found = []
        while (answer := await self.answer()) is not None:
            found.append(answer)
        return found

    async def closed(self) -> bool:
        """Waits until the peer closes; whether it said nothing more."""
        try:
            return await self._reader.read(1) == b""
        except ConnectionError:
            return True

    @contextlib.contextmanager
    def not_reading(self) -> Generator[None, None, None]:
        """Takes nothing in, for the length of the block: what is sent fills the peer's side of the socket."""
        transport = cast(asyncio.Transport, self._writer.transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        transport.pause_reading()
        try:
            yield
        finally:
            transport.resume_reading()

    def end(self) -> None:
        """Nothing more is sent; answers may still come."""
        self._writer.write_eof()

    def abort(self) -> None:
        """Reset the connection."""
        linger = struct.pack("ii", 1, 0)  # else it would be closed like any other
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._writer.transport.abort()

    async def _chunks(self) -> bytes:
        body = b""
        while size := int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16):
            body += await self._reader.readexactly(size)
            assert await self._reader.readexactly(2) == b"\r\n"
        assert await self._reader.readuntil(b"\r\n") == b"\r\n"
        return body


@contextlib.asynccontextmanager
async def raw_client(port: int, seconds: float = 20) -> AsyncGenerator[RawClient, None]:
    """A connection to 127.0.0.1, for so long at most."""
    async with asyncio.timeout(seconds):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
        try:
            yield RawClient(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, TimeoutError):
                await writer.wait_closed()


def request_bytes(
    method: str, path: str, headers: Sequence[tuple[str, str]] = (), body: bytes | None = None, version: str = "1.1"
) -> bytes:
    """A request as it is sent; with `body`, its length is added."""
    lines = [f"{method} {path} HTTP/{version}", *(f"{name}: {value}" for name, value in headers)]
    if version == "1.1" and not any(name.lower() == "host" for name, _ in headers):
        lines.insert(1, "Host: h")
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")
