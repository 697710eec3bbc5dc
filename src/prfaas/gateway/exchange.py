"""One client request at the gateway, between the HTTP handler and the legs that serve it.

It knows the client's body, its prompt and what was decided. The handler waits for the verdict; the router's effects
give it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import aiohttp

from prfaas.core.errors import RequestError
from prfaas.core.ids import RequestId
from prfaas.core.routing.cached import NOTHING, Cached
from prfaas.core.routing.effects import Decided
from prfaas.wire.openai.prompt import Prompt

DONE_MARK = b"data: [DONE]\n\n"


@dataclass(slots=True)
class Upstream:
    """An answer that a decode node began: all of it is here (`begun`), or it is a stream whose beginning that is.

    The leg keeps `response` open until `relayed` is set by whoever relays it.
    """

    attempt: int
    response: aiohttp.ClientResponse
    begun: bytes
    stream: bool
    relayed: asyncio.Event


@dataclass(slots=True)
class Exchange:
    """`path` and `body` are the client's own, `body` being one JSON object. Times on the loop's clock, ns."""

    request: RequestId
    path: str
    body: bytes
    stream: bool
    prompt: Prompt
    deadline_ns: int
    verdict: asyncio.Future[Upstream]
    upstream: Upstream | None = None
    decided: Decided | None = None
    cached: Cached = NOTHING
    since_ns: dict[str, int] = field(default_factory=dict)

    def refuse(self, error: RequestError) -> None:
        """The answer is one error."""
        if not self.verdict.done():
            self.verdict.set_exception(error)

    def relay(self) -> None:
        """The handler may relay what the decode leg has."""
        if not self.verdict.done() and self.upstream is not None:
            self.verdict.set_result(self.upstream)

    @property
    def route_header(self) -> str:
        """`x-prfaas-route`: where prefill ran and why; what was to become of a longer prefix elsewhere, if there was
        one; and what was not known for that, if anything."""
        decided = self.decided
        if decided is None:
            return "none; cluster=; reason=refused"
        said = f"{decided.route}; cluster={decided.cluster}; reason={decided.reason}"
        if decided.copy is not None:
            said += f"; copy={decided.copy.reason}; from={decided.copy.cluster}"
        return f"{said}; unknown={','.join(decided.unknown)}" if decided.unknown else said
