"""Server-sent events: one event as bytes, and bytes back to events, as they come.

It knows the framing (WHATWG HTML, 9.2); it does not know what an event's data means, except that OpenAI's end mark is
an event whose *whole* data is `[DONE]`: the same letters inside generated text are JSON there, and no end.
"""

from __future__ import annotations

from dataclasses import dataclass

from prfaas.core.errors import ProtocolError

DONE_DATA = "[DONE]"


@dataclass(frozen=True, slots=True)
class Event:
    """One event: `data` (lines joined by a newline) and its type, "message" unless the sender named one."""

    data: str
    name: str = "message"

    @property
    def is_done(self) -> bool:
        """Whether this is OpenAI's end mark."""
        return self.data == DONE_DATA


def event_bytes(data: bytes, name: str = "") -> bytes:
    """One event whose data is `data`, which must be one line (JSON is)."""
    head = b"event: " + name.encode() + b"\n" if name else b""
    return head + b"data: " + data + b"\n\n"


DONE = event_bytes(DONE_DATA.encode())


class EventReader:
    """Bytes in, events out, cut anywhere. No line is kept beyond `max_line` bytes, no event beyond `max_event`.

    Raises ProtocolError: "line_too_long", "event_too_long", or "bad_utf8".
    """

    __slots__ = ("_after_cr", "_data", "_first", "_held", "_line", "_max_event", "_max_line", "_name")

    def __init__(self, max_line: int = 1 << 20, max_event: int = 1 << 22) -> None:
        self._max_line, self._max_event = max_line, max_event
        self._line = bytearray()
        self._data: list[str] = []
        self._held = 0
        self._name = ""
        self._after_cr = False
        self._first = True

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes, in order. An event that the stream's end cuts off is never one."""
        found: list[Event] = []
        start = 0
        while start < len(chunk):
            if self._after_cr:  # the \n of a \r\n, perhaps cut between chunks
                self._after_cr = False
                if chunk[start] == 0x0A:
                    start += 1
                    continue
            at = _line_end(chunk, start)
            self._line += chunk[start : len(chunk) if at < 0 else at]
            if len(self._line) > self._max_line:
                raise ProtocolError("line_too_long", f"a line of over {self._max_line} bytes in an event stream")
            if at < 0:
                break
            self._after_cr = chunk[at] == 0x0D
            start = at + 1
            event = self._end_of_line()
            if event is not None:
                found.append(event)
        return found

    def _end_of_line(self) -> Event | None:
        try:
            line = self._line.decode()
        except UnicodeDecodeError as error:
            raise ProtocolError("bad_utf8", f"an event stream's line is no UTF-8: {error.reason}") from None
        self._line.clear()
        if self._first:
            self._first, line = False, line.removeprefix("\ufeff")
        if not line:
            return self._dispatch()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._held += len(value)
            if self._held > self._max_event:
                raise ProtocolError("event_too_long", f"an event of over {self._max_event} characters")
            self._data.append(value)
        elif field == "event":
            self._name = value
        return None

    def _dispatch(self) -> Event | None:
        lines, name = self._data, self._name
        self._data, self._name, self._held = [], "", 0
        return Event("\n".join(lines), name or "message") if lines else None


def _line_end(chunk: bytes, start: int) -> int:
    """Where the first \\r or \\n at or after `start` is, or -1."""
    newline = chunk.find(b"\n", start)
    carriage = chunk.find(b"\r", start, len(chunk) if newline < 0 else newline)
    return newline if carriage < 0 else carriage
