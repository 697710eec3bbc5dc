"""Shares of a link among nodes that come and go, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress

from prfaas.cluster.nodeclient import NodeAddress
from prfaas.cluster.shares import LinkShares
from prfaas.core.errors import PeerFailure
from prfaas.core.ids import LinkName, NodeName, TransferId
from prfaas.testing.clock import run_virtual
from prfaas.wire.control import PaceLease

LINK, RATE, LEASE_NS = LinkName("far->home"), 1_000_000, 2_000_000_000


class Node:
    """What `LinkShares` needs of a client: it takes its pace, or (`dead`) does not answer."""

    def __init__(self, name: str, url: str = "http://a:1") -> None:
        self.node = NodeAddress(NodeName(name), url)
        self.leases: list[tuple[float, PaceLease]] = []
        self.dead = False

    async def pace(self, lease: PaceLease, timeout_s: float) -> None:
        if self.dead:
            raise PeerFailure("unreachable", "gone")
        self.leases.append((asyncio.get_running_loop().time(), lease))

    def rate(self) -> int:
        """What it may send at now."""
        now = asyncio.get_running_loop().time()
        at, lease = self.leases[-1] if self.leases else (0.0, PaceLease(LINK, 0, 0, 0))
        return lease.rate_bps if now < at + lease.lease_ms / 1000 else 0


def virtually(script: Callable[[LinkShares, AsyncExitStack], Awaitable[None]]) -> None:
    async def main() -> None:
        shares = LinkShares({LINK: RATE}, LEASE_NS)
        running = asyncio.create_task(shares.run())
        async with AsyncExitStack() as stack:
            await script(shares, stack)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    run_virtual(main())


async def hold(shares: LinkShares, stack: AsyncExitStack, node: Node, transfer: str) -> None:
    await stack.enter_async_context(shares.hold(LINK, node, TransferId(transfer)))  # type: ignore[arg-type]


def test_a_node_that_is_gone_is_not_asked_and_its_share_is_free_when_its_lease_is_over() -> None:
    async def script(shares: LinkShares, stack: AsyncExitStack) -> None:
        one, two = Node("one"), Node("two", "http://b:1")
        await hold(shares, stack, one, "t1")
        await hold(shares, stack, two, "t2")
        await asyncio.sleep(3)
        assert (one.rate(), two.rate()) == (RATE // 2, RATE // 2)
        one.dead = True
        shares.forget(one.node)
        told = len(one.leases)
        await asyncio.sleep(0.1)
        assert two.rate() == RATE // 2, "the other may still be sending"
        await asyncio.sleep(3)
        assert (two.rate(), len(one.leases)) == (RATE, told)

    virtually(script)


def test_the_end_of_work_that_was_forgotten_counts_for_nobody() -> None:
    """The leg of a lost incarnation ends after the new one began: nothing is counted twice, nothing below zero."""

    async def script(shares: LinkShares, stack: AsyncExitStack) -> None:
        old, new, other = Node("one"), Node("one"), Node("other", "http://b:1")
        await hold(shares, stack, other, "t0")
        async with AsyncExitStack() as lost:
            await hold(shares, lost, old, "t1")
            await asyncio.sleep(3)
            shares.forget(old.node)
            await hold(shares, stack, new, "t2")
        await asyncio.sleep(3)
        assert (new.rate(), other.rate()) == (RATE // 2, RATE // 2)

    virtually(script)


def test_what_restarts_at_its_address_has_its_share_at_once() -> None:
    async def script(shares: LinkShares, stack: AsyncExitStack) -> None:
        old, new = Node("one"), Node("one")
        async with AsyncExitStack() as lost:
            await hold(shares, lost, old, "t1")
            await asyncio.sleep(1)
        shares.forget(old.node)
        await hold(shares, stack, new, "t2")
        await asyncio.sleep(0.01)
        assert new.rate() == RATE

    virtually(script)


def test_the_same_name_elsewhere_waits_for_the_lease_of_the_old_one() -> None:
    async def script(shares: LinkShares, stack: AsyncExitStack) -> None:
        old, new = Node("one"), Node("one", "http://elsewhere:1")
        async with AsyncExitStack() as lost:
            await hold(shares, lost, old, "t1")
            await asyncio.sleep(1)
            shares.forget(old.node)
            await hold(shares, stack, new, "t2")
            for _ in range(40):
                await asyncio.sleep(0.1)
                assert old.rate() + new.rate() <= RATE, "together they never send faster than the line"
        assert new.rate() == RATE

    virtually(script)


def test_fences_grow_over_restarts() -> None:
    fences: list[int] = []

    async def script(shares: LinkShares, stack: AsyncExitStack) -> None:
        one = Node("one")
        await hold(shares, stack, one, "t1")
        await asyncio.sleep(3)
        fences.extend(lease.fence for _, lease in one.leases)

    virtually(script)
    virtually(script)
    assert len(fences) > 4
    assert fences == sorted(set(fences))


def test_an_unpaced_link_needs_no_lease() -> None:
    async def script(shares: LinkShares, stack: AsyncExitStack) -> None:
        one = Node("one")
        await stack.enter_async_context(
            shares.hold(LinkName("home->home"), one, TransferId("t"))  # type: ignore[arg-type]
        )
        shares.forget(one.node)
        await asyncio.sleep(1)
        assert not one.leases

    virtually(script)
