"""`prfaas node`: the composition root of one embedded engine; a node of kind vllm becomes `vllm serve`."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import time
from pathlib import Path

import click
import structlog

from prfaas.cli.caches import publisher_of
from prfaas.cli.engines import engine_of
from prfaas.cli.joiner import ANY_PORT, Joiner, Wanted, joining_node
from prfaas.cli.secrets import environment_of
from prfaas.cli.vllmserve import check_interpreter, vllm_command, vllm_environment
from prfaas.config.checks import unlisted
from prfaas.config.document import read_document
from prfaas.config.environment import Environment
from prfaas.config.reader import read_topology
from prfaas.config.topology import Node, Topology, VllmEngine
from prfaas.config.units import Endpoint
from prfaas.core.errors import ConfigError
from prfaas.core.ids import ClusterName, Epoch
from prfaas.engine.node.identity import Identity, NodeLimits
from prfaas.engine.node.links import transport_of
from prfaas.engine.node.server import NodeServer
from prfaas.model.fetch import resolve_model
from prfaas.model.text import Text
from prfaas.runtime.lifeline import hand_on
from prfaas.runtime.log import set_up_logging
from prfaas.runtime.metrics import Metrics
from prfaas.runtime.tasks import until_stopped
from prfaas.transport.base import Peer
from prfaas.transport.metrics import MetricStats
from prfaas.wire.control import Address

log = structlog.get_logger(__name__)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--cluster", required=True, help="The node's cluster.")
@click.option("--node", "--name", "node", required=True, help="The node's name.")
@click.option("--join", is_flag=True, help="Join the cluster under a name that FILE does not list.")
@click.option("--role", type=click.Choice(["prefill", "decode"]), default="prefill", help="Of a node that joins.")
@click.option("--like", default="", help="A node of FILE whose engine one that joins has; the first of its role.")
@click.option("--listen", default=ANY_PORT, help="HOST:PORT of a node that joins; port 0 is any.", show_default=True)
@click.option("--data-listen", default=ANY_PORT, help="HOST:PORT where it takes KV connections.", show_default=True)
@click.option("--advertise", help="Host that peers dial, when it is not the one listened on.")
@click.option("--show", is_flag=True, help="Of a node of kind vllm: print its command line, and do not run it.")
@click.option("--drain", default=60.0, help="Seconds that one that leaves waits for its last work.", show_default=True)
def command(
    file: Path,
    cluster: str,
    node: str,
    join: bool,
    role: str,
    like: str,
    listen: str,
    data_listen: str,
    advertise: str | None,
    drain: float,
    show: bool,
) -> None:
    """Run node NODE of cluster CLUSTER of topology FILE: an embedded engine, or, of kind vllm, `vllm serve`, which
    takes this process's place. With --join, one that FILE does not list."""
    topology = read_topology(file)
    environment = environment_of(topology, file)
    set_up_logging(environment.log.level, environment.log.format, program="node", cluster=cluster, node=node)
    if cluster not in topology.clusters:
        raise ConfigError(f"{file}: no cluster is called {cluster!r}; expected one of {', '.join(topology.clusters)}")
    found, joiner = topology.clusters[cluster].node(node), None
    if join:
        found = joining_node(topology, cluster, Wanted(node, role, like, listen, data_listen, advertise))
        joiner = Joiner(topology, cluster, found, environment.secret, drain)
    if found is None:
        names = ", ".join(one.name for one in topology.clusters[cluster].nodes)
        raise ConfigError(f"{file}: cluster {cluster} has no node {node!r}; expected one of {names}")
    if joiner is None:
        _all_listed(topology, file, cluster, found)
    directory = resolve_model(topology.model)
    if isinstance(found.engine, VllmEngine):
        if join:
            raise ConfigError(f"{file}: a node of kind vllm cannot join; expected it in the file's list of nodes")
        _become_vllm(topology, environment, file, ClusterName(cluster), found, directory, show)
        return
    text = Text.load(directory)
    raise SystemExit(asyncio.run(_serve(topology, environment, ClusterName(cluster), found, directory, text, joiner)))


def _all_listed(topology: Topology, file: Path, cluster: str, node: Node) -> None:
    """Raises ConfigError, with the node's line, when it lacks a listener. (One that joins has all that it needs.)"""
    for key in unlisted(node):
        said = f"node {node.name} has no `{key}`; expected HOST:PORT (only `prfaas up` picks ports)"
        where = ("clusters", cluster, "nodes", topology.clusters[cluster].nodes.index(node))
        raise read_document(file).located(ConfigError(said, where))


def _become_vllm(
    topology: Topology,
    environment: Environment,
    file: Path,
    cluster: ClusterName,
    node: Node,
    directory: Path,
    show: bool,
) -> None:
    """`vllm serve` takes the place of this process."""
    made = vllm_environment(node, environment, os.environ)
    line = vllm_command(topology, file, cluster, node, directory, os.environ)
    if show:
        new = {name: value for name, value in made.items() if name not in os.environ and name != "VLLM_API_KEY"}
        secret = f"${topology.security.secret_env}"
        click.echo(" ".join([f'VLLM_API_KEY="{secret}"', *(f"{k}={shlex.quote(v)}" for k, v in new.items())]), nl=False)
        click.echo(" " + shlex.join(line))
        return
    check_interpreter(line[0])
    hand_on(made)
    log.info("becomes vllm serve", node=node.name, role=node.role)
    sys.stdout.flush()
    os.execve(line[0], line, made)


async def _serve(
    topology: Topology,
    environment: Environment,
    cluster: ClusterName,
    node: Node,
    directory: Path,
    text: Text,
    joiner: Joiner | None,
) -> int:
    at, data_at = _listener(node.listen, node, "listen"), _listener(node.data_listen, node, "data_listen")
    epoch = Epoch(time.time_ns())
    metrics = Metrics()
    transport = transport_of(topology, environment, cluster, node, epoch, MetricStats(metrics))
    try:
        peer = await transport.listen(data_at.host, data_at.port)
        data = Peer(node.advertise or peer.host, peer.port)
        identity = Identity(node.id, cluster, node.role, epoch, topology.public_name, (data,))
        built, limits = engine_of(topology, node, directory, text, transport), limits_of(topology, node)
        told = publisher_of(topology, environment, topology.clusters[cluster], node, epoch, data_at.host)
        server = NodeServer(
            built.engine,
            text,
            transport,
            identity,
            limits,
            environment.secret,
            metrics,
            built.doors,
            built.prefill_ns,
            told.telling if told is not None else None,
            [Address(data.host, told.publisher.replay_port)] if told is not None else [],
        )
    except BaseException as error:
        await transport.close()
        if isinstance(error, OSError):
            raise _taken(data_at, error) from None
        raise
    if told is not None:
        server.tasks.spawn(told.publisher.run(), "KV events")
    try:
        return await _run(server, at, joiner)
    finally:
        await server.close()
        log.info("ended")


async def _run(server: NodeServer, at: Endpoint, joiner: Joiner | None) -> int:
    """From starting to being stopped, which may come first; the exit code."""
    stopped = asyncio.create_task(until_stopped(server.tasks), name="until stopped")
    starting = asyncio.create_task(server.start(at.host, at.port), name="start")
    try:
        await asyncio.wait({stopped, starting}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            listening = starting.result()
            if joiner is not None:
                return await joiner.serve(server, listening, stopped)
        return await stopped
    except OSError as error:
        raise _taken(at, error) from None
    finally:
        for task in (starting, stopped):
            task.cancel()
        await asyncio.gather(starting, stopped, return_exceptions=True)


def limits_of(topology: Topology, node: Node) -> NodeLimits:
    """A node's limits, from the file's."""
    limits = topology.limits
    return NodeLimits(
        max_body_bytes=limits.max_body_bytes,
        landing_buffer_bytes=limits.landing_buffer_bytes,
        queue_length=limits.queue_length,
        deadline_ns=limits.deadline_ns,
        transfer_lease_ns=limits.leases.transfer_ns,
        kv_memory_bytes=None if isinstance(node.engine, VllmEngine) else node.engine.kv_budget_bytes,
        prefix_cache=not isinstance(node.engine, VllmEngine) and node.engine.prefix_cache,
    )


def _listener(endpoint: Endpoint | None, node: Node, key: str) -> Endpoint:
    if endpoint is None:
        raise ConfigError(f"node {node.name} has no `{key}`; expected HOST:PORT (only `prfaas up` picks ports)")
    return endpoint


def _taken(endpoint: Endpoint, error: OSError) -> ConfigError:
    return ConfigError(f"cannot listen on {endpoint}: {error.strerror}; expected a free address")
