"""All members of one cluster: who may join, and each one's life.

It knows names, roles, geometry and bounds. It does not know what runs on members, HTTP, or how a look is made. What is
the same for all members of a cluster is checked here, what is one member's own in `member`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prfaas.core.cache.layout import shown
from prfaas.core.errors import InvariantError
from prfaas.core.ids import NodeName
from prfaas.core.membership.effects import LEASED, LISTED, Answer, State
from prfaas.core.membership.events import Join, Listed, MemberEvent, Role
from prfaas.core.membership.member import Effect, Member

REMEMBERED = 4
"""Members that are gone are remembered up to this many times the number that may join."""


@dataclass(frozen=True, slots=True)
class MemberPolicy:
    """Who may join a cluster: nodes of `roles` that serve `model`, at most `most` at once.

    `taken`: names of nodes that the topology lists anywhere: names in logs and tickets mean one node. Leases are held
    between `least_lease_ns` and `most_lease_ns`.
    """

    cluster: str
    model: str
    roles: tuple[Role, ...]
    taken: frozenset[NodeName] = frozenset()
    most: int = 1024
    least_lease_ns: int = 200_000_000
    most_lease_ns: int = 60_000_000_000


class Members:
    """`handle(now_ns, event)` for every member of one cluster."""

    def __init__(self, policy: MemberPolicy) -> None:
        self.policy = policy
        self._members: dict[NodeName, Member] = {}

    def __iter__(self) -> Iterator[Member]:
        """Those that belong to the cluster, in the order in which they came."""
        return (member for member in self._members.values() if member.state in (*LEASED, *LISTED))

    def get(self, node: NodeName) -> Member | None:
        """The member of that name, gone or not; None when it is not remembered."""
        return self._members.get(node)

    def counts(self) -> dict[tuple[Role, State], int]:
        """How many members of each role are in each state, all roles and states of members named."""
        counts = {(role, state): 0 for role in self.policy.roles for state in (*LISTED, *LEASED)}
        for member in self:
            counts[member.role, member.state] += 1
        return counts

    def handle(self, now_ns: int, event: MemberEvent) -> list[Effect]:
        """Effects of `event`, in order."""
        if isinstance(event, Join):
            event = self._bounded(event)
            if (refusal := self._refusal(event)) is not None:
                return [refusal]
        if isinstance(event, Listed) and event.role not in self.policy.roles:
            raise InvariantError(f"{event.node} is listed as {event.role}; the roles here are {self.policy.roles}")
        member = self._members.get(event.node) or Member(event.node)
        effects = member.handle(now_ns, event)
        if member.state is State.UNKNOWN:
            return effects
        if member.state is State.GONE:
            self._members.pop(event.node, None)  # to the end: the longest gone is forgotten first
            self._forget()
        self._members[event.node] = member
        return effects

    def validate(self) -> None:
        """Raises InvariantError when a member contradicts itself, or there are more than may be."""
        for node, member in self._members.items():
            if member.node != node or member.state is State.UNKNOWN:
                raise InvariantError(f"{node} is kept as {member.node}, {member.state.name}")
            member.validate()
        if self._joined > self.policy.most:
            raise InvariantError(f"{self._joined} members joined; at most {self.policy.most} may")
        if any(count < 0 for count in self.counts().values()) or sum(self.counts().values()) != len(list(self)):
            raise InvariantError(f"counts {self.counts()} of {len(list(self))} members")

    @property
    def _joined(self) -> int:
        return sum(member.state in LEASED for member in self._members.values())

    def _bounded(self, join: Join) -> Join:
        least, most = self.policy.least_lease_ns, self.policy.most_lease_ns
        lease_ns = min(max(join.lease_ns, least), most)
        return Join(join.node, join.role, join.epoch, join.geometry, lease_ns)

    def _refusal(self, join: Join) -> Answer | None:
        """Why nobody with this name, role or geometry can join."""
        node, policy = join.node, self.policy
        known = self._members.get(node)
        if join.role not in policy.roles:
            said = f"{node} is a {join.role} node; cluster {policy.cluster} takes {' and '.join(policy.roles)} nodes"
            return Answer(node, "wrong_role", said)
        if node in policy.taken:
            return Answer(node, "name_taken", f"{node} is a node that the topology lists; expected another name")
        if join.geometry.model != policy.model:
            said = f"{node} serves {join.geometry.model!r}; cluster {policy.cluster} serves {policy.model!r}"
            return Answer(node, "wrong_model", said)
        layouts = {member.layout for member in self if member.working and member.node != node}
        if layouts and join.geometry.layout not in layouts:
            said = f"{node} has KV of {shown(join.geometry.layout)}; cluster {policy.cluster} of {shown(min(layouts))}"
            return Answer(node, "layout_mismatch", f"not one model and dtype: {said}")
        if (known is None or known.state not in LEASED) and self._joined >= policy.most:
            return Answer(node, "too_many_members", f"{policy.most} nodes have joined cluster {policy.cluster} already")
        return None

    def _forget(self) -> None:
        """Those that are gone are remembered for their epochs, but not for ever. Makes room for one more."""
        gone = [node for node, member in self._members.items() if member.state is State.GONE]
        for node in gone[: max(0, len(gone) + 1 - REMEMBERED * self.policy.most)]:
            del self._members[node]
