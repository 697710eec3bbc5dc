"""One member's life, row by row; and random lives of many, in which nothing is counted wrongly."""

from __future__ import annotations

import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prfaas.core.errors import InvariantError
from prfaas.core.ids import Epoch, NodeName
from prfaas.core.machine import Arm, Disarm
from prfaas.core.membership.effects import LEASED, LISTED, Answer, Lost, Moved, State, Unwatch, Watch
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
from prfaas.core.membership.member import Effect, Member
from prfaas.core.membership.members import MemberPolicy, Members

LEASE = 1_000_000_000
SPARE, HOME = NodeName("spare-1"), NodeName("far-prefill")
LAYOUT = "layout"
POLICY = MemberPolicy("far", "model", ("prefill",), frozenset({NodeName("home-decode")}), most=2, least_lease_ns=1)
T = typing.TypeVar("T")


def geometry(url: str = "http://a:1", layout: str = LAYOUT, model: str = "model") -> Geometry:
    return Geometry(url, (("a", 2),), model, layout, 1000, 4)


def join(epoch: int = 7, node: NodeName = SPARE, role: Role = "prefill", **fields: str) -> Join:
    return Join(node, role, Epoch(epoch), geometry(**fields), LEASE)


def seen(epoch: int = 7, node: NodeName = SPARE) -> Seen:
    return Seen(node, Epoch(epoch), LAYOUT)


def only(effects: list[Effect], kind: type[T]) -> T:
    (one,) = [effect for effect in effects if isinstance(effect, kind)]
    return one


def kinds(effects: list[Effect]) -> list[type]:
    return [type(effect) for effect in effects]


@pytest.fixture
def members() -> Members:
    members = Members(POLICY)
    members.handle(0, Listed(HOME, "prefill", "http://h:1", LEASE))
    return members


def state(members: Members, node: NodeName = SPARE) -> State:
    member = members.get(node)
    return member.state if member is not None else State.UNKNOWN


def test_an_hour_of_a_spare_node(members: Members) -> None:
    joined = members.handle(0, join())
    assert only(joined, Watch) == Watch(SPARE, "prefill", "http://a:1")
    assert only(joined, Arm) == Arm(("lease", SPARE), LEASE // 4, LeaseRan(SPARE, 3))
    assert only(joined, Answer) == Answer(SPARE, "", "unseen", LEASE)
    assert state(members) is State.UNSEEN, "nothing is given to it before a look has seen it"
    moved = only(members.handle(1, seen()), Moved)
    assert (moved.before, moved.after, moved.epoch) == (State.UNSEEN, State.JOINED, 7)
    renewed = members.handle(400, Renew(SPARE, Epoch(7)))
    assert only(renewed, Arm).at_ns == 400 + LEASE // 4
    left = members.handle(500, Leave(SPARE, Epoch(7)))
    assert only(left, Answer).code == ""
    assert state(members) is State.DRAINING
    assert members.handle(600, seen()) == []
    gone = members.handle(700, Drained(SPARE))
    assert kinds(gone) == [Moved, Disarm, Unwatch], "nothing is lost by who leaves with notice"
    assert state(members) is State.GONE
    assert only(members.handle(800, Leave(SPARE, Epoch(7))), Answer) == Answer(SPARE, "", "gone")


def test_a_missed_lease_loses_what_runs_there_and_the_same_incarnation_may_come_back(members: Members) -> None:
    members.handle(0, join())
    members.handle(1, seen())
    effects = members.handle(LEASE, LeaseRan(SPARE, 0))
    assert kinds(effects) == [Moved, Disarm, Unwatch, Lost]
    assert only(effects, Lost) == Lost(SPARE, "prefill", Epoch(7), "lease ended", None)
    assert only(members.handle(LEASE + 1, Renew(SPARE, Epoch(7))), Answer).code == "unknown_member"
    assert only(members.handle(LEASE + 2, join()), Answer).code == ""
    assert state(members) is State.UNSEEN


def test_a_lease_of_a_node_that_took_no_work_loses_nothing(members: Members) -> None:
    members.handle(0, join())
    assert Lost not in kinds(members.handle(LEASE, LeaseRan(SPARE, 0)))


def test_a_lease_ends_in_its_time(members: Members) -> None:
    arm, ends = only(members.handle(0, join()), Arm), []
    members.handle(1, seen())
    while state(members) is not State.GONE:
        ends.append(arm.at_ns)
        effects = members.handle(arm.at_ns, arm.event)
        arm = next((effect for effect in effects if isinstance(effect, Arm)), arm)
    assert ends == [LEASE // 4, LEASE // 2, LEASE * 3 // 4, LEASE]


def test_a_head_that_stood_still_blames_nobody(members: Members) -> None:
    arm = only(members.handle(0, join()), Arm)
    members.handle(1, seen())
    late = 100 * LEASE
    effects = members.handle(late, arm.event)
    assert only(effects, Arm).at_ns == late + LEASE // 4, "one part is over; there is time for what came meanwhile"
    assert state(members) is State.JOINED
    assert only(members.handle(late + 1, Renew(SPARE, Epoch(7))), Arm).event == LeaseRan(SPARE, 3)


@pytest.mark.parametrize("where", ["unseen", "joined", "draining"])
def test_epochs(members: Members, where: str) -> None:
    members.handle(0, join(7))
    if where != "unseen":
        members.handle(1, seen(7))
    if where == "draining":
        members.handle(2, Leave(SPARE, Epoch(7)))
    before = state(members)
    for event in (join(6), Renew(SPARE, Epoch(6)), Leave(SPARE, Epoch(6))):
        assert only(members.handle(3, event), Answer).code == "stale_epoch"
    for event in (Renew(SPARE, Epoch(8)), Leave(SPARE, Epoch(8))):
        assert only(members.handle(3, event), Answer).code == "unknown_member"
    assert state(members) is before
    effects = members.handle(4, join(8, url="http://b:1"))
    assert state(members) is State.UNSEEN
    assert [effect for effect in effects if isinstance(effect, Watch | Unwatch)] == [
        Unwatch(SPARE),
        Watch(SPARE, "prefill", "http://b:1"),
    ]
    assert (Lost in kinds(effects)) == (where != "unseen"), "what ran on the old incarnation is lost"
    assert kinds(effects)[0] is Moved
    assert only(members.handle(5, Renew(SPARE, Epoch(7))), Answer).code == "stale_epoch"


def test_joining_twice_is_joining_once(members: Members) -> None:
    members.handle(0, join())
    members.handle(1, seen())
    again = members.handle(2, join())
    assert kinds(again) == [Arm, Answer]
    assert state(members) is State.JOINED
    other = only(members.handle(3, join(url="http://b:1")), Answer)
    assert other.code == "epoch_in_use", "two processes with one epoch are told apart by what they are"


def test_who_leaves_does_not_slip_back_in(members: Members) -> None:
    members.handle(0, join())
    members.handle(1, seen())
    members.handle(2, Leave(SPARE, Epoch(7)))
    assert only(members.handle(3, join()), Answer).code == "leaving"
    members.handle(4, Drained(SPARE))
    assert only(members.handle(5, join()), Answer).code == "stale_epoch"
    assert only(members.handle(6, Renew(SPARE, Epoch(7))), Answer).code == "stale_epoch"
    assert only(members.handle(7, join(8)), Answer).code == ""


def test_a_member_that_restarted_must_join_before_it_works(members: Members) -> None:
    members.handle(0, join(7))
    members.handle(1, seen(7))
    effects = members.handle(2, seen(8))
    assert state(members) is State.GONE
    assert only(effects, Lost).cause == "restarted"
    members.handle(3, join(8))
    members.handle(4, seen(8))
    assert state(members) is State.JOINED


def test_an_older_incarnation_that_answers_takes_no_work(members: Members) -> None:
    members.handle(0, join(7))
    members.handle(1, seen(7))
    members.handle(2, seen(6))
    assert state(members) is State.UNSEEN


def test_listed_nodes(members: Members) -> None:
    assert state(members, HOME) is State.ABSENT
    first = members.handle(10, seen(3, HOME))
    assert only(first, Arm).at_ns == 10 + LEASE // 4
    assert state(members, HOME) is State.PRESENT
    members.handle(20, Unseen(HOME, "connection refused"))
    assert state(members, HOME) is State.ABSENT
    back = members.handle(30, seen(3, HOME))
    assert Lost not in kinds(back), "the same incarnation: its work goes on"
    restarted = members.handle(40, seen(4, HOME))
    assert only(restarted, Lost) == Lost(HOME, "prefill", Epoch(3), "restarted", 30)
    assert only(restarted, Moved).epoch == 4
    silent = members.handle(40 + LEASE, LeaseRan(HOME, 0))
    assert only(silent, Lost) == Lost(HOME, "prefill", Epoch(4), "silent", None)
    assert Lost not in kinds(members.handle(50 + LEASE, seen(5, HOME))), "it was lost already"
    assert state(members, HOME) is State.PRESENT


def test_a_listed_nodes_clock_may_run_backwards(members: Members) -> None:
    members.handle(10, seen(9, HOME))
    effects = members.handle(20, seen(3, HOME))
    assert only(effects, Lost).epoch == 9
    assert only(effects, Moved).epoch == 3


def test_listed_names_are_not_for_others(members: Members) -> None:
    for when in ("absent", "present"):
        for event in (join(node=HOME), Renew(HOME, Epoch(1)), Leave(HOME, Epoch(1))):
            assert only(members.handle(1, event), Answer).code == "name_taken", when
        members.handle(2, seen(3, HOME))
    assert only(members.handle(1, join(node=NodeName("home-decode"))), Answer).code == "name_taken"


def test_who_does_not_fit_is_refused_by_name(members: Members) -> None:
    members.handle(0, seen(3, HOME))
    for wrong, code, word in (
        (join(role="decode"), "wrong_role", "spare-1 is a decode node"),
        (join(model="other"), "wrong_model", "'other'"),
        (join(layout="another"), "layout_mismatch", "another"),
    ):
        answer = only(members.handle(1, wrong), Answer)
        assert answer.code == code
        assert word in answer.detail
    for name in "ab":
        assert only(members.handle(1, join(node=NodeName(name))), Answer).code == ""
    assert only(members.handle(1, join(node=NodeName("c"))), Answer).code == "too_many_members"
    assert only(members.handle(1, join(node=NodeName("a"))), Answer).code == "", "who is in, is in"
    members.validate()


def test_leases_are_held_in_bounds() -> None:
    members = Members(MemberPolicy("far", "model", ("prefill",), least_lease_ns=50, most_lease_ns=100))
    for asked, granted in ((1, 50), (70, 70), (1000, 100)):
        event = Join(SPARE, "prefill", Epoch(1), geometry(), asked)
        assert only(members.handle(0, event), Answer).lease_ns == granted


def test_what_is_gone_is_remembered_but_not_for_ever(members: Members) -> None:
    for i in range(40):
        name = NodeName(f"n{i}")
        members.handle(i, join(node=name))
        members.handle(i, LeaseRan(name, 0))
        members.validate()
    remembered = [i for i in range(40) if members.get(NodeName(f"n{i}")) is not None]
    assert remembered == list(range(40 - 4 * POLICY.most, 40))


def test_every_event_that_can_come_has_a_row() -> None:
    table = Member.TABLE
    outside = {Join, Renew, Leave}
    watched = {Seen, Unseen, LeaseRan}
    for at in State:
        assert outside <= {event for (state, event) in table.rows if state is at}, (
            "anybody may say anything at any time"
        )
    for at in (*LISTED, *LEASED):
        assert watched <= {event for (state, event) in table.rows if state is at}
    assert set(table.events()) == set(typing.get_args(MemberEvent))
    reached = {table.start}
    for _ in State:
        reached |= {to for (at, _), row in table.rows.items() if at in reached for to in row.to}
    assert reached == set(State)
    member = Member(SPARE)
    member.state = State.GONE
    with pytest.raises(InvariantError, match="no row for GONE x Drained"):
        member.handle(0, Drained(SPARE))


class Books:
    """A head that does what it is told, and knows what must be true of it."""

    def __init__(self, members: Members) -> None:
        self.members = members
        self.watched: dict[str, str] = {}
        self.armed: dict[str, Arm[MemberEvent]] = {}
        self.working: dict[str, int] = {}
        self.highest: dict[str, int] = {}
        self.now = 0

    def post(self, event: MemberEvent) -> list[Effect]:
        before = {member.node: (member.state, member.epoch) for member in self.members}
        effects = self.members.handle(self.now, event)
        for effect in effects:
            match effect:
                case Watch(node, _, url):
                    assert node not in self.watched, "watched twice"
                    self.watched[node] = url
                case Unwatch(node):
                    del self.watched[node]
                case Arm():
                    assert isinstance(effect.event, LeaseRan)
                    self.armed[effect.event.node] = effect
                case Disarm(key):
                    self.armed.pop(typing.cast("tuple[str, str]", key)[1], None)
                case Moved(node, _, epoch, _, after):
                    if after in (State.PRESENT, State.JOINED):
                        self.working[node] = epoch
                case Lost(node, _, epoch):
                    assert before[node][1] == epoch
                    self.working.pop(node, None)
                case Answer(node, code):
                    if isinstance(event, Join) and code == "":
                        assert event.epoch >= self.highest.get(node, 0), "a stale incarnation was let in"
                        self.highest[node] = event.epoch
                    elif code:
                        assert before == {m.node: (m.state, m.epoch) for m in self.members}, "a refusal changed things"
        self.members.validate()
        assert set(self.watched) == {member.node for member in self.members}
        for member in self.members:
            if member.state in LEASED:
                assert self.armed[member.node].at_ns <= member.until_ns
        return effects


@given(st.data())
def test_random_lives(data: st.DataObject) -> None:
    draw = data.draw
    books = Books(Members(POLICY))
    books.post(Listed(HOME, "prefill", "http://h:1", LEASE))
    for _ in range(draw(st.integers(0, 60))):
        until = books.now + draw(st.integers(0, LEASE))
        while due := [arm for arm in books.armed.values() if arm.at_ns <= until]:
            arm = min(due, key=lambda arm: arm.at_ns)
            assert isinstance(arm.event, LeaseRan)
            books.now = max(books.now, arm.at_ns)
            del books.armed[arm.event.node]
            books.post(arm.event)
        books.now = until
        options: list[MemberEvent] = []
        for name in (HOME, SPARE, NodeName("b"), NodeName("c")):
            epoch = draw(st.integers(1, 4))
            options += [join(epoch, name), Renew(name, Epoch(epoch)), Leave(name, Epoch(epoch))]
            if name in books.watched:
                options += [seen(epoch, name), Unseen(name, "no answer")]
            if state(books.members, name) is State.DRAINING:
                options.append(Drained(name))
        event = draw(st.sampled_from(options))
        books.post(event)
        if isinstance(event, Drained):
            books.working.pop(event.node, None)
    present = {member.node for member in books.members}
    assert set(books.working) <= present, "work is kept for a member that is gone"
