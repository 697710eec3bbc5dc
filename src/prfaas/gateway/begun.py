"""The beginning of a node's stream: an answer has begun when there is an event that is no error.

It knows events; it does not know requests. Our nodes answer when there is a first token, vLLM answers at once: until
the first event nothing has been shown to a client, and the request can still go elsewhere.
"""

from __future__ import annotations

import aiohttp

from prfaas.core.errors import PeerFailure
from prfaas.runtime.client import Refused
from prfaas.wire.openai import parse_error
from prfaas.wire.sse import EventReader


async def first_event(response: aiohttp.ClientResponse) -> bytes:
    """All that was read of the stream until its first event was whole.

    Raises Refused, 500, when that is an error; PeerFailure, "broken_stream", when the stream ended before;
    ProtocolError when it is none.
    """
    reader, read = EventReader(), bytearray()
    async for chunk in response.content.iter_any():
        read += chunk
        events = reader.feed(chunk)
        if events:
            error = parse_error(events[0].data.encode())
            if error is not None:
                raise Refused(500, error.code or "engine_failed", error.message)
            return bytes(read)
    raise PeerFailure("broken_stream", f"{response.url.path}: the stream ended before its first event")
