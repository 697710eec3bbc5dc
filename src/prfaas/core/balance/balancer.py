"""Who changes roles, and when: looks at the balance every few minutes and sees one conversion through at a time.

It knows nodes by name, the rule, and what was measured; it does not know how a node is drained or converted. A look
leads to at most one step. The node drains first: what runs there ends. The node that came to its role last goes first:
its caches are youngest, and what was lent comes back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from prfaas.core.balance.effects import Abandoned, BalanceEffect, Convert, Drain, Judged, Resume, Skipped, Why
from prfaas.core.balance.events import BalanceEvent, Converted, Drained, Failed, Look, Overdue, Staffed
from prfaas.core.balance.hardware import Hardware
from prfaas.core.balance.measured import MINUTE_NS, Measured
from prfaas.core.balance.outlook import Outlook
from prfaas.core.balance.rules import Limits, Predictive, Rule
from prfaas.core.errors import InvariantError
from prfaas.core.ids import NodeName
from prfaas.core.machine import Arm, Disarm
from prfaas.core.membership.events import Role

Effect = BalanceEffect | Arm[BalanceEvent] | Disarm


@dataclass(frozen=True, slots=True)
class BalancePolicy:
    """`period_ns` between looks. `least_requests`: fewer in the window, and nothing is judged. `conversion_ns`: how
    long a conversion takes, draining included, until one was seen. `drain_ns`, `convert_ns`: how long each may take."""

    rule: Rule = field(default_factory=Predictive)
    limits: Limits = field(default_factory=Limits)
    period_ns: int = 5 * MINUTE_NS
    least_requests: int = 200
    conversion_ns: int = 2 * MINUTE_NS
    drain_ns: int = 10 * MINUTE_NS
    convert_ns: int = 10 * MINUTE_NS


@dataclass(frozen=True, slots=True)
class Conversion:
    """Under way since `began_ns`: `node` leaves role `of` and becomes `to`; it drains until it is `drained`."""

    node: NodeName
    of: Role
    to: Role
    began_ns: int
    drained: bool = False


class Balancer:
    """`handle(now_ns, event)` for one PD cluster. It judges nothing before it was told who works there."""

    def __init__(self, policy: BalancePolicy, hardware: Hardware, measured: Measured) -> None:
        self.policy, self.hardware, self.measured = policy, hardware, measured
        self.prefill: tuple[NodeName, ...] = ()
        self.decode: tuple[NodeName, ...] = ()
        self.remotes: tuple[int, ...] = (0,) * len(hardware.remotes)
        self.under_way: Conversion | None = None
        self.conversion_ns = policy.conversion_ns
        self._looking = False

    def handle(self, now_ns: int, event: BalanceEvent) -> list[Effect]:
        """Effects of `event`, in order."""
        match event:
            case Staffed():
                return self._staffed(now_ns, event)
            case Look():
                return [*self._look(now_ns), self._later(now_ns)]
            case Drained(node):
                return self._drained(now_ns, node)
            case Converted(node):
                return self._converted(now_ns, node)
            case Failed(node, cause):
                return self._failed(node, cause)
            case Overdue(node):
                return self._overdue(node)

    def validate(self) -> None:
        """Raises InvariantError when a node is in two places."""
        busy = (self.under_way.node,) if self.under_way else ()
        every = (*self.prefill, *self.decode, *busy)
        if len(set(every)) != len(every):
            raise InvariantError(f"a node is in two places: {self.prefill}, {self.decode}, {self.under_way}")

    def _staffed(self, now_ns: int, event: Staffed) -> list[Effect]:
        if len(event.remotes) != len(self.hardware.remotes):
            raise InvariantError(f"{len(event.remotes)} remotes; the hardware is that of {len(self.hardware.remotes)}")
        busy = self.under_way.node if self.under_way else None
        self.prefill = tuple(node for node in event.prefill if node != busy)
        self.decode = tuple(node for node in event.decode if node != busy)
        self.remotes = event.remotes
        if self._looking:
            return []
        self._looking = True
        return [self._later(now_ns)]

    def _later(self, now_ns: int) -> Arm[BalanceEvent]:
        return Arm("look", now_ns + self.policy.period_ns, Look())

    def _look(self, now_ns: int) -> list[Effect]:
        n_p, n_d, limits = len(self.prefill), len(self.decode), self.policy.limits
        traffic = self.measured.traffic(now_ns)
        requests = traffic.requests if traffic else 0
        why: Why | None = None
        if self.under_way:
            why = "under_way"
        elif n_p + n_d <= limits.prefill + limits.decode:
            why = "minimum"
        elif requests < self.policy.least_requests:
            why = "few_requests"
        if why or traffic is None:
            return [Skipped(why or "few_requests", n_p, n_d, requests)]
        outlook = Outlook(traffic, self.hardware, n_p + n_d, self.remotes)
        found = self.policy.rule.judge(outlook, n_p, n_d, limits, self.conversion_ns)
        return [found, *self._begun(now_ns, found)]

    def _begun(self, now_ns: int, found: Judged) -> list[Effect]:
        """The step's first half. A rule that asks for more than a role can give has a bug."""
        if not found.step:
            return []
        of: Role = "decode" if found.step > 0 else "prefill"
        to: Role = "prefill" if found.step > 0 else "decode"
        giving, least = (
            (self.decode, self.policy.limits.decode) if found.step > 0 else (self.prefill, self.policy.limits.prefill)
        )
        if abs(found.step) != 1 or len(giving) <= least:
            raise InvariantError(f"a step of {found.step} from {len(giving)} {of} nodes of which {least} must stay")
        node = giving[-1]
        if found.step > 0:
            self.decode = self.decode[:-1]
        else:
            self.prefill = self.prefill[:-1]
        self.under_way = Conversion(node, of, to, now_ns)
        return [Drain(node, of), Arm("overdue", now_ns + self.policy.drain_ns, Overdue(node))]

    def _drained(self, now_ns: int, node: NodeName) -> list[Effect]:
        way = self.under_way
        if way is None or way.node != node or way.drained:
            return []
        self.under_way = Conversion(node, way.of, way.to, way.began_ns, drained=True)
        return [Convert(node, way.to), Arm("overdue", now_ns + self.policy.convert_ns, Overdue(node))]

    def _converted(self, now_ns: int, node: NodeName) -> list[Effect]:
        way = self.under_way
        if way is None or way.node != node or not way.drained:
            return []
        self.under_way = None
        self.conversion_ns = now_ns - way.began_ns
        self._joins(node, way.to)
        return [Disarm("overdue")]

    def _failed(self, node: NodeName, cause: str) -> list[Effect]:
        way = self.under_way
        if way is None or way.node != node:
            return []
        self.under_way = None
        return [Abandoned(node, way.to, cause), Disarm("overdue")]

    def _overdue(self, node: NodeName) -> list[Effect]:
        """A node that cannot drain goes on as it was; one that cannot convert is no longer counted on: when it comes
        back, in whatever role, it is Staffed."""
        way = self.under_way
        if way is None or way.node != node:
            return []
        self.under_way = None
        if way.drained:
            return [Abandoned(node, way.to, "it did not convert in time")]
        self._joins(node, way.of)
        return [Resume(node, way.of, "it did not drain in time")]

    def _joins(self, node: NodeName, role: Role) -> None:
        if role == "prefill":
            self.prefill = (*self.prefill, node)
        else:
            self.decode = (*self.decode, node)
