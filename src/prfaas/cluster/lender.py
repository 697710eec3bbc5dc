"""Loans of a cluster: a node that keeps a prefix is asked to send it to a node of another cluster.

It knows the members, the links that begin here, their shares and tickets. It does not know who wants the prefix, nor
whether that pays.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping

import msgspec
import structlog

from prfaas.cluster.roster import Roster, Sight
from prfaas.cluster.shares import LinkShares
from prfaas.cluster.tickets import Tickets
from prfaas.core.errors import RemoteError
from prfaas.core.ids import LinkName, NodeName, TransferId
from prfaas.wire.control import NodeInfo, PrefixRequest, PrefixUpdate

log = structlog.get_logger(__name__)


class Lender:
    """`connections`: TCP connections a transfer, of each link that begins in this cluster."""

    def __init__(
        self, roster: Roster, shares: LinkShares, tickets: Tickets, connections: Mapping[LinkName, int]
    ) -> None:
        self._roster, self._shares, self._tickets, self._connections = roster, shares, tickets, connections
        self._infos: dict[NodeName, NodeInfo] = {}
        roster.watch(self)

    def member(self, sight: Sight) -> None:
        """See `roster.Watcher`."""
        if sight.info is not None:
            self._infos[sight.node] = sight.info
        else:
            self._infos.pop(sight.node, None)

    def gone(self, node: NodeName) -> None:
        """See `roster.Watcher`."""
        self._infos.pop(node, None)

    async def lend(self, request: PrefixRequest) -> AsyncGenerator[PrefixUpdate, None]:
        """`lent` with where to dial and a ticket for the receiver, then `done`; or `failed`, always one of them last.

        Closing the iterator ends the loan, whatever has crossed by then.
        """
        node, link = NodeName(request.node), LinkName(request.link)
        info, client = self._infos.get(node), self._roster.clients.get(node)
        if link not in self._connections:
            yield _failed("no_link", f"no link {link} begins here")
            return
        if info is None or client is None or not info.copies:
            yield _failed("cannot_lend", f"{node} is no node that is ready and lends prefixes")
            return
        transfer = TransferId(request.transfer_id)
        asked = msgspec.structs.replace(request, epoch=info.epoch)
        try:
            async with (
                self._shares.hold(link, client, transfer),
                contextlib.aclosing(client.lines("/prfaas/v1/prefix", asked, PrefixUpdate)) as updates,
            ):
                async for update in updates:
                    if update.state != "lent":
                        yield update
                        return
                    receiver, left_s = NodeName(request.receiver), request.deadline_ms / 1000
                    ticket = self._tickets.of(info, transfer, receiver, link, left_s)
                    connections = self._connections[link]
                    yield PrefixUpdate("lent", remote=info.data, ticket=ticket, connections=connections)
            yield _failed("unreachable", f"{node} hung up")
        except RemoteError as failure:
            log.info("no loan", transfer=transfer, node=node, code=failure.code, detail=failure.detail)
            yield _failed(failure.code, failure.detail)


def _failed(code: str, detail: str) -> PrefixUpdate:
    return PrefixUpdate("failed", code=code, detail=detail)
