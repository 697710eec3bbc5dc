"""HTTP to one program of ours: the calls of the node protocol, and calls whose answer stays open.

It knows URLs and how long to wait. It does not know queues, tickets' content or requests' lives. Failures are
PeerFailure or ProtocolError, as `runtime.client` has them.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
import msgspec

from prfaas.core.errors import PeerFailure
from prfaas.core.ids import NodeName
from prfaas.runtime.client import call, post_lines, refusal, sendable
from prfaas.wire.control import CreditReply, CreditRequest, NodeInfo, PaceLease, PrefixOffer, TransferParams

T = TypeVar("T")
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A program as the topology lists it. `url` has no trailing slash."""

    name: NodeName
    url: str


class NodeClient:
    """Calls to one node or service. `session` shows the secret."""

    streams = True
    """Whether KV leaves while prefill runs: the decode leg is to begin as soon as the prefill leg has."""
    tells_cause = True
    """Whether an error of a decode leg says by its code if KV was to blame; else a failed hand-over is."""

    def __init__(self, session: aiohttp.ClientSession, node: NodeAddress) -> None:
        self.node = node
        self._session = session

    async def get(self, path: str, kind: type[T], timeout_s: float) -> T:
        """The JSON answer of a GET."""
        return await call(self._session, "GET", self.node.url + path, None, kind, timeout_s=timeout_s)

    async def info(self, timeout_s: float) -> NodeInfo:
        """What the node says of itself."""
        return await self.get("/prfaas/v1/node", NodeInfo, timeout_s)

    async def credit(self, request: CreditRequest, timeout_s: float) -> CreditReply:
        """Landing room; waits at the node until there is some."""
        url = self.node.url + "/prfaas/v1/credit"
        return await call(self._session, "POST", url, request, CreditReply, timeout_s=timeout_s)

    async def release_credit(self, transfer: str, timeout_s: float) -> None:
        """Give landing room back."""
        url = f"{self.node.url}/prfaas/v1/credit/{transfer}"
        await call(self._session, "DELETE", url, None, dict[str, Any], timeout_s=timeout_s)

    async def pace(self, lease: PaceLease, timeout_s: float) -> None:
        """Hand the node its share of a link."""
        url = self.node.url + "/prfaas/v1/pace"
        await call(self._session, "POST", url, lease, dict[str, Any], timeout_s=timeout_s)

    async def supply(self, transfer: str, offer: PrefixOffer, timeout_s: float) -> None:
        """Tell a prefill service what one of its prefills may fetch first."""
        url = f"{self.node.url}/prfaas/v1/prefill/{transfer}/prefix"
        await call(self._session, "POST", url, offer, dict[str, Any], timeout_s=timeout_s)

    def parameters(self, params: TransferParams) -> dict[str, Any]:
        """`kv_transfer_params` of a leg, as this node takes them."""
        return msgspec.structs.asdict(params)

    async def sent(self, transfer: str) -> None:
        """Waits until the KV of a prefill that was answered has left. Here the answer says so."""

    def lines(self, path: str, body: msgspec.Struct, kind: type[T]) -> AsyncGenerator[T, None]:
        """POST `body`; the answer's lines as they come. Closing hangs up."""
        return post_lines(self._session, self.node.url + path, body, kind)

    @contextlib.asynccontextmanager
    async def post(self, path: str, body: bytes) -> AsyncIterator[aiohttp.ClientResponse]:
        """POST JSON; in the block, an answer with status 200 whose body is still to be read.

        Leaving the block early hangs up, which stops the node's work. Raises Refused for any other status.
        """
        url = self.node.url + path
        try:
            async with self._session.post(url, data=sendable(body), headers=JSON, allow_redirects=False) as response:
                if response.status != 200:
                    raise await refusal(response)
                yield response
        except (aiohttp.ClientError, OSError) as error:
            raise PeerFailure("unreachable", f"POST {url}: {error or type(error).__name__}") from None
