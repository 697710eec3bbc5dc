"""Both legs in the scheduler, against stand-ins for vLLM's requests and block tables."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from prfaas.core.cache.layout import PartKind
from prfaas.engine.vllm.groups import Group, Rows
from prfaas.engine.vllm.orders import Hold, Load, Orders, Report
from prfaas.engine.vllm.scheduler import SchedulerSide
from prfaas.model.text import prompt_hash

GROUPS = (Group(PartKind.TOKENS, 16), Group(PartKind.WINDOW, 16, window=20), Group(PartKind.STATE, 16))
TABLE = ([1, 2, 3, 4], [0, 5, 6, 7], [0, 0, 0, 8])
TOKENS = list(range(60))


class Request:
    def __init__(self, name: str = "a", tokens: list[int] = TOKENS, **params: Any) -> None:
        self.request_id, self.prompt_token_ids, self._all_token_ids = name, list(tokens), list(tokens)
        self.num_prompt_tokens, self.max_tokens = len(tokens), 100
        self.block_hashes = ["stale"]
        self.skip_reading_prefix_cache = False
        self.kv_transfer_params = {"prfaas": params} if params else None

    def update_block_hashes(self) -> None:
        self.block_hashes.append("fresh")


class Manager:
    hit = 0

    def __init__(self) -> None:
        self.evicted: set[int] = set()

    def get_computed_blocks(self, request: Request) -> tuple[None, int]:
        return None, self.hit

    def evict_blocks(self, blocks: set[int]) -> None:
        self.evicted |= blocks


def decode(name: str = "a", **more: Any) -> Request:
    leg = {"transfer_id": "t", "do_remote_prefill": True, "remote": [{"host": "h", "port": 1}], "ticket": "x"}
    return Request(name, **{**leg, "prompt_tokens": 60, "prompt_hash": prompt_hash(TOKENS), **more})


def prefill(name: str = "a") -> Request:
    return Request(name, transfer_id="t", do_remote_decode=True, link="l")


def output(start: int = 0, tokens: int = 0, new: bool = True) -> Any:
    first = [SimpleNamespace(req_id="a", num_computed_tokens=start)] if tokens and new else []
    again = SimpleNamespace(req_ids=[], num_computed_tokens=[])
    if tokens and not new:
        again = SimpleNamespace(req_ids=["a"], num_computed_tokens=[start])
    return SimpleNamespace(
        scheduled_new_reqs=first,
        scheduled_cached_reqs=again,
        num_scheduled_tokens={"a": tokens},
        total_num_scheduled_tokens=tokens,
        kv_connector_block_state=SimpleNamespace(get_block_ids=lambda name: TABLE),
    )


BLOCKS = SimpleNamespace(get_block_ids=lambda: TABLE)


@pytest.fixture
def side() -> SchedulerSide:
    return side_with(rests=[])


def side_with(rests: list[float]) -> SchedulerSide:
    """One that says when it would stand still."""
    made = SchedulerSide(GROUPS, workers=1, recompute_below=0, rest=rests.append)
    made.bind(Manager())
    return made


def landed(side: SchedulerSide) -> None:
    side.heard(Report(landed={"t": 1}))  # type: ignore[arg-type]


def test_requests_that_are_not_ours(side):
    for request in (Request(), Request("b")):
        request.kv_transfer_params = {"do_remote_prefill": True}  # another connector's
        side.new_request(request)
        assert side.matched(request, 0) == (0, False)
        assert side.finished(request, TABLE) == (False, None)
    assert not side.orders(output())


def test_the_last_prompt_token_is_left_to_the_decode_side(side):
    request = prefill()
    side.new_request(request)
    assert (request.prompt_token_ids, request._all_token_ids) == (TOKENS[:-1], TOKENS[:-1])
    assert (request.num_prompt_tokens, request.max_tokens, request.block_hashes) == (59, 1, ["fresh"])
    assert side.orders(output()).offers[0].length == 59


def test_rows_leave_as_they_are_computed_and_states_at_the_end(side):
    side.new_request(prefill())
    one = side.orders(output(0, 32)).saves[0]
    assert (one.rows, one.states, one.last) == ((Rows(0, 32, (1, 2)), None, None), (None, None, None), False)
    two = side.orders(output(32, 16, new=False)).saves[0]
    assert two.rows == (Rows(32, 48, (3,)), Rows(39, 48, (6,)), None)
    three = side.orders(output(48, 11, new=False)).saves[0]
    assert (three.rows[1], three.states, three.last) == (Rows(48, 59, (7,)), (None, None, 8), True)
    assert not side.orders(output(59, 1, new=False)).saves


def test_for_how_many_ranks_it_is_held_is_said_with_each_order(side):
    side.new_request(Request(transfer_id="t", do_remote_decode=True, link="l", receivers=4))
    orders = side.orders(output(0, 32))
    assert (orders.offers[0].receivers, orders.saves[0].receivers) == (4, 4)


def test_a_local_prefix_leaves_with_the_first_step(side):
    side.new_request(prefill())
    save = side.orders(output(48, 11)).saves[0]
    assert save.rows == (Rows(0, 59, (1, 2, 3, 4)), Rows(39, 59, (6, 7)), None)


def test_a_preempted_prefill_goes_on_where_it_was(side):
    side.new_request(prefill())
    side.orders(output(0, 32))
    assert not side.orders(output(0, 16, new=False)).saves
    assert side.orders(output(16, 43, new=False)).saves[0].rows[0] == Rows(32, 59, (3, 4))


def test_a_whole_prefill_is_held_an_aborted_one_is_stopped(side):
    request = prefill()
    side.new_request(request)
    side.orders(output(0, 59))
    assert side.finished(request, TABLE) == (True, {"prfaas": {"transfer_id": "t", "tokens": 59}})
    assert side.pending
    assert side.orders(output()).holds == [Hold("a", "t", 8)]
    side.new_request(request := prefill())
    side.orders(output(0, 32))
    assert side.finished(request, TABLE) == (False, None)
    assert side.orders(output()).stops[0].code == "cancelled"


def test_an_engine_that_only_waits_for_kv_rests_between_its_steps():
    rests: list[float] = []
    side = side_with(rests)
    side.orders(output())
    side.new_request(request := decode())
    assert side.orders(output()).receives
    assert not rests  # nothing was on its way yet, then there were orders
    side.orders(output())
    assert len(rests) == 1
    side.orders(output(0, 16, new=False))  # others compute
    landed(side)
    side.orders(output())  # vLLM is to ask for it now
    assert len(rests) == 1
    assert side.matched(request, 0) == (59, True)


def test_a_load_takes_blocks_only_when_all_has_landed(side):
    request = decode()
    side.new_request(request)
    assert side.matched(request, 0) == (None, False)
    assert side.orders(output()).receives[0].length == 59
    assert side.matched(request, 0) == (None, False)
    landed(side)
    assert side.matched(request, 0) == (59, True)
    side.allocated(request, BLOCKS, 59)
    rows = (Rows(0, 59, (1, 2, 3, 4)), Rows(39, 59, (6, 7)), None)
    assert side.orders(output()).loads == [Load("a", "t", 59, 0, rows, (None, None, 8))]
    side.allocated(request, BLOCKS, 0)
    assert side._manager.evicted == {6}, "row 39 is not the first of its block"
    assert side.matched(request, 0) == (0, False), "preempted later: vLLM computes it"
    assert side.finished(request, TABLE) == (False, None)
    assert not side.orders(output())


def test_only_the_increment_is_asked_for(side):
    request = decode()
    side.new_request(request)
    side.matched(request, 32)
    assert side.orders(output()).receives[0].held == 32
    landed(side)
    assert side.matched(request, 48) == (11, True), "the local prefix has grown"
    side.allocated(request, BLOCKS, 11)
    load = side.orders(output()).loads[0]
    assert (load.held, load.rows[0]) == (32, Rows(48, 59, (4,)))


def test_a_request_that_vllm_does_not_ask_for_yet_is_dialled_for_all_the_same(side):
    side._manager.hit = 40
    side.new_request(decode())
    assert side.orders(output()).receives[0].held == 32, "whole blocks only"


def test_all_is_here_already(side):
    request = decode()
    side.new_request(request)
    assert side.matched(request, 59) == (0, False)
    orders = side.orders(output())
    assert (orders.receives[0].held, orders.discards) == (59, ["t"])


def fails(side: SchedulerSide, request: Request) -> None:
    assert side.matched(request, 0) == (1, True)
    side.allocated(request, BLOCKS, 1)
    assert side.orders(output()).loads == [Load(request.request_id)]
    assert side.matched(request, 0) == (0, False)


def test_a_prefix_that_shrank_fails_the_load(side):
    request = decode()
    side.new_request(request)
    side.matched(request, 32)
    side.orders(output())
    landed(side)
    fails(side, request)


def test_a_failed_transfer_fails_the_load(side):
    request = decode()
    side.new_request(request)
    side.orders(output())
    side.heard(Report(failed={"t": "lease: silence"}))
    fails(side, request)


def test_a_failed_transfer_of_a_short_prompt_is_computed():
    side = SchedulerSide(GROUPS, workers=1, recompute_below=61)
    side.bind(Manager())
    request = decode()
    side.new_request(request)
    side.orders(output())
    side.heard(Report(failed={"t": "lease: silence"}))
    assert side.matched(request, 0) == (0, False)


@pytest.mark.parametrize(
    "more",
    [
        {"transfer_id": "t@0/2"},
        {"prompt_tokens": 59},
        {"prompt_hash": "0"},
        {"ticket": ""},
        {"connections": "1"},
        {"do_remote_decode": True},
    ],
    ids=str,
)
def test_what_is_refused_fails_as_a_load(side, more):
    request = decode(**more)
    side.new_request(request)
    fails(side, request)


def test_one_transfer_for_two_requests(side):
    side.new_request(decode("a"))
    request = decode("b")
    side.new_request(request)
    side.orders(output())
    fails(side, request)


def test_an_aborted_load_is_stopped(side):
    request = decode()
    side.new_request(request)
    side.orders(output())
    side.finished(request, ([], [], []))
    assert side.orders(output()).stops[0].transfer == "t"


def test_all_workers_must_have_landed():
    side = SchedulerSide(GROUPS, workers=2, recompute_below=0)
    side.bind(Manager())
    request = decode()
    side.new_request(request)
    side.orders(output())
    landed(side)
    assert side.matched(request, 0) == (None, False)
    landed(side)
    assert side.matched(request, 0) == (59, True)


def test_reports_of_workers_add_up():
    one, other = Report(), Report(failed={"u": "why"})
    one.landed["t"] += 1
    other.landed["t"] += 1
    both = one.aggregate(other)
    assert (both.landed["t"], both.failed) == (2, {"u": "why"})


def test_empty_orders_are_false():
    assert not Orders()
    assert Orders(discards=["t"])
