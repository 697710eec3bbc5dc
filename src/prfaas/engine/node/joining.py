"""A node's side of membership: join the cluster at its head, renew, join again after a restart of either, leave.

It knows the head's address and what the node says of itself. It does not know what runs on the node, but whether
anything does. Failures of the head or of the way to it are waited out; a refusal that no waiting can mend ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import aiohttp
import structlog

from prfaas.core.errors import RemoteError
from prfaas.runtime.client import Refused, call
from prfaas.wire.members import PATH, JoinReply, JoinRequest, LeaveReply, RenewRequest

log = structlog.get_logger(__name__)
PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
LOOK_S = 0.25
CALL_S = 5.0
WAITABLE = (408, 425, 429)


class Joining:
    """Keeps one node a member. `member` is set while the head has it, as far as is known here."""

    def __init__(self, session: aiohttp.ClientSession, head_url: str, request: JoinRequest) -> None:
        self.member = asyncio.Event()
        self._session = session
        self._url = head_url + PATH
        self._request = request

    async def run(self) -> None:
        """Until cancelled. Raises Refused when the head will not have the node: another one has its name, a newer
        incarnation of it is there, it does not fit, or the secret is wrong."""
        while True:
            reply = await self._join()
            self.member.set()
            log.info("joined", node=self._request.node, head=self._url, lease_ms=reply.lease_ms)
            try:
                await self._renew(reply)
            finally:
                self.member.clear()

    async def leave(self, within_s: float, busy: Callable[[], bool]) -> bool:
        """Get no more work and wait until what there is has ended; False when it has not, `within_s` from now.

        Not while `run` runs. When the head cannot be asked, `busy` alone decides.
        """
        node = self._request.node
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while True:
                    url = f"{self._url}/{node}?epoch={self._request.epoch}"
                    try:
                        gone = (await call(self._session, "DELETE", url, None, LeaveReply, timeout_s=CALL_S)).state
                    except RemoteError as failure:
                        log.info("head does not answer", node=node, code=failure.code, detail=failure.detail)
                        gone = "gone"
                    if gone == "gone" and not busy():
                        log.info("left", node=node)
                        return True
                    await asyncio.sleep(LOOK_S)
        log.warning("work was cut off: it did not end in time", node=node, within_s=within_s)
        return False

    async def _join(self) -> JoinReply:
        pause_s = PAUSE_S
        while True:
            try:
                return await call(self._session, "POST", self._url, self._request, JoinReply, timeout_s=CALL_S)
            except Refused as refused:
                if _final(refused.status):
                    raise
                failure: RemoteError = refused
            except RemoteError as error:
                failure = error
            log.warning("cannot join yet", node=self._request.node, code=failure.code, detail=failure.detail)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _renew(self, reply: JoinReply) -> None:
        """Returns when the head does not know the node."""
        url, epoch = f"{self._url}/{self._request.node}/renew", RenewRequest(self._request.epoch)
        while True:
            await asyncio.sleep(reply.renew_ms / 1000)
            try:
                timeout_s = reply.lease_ms / 1000
                reply = await call(self._session, "POST", url, epoch, JoinReply, timeout_s=timeout_s)
            except Refused as refused:
                if refused.status == 404:
                    log.info("the head does not know this node: joining again", node=self._request.node)
                    return
                if _final(refused.status):
                    raise
            except RemoteError as failure:
                log.warning("lease not renewed", node=self._request.node, code=failure.code, detail=failure.detail)
                # The head may be starting again: soon, so that the lease is not missed for one lost call.
                reply = JoinReply(reply.lease_ms, max(50, reply.lease_ms // 12))


def _final(status: int) -> bool:
    return 400 <= status < 500 and status not in WAITABLE
