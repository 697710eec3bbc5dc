"""Killing programs of a grid and starting them again, in place.

It knows what a kill by SIGKILL looks like from outside (every connection is reset, nobody listens, no word is said)
and that what comes back is another incarnation at the same address. When to do it is the test's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Literal

import aiohttp

from prfaas.engine.node.joining import Joining
from prfaas.testing.grid import Grid
from prfaas.testing.heads import hang_up
from prfaas.testing.noderig import Node, Rig
from prfaas.transport.stream.transport import StreamTransport
from prfaas.wire.members import DataAddress, JoinRequest

Which = Literal["gateway", "service", "far", "home", "decoder"]
WHICH: tuple[Which, ...] = ("gateway", "service", "far", "home", "decoder")


async def kill(rig: Rig, node: Node) -> None:
    """End `node` without a word."""
    assert isinstance(node.transport, StreamTransport)
    node.transport.close_listeners()
    for connection in list(node.transport.connections):
        connection.reset()
    hang_up(node.listening)
    await rig.hush(node.identity.name)
    rig.nodes.pop(node.identity.name, None)
    await node.server.close()


async def revive(rig: Rig, node: Node, nodes: list[Node]) -> Node:
    """A new incarnation of a killed `node`, at its address; it takes the old one's place in `nodes`."""
    name, role = node.identity.name, node.identity.role
    events = rig.telling[name][0] if name in rig.telling else None
    made = await rig.node(name, role, limits=node.engine.limits, port=node.listening.port, events=events)
    nodes[nodes.index(node)] = made
    return made


async def end(grid: Grid, which: Which) -> None:
    """Kill one program of the grid."""
    match which:
        case "gateway":
            await grid.home_head.stop(abruptly=True)
        case "service":
            await grid.far_head.stop(abruptly=True)
        case "far" | "home" | "decoder":
            await kill(grid.rig, _nodes(grid, which)[0])


async def begin(grid: Grid, which: Which) -> None:
    """Start a program that was killed again, at its address."""
    match which:
        case "gateway":
            await grid.home_head.start()
        case "service":
            await grid.far_head.start()
        case "far" | "home" | "decoder":
            nodes = _nodes(grid, which)
            await revive(grid.rig, nodes[0], nodes)


def _nodes(grid: Grid, which: Literal["far", "home", "decoder"]) -> list[Node]:
    return {"far": grid.far_nodes, "home": grid.home_nodes, "decoder": grid.decoders}[which]


def join_request(node: Node, lease_ms: int = 1000) -> JoinRequest:
    """What `node` says when it joins."""
    info = node.server.info()
    return JoinRequest(
        node=info.node,
        role=info.role,
        epoch=info.epoch,
        url=node.listening.url,
        data=[DataAddress(at.host, at.port) for at in info.data],
        model=info.model,
        layout=info.layout,
        max_model_len=info.max_model_len,
        max_sequences=info.max_sequences,
        lease_ms=lease_ms,
    )


@contextlib.asynccontextmanager
async def joining(
    session: aiohttp.ClientSession, head_url: str, node: Node, lease_ms: int = 1000
) -> AsyncGenerator[tuple[Joining, asyncio.Task[None]], None]:
    """`node` as a member of the head's cluster for the length of the block; it does not say goodbye."""
    member = Joining(session, head_url, join_request(node, lease_ms))
    task = asyncio.create_task(member.run(), name=f"membership of {node.identity.name}")
    try:
        async with asyncio.timeout(30):
            await member.member.wait()
        yield member, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
