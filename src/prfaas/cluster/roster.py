"""The driver of a cluster's membership: looks at members, hears those who join and leave, tells whoever gives work.

It drives `core.membership` and knows a client for each member. It does not know queues, requests or HTTP servers: who
gives work to a role is its `Workers`, who speaks HTTP is `registrar`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never

import structlog

from prfaas.cluster.nodeclient import NodeAddress, NodeClient
from prfaas.cluster.watch import NodeWatch, Report, look_timeout_s
from prfaas.core.errors import InvariantError, RequestError
from prfaas.core.ids import Epoch, NodeName
from prfaas.core.membership.effects import Answer, Lost, MemberEffect, Moved, State, Unwatch, Watch
from prfaas.core.membership.events import (
    Drained,
    Geometry,
    Join,
    Leave,
    Listed,
    MemberEvent,
    Renew,
    Role,
    Seen,
    Unseen,
)
from prfaas.core.membership.member import Member
from prfaas.core.membership.members import MemberPolicy, Members
from prfaas.runtime.driver import Driver, loop_now_ns
from prfaas.runtime.metrics import Metrics
from prfaas.wire.control import NodeInfo
from prfaas.wire.members import JoinReply, JoinRequest, LeaveReply, MemberInfo, MemberList

log = structlog.get_logger(__name__)
STATUS = {"unknown_member": 404, "too_many_members": 503}
"""HTTP status of a refusal; 409 for all others."""
PATIENT = 0.75
"""While more than this part of a member's lease is left, a look that takes too long is no news."""


@dataclass(frozen=True, slots=True)
class ListedNode:
    """A node of the topology file."""

    role: Role
    address: NodeAddress


@dataclass(frozen=True, slots=True)
class Sight:
    """A member as it is now. `info`: what it last said of itself, if it takes work (else None, and why: `trouble`)."""

    node: NodeName
    epoch: Epoch
    info: NodeInfo | None
    trouble: str


class Workers(Protocol):
    """Who gives work to the members of one role."""

    def member(self, sight: Sight) -> None:
        """A member came, changed, or was looked at."""

    def lost(self, lost: Lost) -> None:
        """What runs on that incarnation fails now."""

    def gone(self, node: NodeName, cause: str) -> None:
        """The node is no member any more: forget it."""

    def running(self, node: NodeName) -> int:
        """Pieces of work that were given to the node and have not ended."""


class Watcher(Protocol):
    """Who wants to know the members of every role, and gives them no work."""

    def member(self, sight: Sight) -> None:
        """A member came, changed, or was looked at."""

    def gone(self, node: NodeName) -> None:
        """The node is no member any more."""


class Roster:
    """The members of one cluster. `listed` are there from the start; `connect` makes a client for an address.

    `lease_ns`: how long a listed node may be silent before its work counts as lost.
    """

    def __init__(
        self,
        policy: MemberPolicy,
        listed: Sequence[ListedNode],
        connect: Callable[[NodeAddress], NodeClient],
        metrics: Metrics,
        *,
        poll_s: float = 0.5,
        lease_ns: int = 5 * 10**9,
    ) -> None:
        self.clients: dict[NodeName, NodeClient] = {}
        """A client for each member; entries come and go."""
        self._policy, self._listed, self._connect, self._metrics = policy, listed, connect, metrics
        # Two looks that took as long as they may are no silence yet.
        self._lease_ns = max(lease_ns, int(2 * (poll_s + look_timeout_s(poll_s)) * 1e9))
        self._members = Members(policy)
        self._driver: Driver[MemberEvent, MemberEffect] = Driver(self._members, self._perform)
        self._watch = NodeWatch(poll_s, self._seen)
        self._workers: dict[Role, Workers] = {}
        self._watchers: list[Watcher] = []
        self._infos: dict[NodeName, NodeInfo] = {}
        self._troubles: dict[NodeName, str] = {}
        self._answer: Answer | None = None

    def serve(self, role: Role, workers: Workers) -> None:
        """`workers` gives the work of `role`. To be called before `run`."""
        self._workers[role] = workers

    def watch(self, watcher: Watcher) -> None:
        """`watcher` is told of all members. To be called before `run`."""
        self._watchers.append(watcher)

    async def run(self) -> None:
        """Watches members and their leases, until cancelled."""
        for one in self._listed:
            self._driver.post(Listed(one.address.name, one.role, one.address.url, self._lease_ns))
        try:
            await self._watch.run()
        finally:
            self._driver.close()

    def validate(self) -> None:
        """Raises InvariantError when the members contradict themselves."""
        self._members.validate()
        if set(self.clients) != {member.node for member in self._members}:
            raise InvariantError(f"clients of {sorted(self.clients)}, members {[m.node for m in self._members]}")

    def look_now(self, node: NodeName) -> None:
        """Something went wrong there: look before the time."""
        self._watch.look_now(node)

    def trouble(self, node: NodeName, detail: str) -> None:
        """A call found the node unreachable: it takes no work until a look, which comes at once, sees it."""
        if node in self.clients:
            self._unseen(node, detail)
            self._watch.look_now(node)

    def work_ended(self, node: NodeName) -> None:
        """A piece of work on the node has ended: one that leaves may be free to go."""
        member = self._members.get(node)
        if member is not None and member.state is State.DRAINING and self._running(member) == 0:
            self._driver.post(Drained(node))

    def join(self, asked: JoinRequest) -> JoinReply:
        """Let a node in, or renew its lease if it is in. Raises RequestError, 409 or 503, with the reason as code."""
        geometry = Geometry(
            url=asked.url,
            data=tuple((at.host, at.port) for at in asked.data),
            model=asked.model,
            layout=asked.layout,
            max_tokens=asked.max_model_len,
            slots=asked.max_sequences,
        )
        lease_ns = asked.lease_ms * 1_000_000
        return _lease(self._ask(Join(NodeName(asked.node), asked.role, Epoch(asked.epoch), geometry, lease_ns)))

    def renew(self, node: NodeName, epoch: Epoch) -> JoinReply:
        """Renew a lease. Raises RequestError: 404 "unknown_member" (join again), 409 "stale_epoch", "name_taken"."""
        return _lease(self._ask(Renew(node, epoch)))

    def leave(self, node: NodeName, epoch: Epoch) -> LeaveReply:
        """The node gets no new work. Raises RequestError as `renew`."""
        self._ask(Leave(node, epoch))
        self.work_ended(node)
        member = self._members.get(node)
        if member is None or member.state is State.GONE:
            return LeaveReply("gone", 0)
        return LeaveReply("draining", self._running(member))

    def count(self, role: Role) -> int:
        """Members of that role, whatever state they are in."""
        return sum(member.role == role for member in self._members)

    def members(self) -> MemberList:
        """All members, for operators."""
        now_ns = loop_now_ns()
        return MemberList(
            self._policy.cluster,
            [
                MemberInfo(
                    node=member.node,
                    role=member.role,
                    state=member.state.name.lower(),
                    epoch=member.epoch,
                    url=member.url,
                    running=self._running(member),
                    lease_ms=max(0, member.until_ns - now_ns) // 1_000_000,
                    trouble="" if member.working else self._troubles.get(member.node, ""),
                )
                for member in self._members
            ],
        )

    def _ask(self, event: MemberEvent) -> Answer:
        self._answer = None
        self._driver.post(event)
        answer = self._answer
        if answer is None:
            raise InvariantError(f"no answer to {event}")
        if answer.code:
            log.warning("member refused", node=answer.node, code=answer.code, detail=answer.detail)
            status = STATUS.get(answer.code, 409)
            kind = "invalid_request_error" if status < 500 else "server_error"
            after_s = 1 if status == 503 else None
            raise RequestError(answer.detail, status=status, kind=kind, code=answer.code, retry_after_s=after_s)
        return answer

    def _running(self, member: Member) -> int:
        workers = self._workers.get(member.role)
        return workers.running(member.node) if workers is not None else 0

    def _seen(self, report: Report) -> None:
        """A look is over."""
        member = self._members.get(report.node)
        if member is None or member.node not in self.clients:
            return
        info, trouble = report.info, report.trouble
        if report.late and member.working and member.until_ns - loop_now_ns() > PATIENT * member.lease_ns:
            return  # busy, perhaps: what waits for it is not sent away because of one slow answer
        if info is not None and (info.node, info.role) != (member.node, member.role):
            trouble = f"{member.url} answers as {info.role} node {info.node}"
        if info is None or trouble:
            self._unseen(report.node, trouble)
            return
        self._infos[report.node] = info
        self._troubles.pop(report.node, None)
        self._driver.post(Seen(report.node, Epoch(info.epoch), info.layout))
        if member.epoch != info.epoch:
            self._troubles[report.node] = f"incarnation {info.epoch} answers"
        self._tell(member)

    def _unseen(self, node: NodeName, trouble: str) -> None:
        if self._troubles.get(node) != trouble:
            log.warning("member cannot be seen", node=node, trouble=trouble)
        self._troubles[node] = trouble
        self._driver.post(Unseen(node, trouble))

    def _tell(self, member: Member) -> None:
        if member.node not in self.clients or member.role not in self._workers:
            return
        info = self._infos[member.node] if member.working else None
        trouble = "" if member.working else self._troubles.get(member.node, "")
        sight = Sight(member.node, member.epoch, info, trouble)
        for watcher in self._watchers:
            watcher.member(sight)
        self._workers[member.role].member(sight)

    def _perform(self, now_ns: int, effect: MemberEffect) -> None:
        match effect:
            case Watch(node, _, url):
                self.clients[node] = self._connect(NodeAddress(node, url))
                self._watch.follow(self.clients[node])
            case Unwatch(node):
                self._watch.unfollow(node)
                del self.clients[node]
                self._infos.pop(node, None)
            case Lost(node, role, epoch, cause):
                log.warning("member lost", node=node, role=role, epoch=epoch, cause=cause)
                self._workers[role].lost(effect)
            case Moved():
                self._moved(effect)
            case Answer():
                self._answer = effect
            case _:
                assert_never(effect)

    def _moved(self, moved: Moved) -> None:
        node, before, after = moved.node, moved.before.name.lower(), moved.after.name.lower()
        log.info("member", node=node, role=moved.role, epoch=moved.epoch, before=before, state=after, cause=moved.cause)
        for (role, state), count in self._members.counts().items():
            self._metrics.set_members(self._policy.cluster, role, state.name.lower(), count)
        if moved.after is State.GONE:
            self._troubles.pop(node, None)
            for watcher in self._watchers:
                watcher.gone(node)
            if moved.role in self._workers:
                self._workers[moved.role].gone(node, moved.cause)
            return
        member = self._members.get(node)
        if member is not None:
            self._tell(member)


def _lease(answer: Answer) -> JoinReply:
    lease_ms = answer.lease_ns // 1_000_000
    return JoinReply(lease_ms, max(1, lease_ms // 3))
