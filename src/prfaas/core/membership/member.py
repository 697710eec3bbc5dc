"""One member's life in a cluster, as a state table.

It knows one name, its newest incarnation and its lease. It does not know other members (`members` does), what runs on
it, nor how it is looked at. An incarnation is an epoch: an older one than was seen is refused, a newer one replaces
what there was, whose work is lost.
"""

from __future__ import annotations

from collections import deque

from prfaas.core.errors import InvariantError
from prfaas.core.ids import Epoch, NodeName
from prfaas.core.machine import Arm, Disarm
from prfaas.core.membership.effects import (
    LEASED,
    LISTED,
    WORKING,
    Answer,
    Lost,
    MemberEffect,
    Moved,
    State,
    Unwatch,
    Watch,
)
from prfaas.core.membership.events import (
    Drained,
    Geometry,
    Join,
    LeaseRan,
    Leave,
    Listed,
    MemberEvent,
    Renew,
    Role,
    Seen,
    Unseen,
)
from prfaas.core.table import Table

Effect = MemberEffect | Arm[MemberEvent] | Disarm
NEVER = Epoch(0)
UP = (State.UNSEEN, State.JOINED)
PARTS = 4
"""Of a lease; see `LeaseRan`."""
_MISSED = "after its last part: gone, what runs there is lost"


class Member:
    """`handle(now_ns, event)` for one node name. `epoch` is the newest incarnation that was heard of, 0 for none."""

    TABLE = Table("member", State, State.UNKNOWN, [])

    def __init__(self, node: NodeName) -> None:
        self.node = node
        self.state = State.UNKNOWN
        self.role: Role = "prefill"
        self.epoch = NEVER
        self.geometry: Geometry | None = None
        self.url = ""
        self.layout = ""
        self.lease_ns = 0
        self.until_ns = 0
        """When the lease ends, unless it is renewed."""
        self._seen_ns = 0
        self._left = False
        self._worked = False  # whether anything may run there that was not declared lost
        self._story: deque[str] = deque(maxlen=24)

    @property
    def working(self) -> bool:
        """Whether it takes new work."""
        return self.state in WORKING

    def handle(self, now_ns: int, event: MemberEvent) -> list[Effect]:
        """Effects of `event`, in order: first `Moved`, when the state or the incarnation changed, so that what is
        placed again because it was lost is not placed here again."""
        row = self.TABLE.row(self.state, type(event), tuple(self._story))
        self._story.append(f"{now_ns}:{self.state.name}x{type(event).__name__}")
        effects: list[Effect] = getattr(self, row.handler)(now_ns, event)
        if self.state not in row.to:
            raise InvariantError(f"member {self.node}: {self.state.name} is not in the row's {row.to}", (*self._story,))
        return effects

    def validate(self) -> None:
        """Raises InvariantError when what is known does not fit the state."""
        if self.epoch < 0 or (self._worked and self.state in (State.UNKNOWN, State.GONE)):
            raise InvariantError(f"member {self.node}: epoch {self.epoch}, work {self._worked}", (*self._story,))
        if (self.state in LEASED) != (self.geometry is not None):
            raise InvariantError(f"member {self.node}: {self.state.name} with {self.geometry}", (*self._story,))
        if self.state in (*LEASED, *LISTED) and (self.lease_ns <= 0 or not self.url):
            raise InvariantError(f"member {self.node}: lease {self.lease_ns}, url {self.url!r}", (*self._story,))
        if self.state in (*LEASED, State.PRESENT) and self.epoch == NEVER:
            raise InvariantError(f"member {self.node}: {self.state.name} without an epoch", (*self._story,))

    @TABLE.on([State.UNKNOWN], Listed, [State.ABSENT], "watched from now on")
    def _listed(self, now_ns: int, event: Listed) -> list[Effect]:
        self.role, self.url, self.lease_ns = event.role, event.url, event.lease_ns
        return [*self._move(State.ABSENT, "listed"), Watch(self.node, self.role, self.url)]

    @TABLE.on([State.UNKNOWN], Join, [State.UNSEEN], "a new member: its lease runs, and it is watched")
    @TABLE.on(
        [State.GONE], Join, [State.GONE, State.UNSEEN], "back; refused: an older incarnation, or one that said goodbye"
    )
    def _join(self, now_ns: int, event: Join) -> list[Effect]:
        if event.epoch < self.epoch or (event.epoch == self.epoch and self._left):
            return [self._stale(event.epoch)]
        return self._enter(now_ns, event)

    @TABLE.on([State.UNSEEN], Join, [State.UNSEEN], "the same: its lease runs anew; newer: replaces it; older: refused")
    @TABLE.on(
        [State.JOINED], Join, UP, "the same: its lease runs anew; newer: replaces it, its work is lost; older: no"
    )
    @TABLE.on(
        [State.DRAINING], Join, [State.DRAINING, State.UNSEEN], "newer: replaces the one that leaves; others: refused"
    )
    def _join_again(self, now_ns: int, event: Join) -> list[Effect]:
        if event.epoch < self.epoch:
            return [self._stale(event.epoch)]
        if event.epoch > self.epoch:
            return [*self._go("replaced"), *self._enter(now_ns, event)]
        if self.state is State.DRAINING:
            return [Answer(self.node, "leaving", f"{self.node} said that it leaves, and has not come back since")]
        if (event.role, event.geometry) != (self.role, self.geometry):
            said = f"{self.node} joined as another node with the same epoch {event.epoch}"
            return [Answer(self.node, "epoch_in_use", said)]
        self.lease_ns = event.lease_ns
        return self._leased(now_ns)

    @TABLE.on([State.UNSEEN], Renew, [State.UNSEEN], "its lease runs anew; another incarnation is refused")
    @TABLE.on([State.JOINED], Renew, [State.JOINED], "its lease runs anew; another incarnation is refused")
    @TABLE.on([State.DRAINING], Renew, [State.DRAINING], "as long as it takes; another incarnation is refused")
    def _renew(self, now_ns: int, event: Renew) -> list[Effect]:
        return self._leased(now_ns) if event.epoch == self.epoch else [self._other(event.epoch)]

    @TABLE.on([State.UNSEEN], Leave, [State.UNSEEN, State.DRAINING], "no new work; another incarnation is refused")
    @TABLE.on([State.JOINED], Leave, [State.JOINED, State.DRAINING], "no new work; another incarnation is refused")
    @TABLE.on([State.DRAINING], Leave, [State.DRAINING], "asked again: its lease runs anew")
    def _leave(self, now_ns: int, event: Leave) -> list[Effect]:
        if event.epoch != self.epoch:
            return [self._other(event.epoch)]
        return [*self._move(State.DRAINING, "leaves"), *self._leased(now_ns)]

    @TABLE.on([State.DRAINING], Drained, [State.GONE], "nothing runs there any more")
    def _drained(self, now_ns: int, event: Drained) -> list[Effect]:
        self._left, self._worked = True, False
        return self._go("left")

    @TABLE.on([State.UNKNOWN], Renew, [State.UNKNOWN], "refused: it must join first, as after this head's restart")
    @TABLE.on([State.UNKNOWN], Leave, [State.UNKNOWN], "refused: never joined")
    @TABLE.on([State.GONE], Renew, [State.GONE], "refused: it must join again, unless it is an old incarnation")
    def _unknown(self, now_ns: int, event: Renew | Leave) -> list[Effect]:
        return [self._other(event.epoch)]

    @TABLE.on([State.GONE], Leave, [State.GONE], "well: it has left; another incarnation is refused")
    def _leave_again(self, now_ns: int, event: Leave) -> list[Effect]:
        return [Answer(self.node, "", "gone") if event.epoch == self.epoch else self._other(event.epoch)]

    @TABLE.on([State.ABSENT], Join, [State.ABSENT], "refused: the name is a listed node's")
    @TABLE.on([State.PRESENT], Join, [State.PRESENT], "refused: the name is a listed node's")
    @TABLE.on([State.ABSENT], Renew, [State.ABSENT], "refused: a listed node has no lease")
    @TABLE.on([State.PRESENT], Renew, [State.PRESENT], "refused: a listed node has no lease")
    @TABLE.on([State.ABSENT], Leave, [State.ABSENT], "refused: a listed node does not leave")
    @TABLE.on([State.PRESENT], Leave, [State.PRESENT], "refused: a listed node does not leave")
    def _name_taken(self, now_ns: int, event: Join | Renew | Leave) -> list[Effect]:
        said = f"{self.node} is a node that the topology lists; expected another name"
        return [Answer(self.node, "name_taken", said)]

    @TABLE.on(LISTED, Seen, [State.PRESENT], "takes work; another epoch: it restarted, and its old work is lost")
    def _listed_seen(self, now_ns: int, event: Seen) -> list[Effect]:
        # A look is authority here, even when a clock ran backwards: what answers at its address is the node.
        new = event.epoch != self.epoch
        lost = self._lose("restarted", self._seen_ns) if new else []
        self.epoch, self.layout, self._seen_ns = event.epoch, event.layout, now_ns
        return [*self._move(State.PRESENT, "restarted" if lost else "answers", new), *lost, self._arm(now_ns)]

    @TABLE.on(UP, Seen, [*UP, State.GONE], "takes work; newer: it restarted and must join; older: it is not the one")
    @TABLE.on([State.DRAINING], Seen, [State.DRAINING, State.GONE], "newer: it restarted, what ran there is lost")
    def _seen(self, now_ns: int, event: Seen) -> list[Effect]:
        if event.epoch > self.epoch:
            return self._go("restarted")
        if self.state is State.DRAINING:
            return []
        if event.epoch < self.epoch:
            return self._move(State.UNSEEN, "an older incarnation answers")
        self.layout = event.layout
        return self._move(State.JOINED, "answers")

    @TABLE.on(LISTED, Unseen, [State.ABSENT], "no new work; what runs there may still end well")
    @TABLE.on(UP, Unseen, [State.UNSEEN], "no new work; what runs there may still end well")
    @TABLE.on([State.DRAINING], Unseen, [State.DRAINING], "its lease will tell")
    def _unseen(self, now_ns: int, event: Unseen) -> list[Effect]:
        if self.state is State.DRAINING:
            return []
        return self._move(State.ABSENT if self.state in LISTED else State.UNSEEN, event.trouble)

    @TABLE.on([State.ABSENT], LeaseRan, [State.ABSENT], "after its last part, silent: what runs there is lost")
    @TABLE.on([State.PRESENT], LeaseRan, LISTED, "after its last part, silent: what runs there is lost")
    def _silent(self, now_ns: int, event: LeaseRan) -> list[Effect]:
        if event.left:
            return [self._arm(now_ns, event.left)]
        return [*self._move(State.ABSENT, "silent"), *self._lose("silent", None)]

    @TABLE.on([State.UNSEEN], LeaseRan, [State.UNSEEN, State.GONE], _MISSED)
    @TABLE.on([State.JOINED], LeaseRan, [State.JOINED, State.GONE], _MISSED)
    @TABLE.on([State.DRAINING], LeaseRan, [State.DRAINING, State.GONE], _MISSED)
    def _missed(self, now_ns: int, event: LeaseRan) -> list[Effect]:
        if event.left:
            return [self._arm(now_ns, event.left)]
        return self._go("lease ended")

    @property
    def _key(self) -> tuple[str, NodeName]:
        return ("lease", self.node)

    def _move(self, state: State, cause: str, again: bool = False) -> list[Effect]:
        before, self.state = self.state, state
        self._worked = self._worked or self.working
        if state is before and not again:
            return []
        return [Moved(self.node, self.role, self.epoch, before, state, cause)]

    def _enter(self, now_ns: int, event: Join) -> list[Effect]:
        self.role, self.epoch, self.geometry = event.role, event.epoch, event.geometry
        self.url, self.layout = event.geometry.url, event.geometry.layout
        self.lease_ns, self._left = event.lease_ns, False
        moved = self._move(State.UNSEEN, "joins")
        return [*moved, Watch(self.node, self.role, self.url), *self._leased(now_ns)]

    def _go(self, cause: str) -> list[Effect]:
        moved = self._move(State.GONE, cause)
        self.geometry, self.url, self.layout = None, "", ""
        return [*moved, Disarm(self._key), Unwatch(self.node), *self._lose(cause, None)]

    def _leased(self, now_ns: int) -> list[Effect]:
        return [self._arm(now_ns), Answer(self.node, "", self.state.name.lower(), self.lease_ns)]

    def _arm(self, now_ns: int, left: int = PARTS) -> Effect:
        part_ns = self.lease_ns // PARTS
        self.until_ns = now_ns + left * part_ns
        return Arm(self._key, now_ns + part_ns, LeaseRan(self.node, left - 1))

    def _lose(self, cause: str, until_ns: int | None) -> list[Effect]:
        """What runs there, unless it was lost already or nothing ever did."""
        if not self._worked:
            return []
        self._worked = False
        return [Lost(self.node, self.role, self.epoch, cause, until_ns)]

    def _other(self, epoch: Epoch) -> Answer:
        if epoch < self.epoch or (epoch == self.epoch and self._left):
            return self._stale(epoch)
        said = f"{self.node} is no member as incarnation {epoch}: it must join first"
        return Answer(self.node, "unknown_member", said)

    def _stale(self, epoch: Epoch) -> Answer:
        what = "has left" if epoch == self.epoch else f"is older than {self.epoch}, which was here since"
        return Answer(self.node, "stale_epoch", f"incarnation {epoch} of {self.node} {what}")
