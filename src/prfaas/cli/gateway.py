"""`prfaas gateway`: the composition root of a PD cluster's head."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import click
import structlog

from prfaas.cli.caches import hear_nodes, roots_of
from prfaas.cli.heads import head_of, home_link, listen, roster_of, service_of
from prfaas.cli.secrets import environment_of
from prfaas.cluster.kvexchange import KVExchange
from prfaas.cluster.shares import LinkShares
from prfaas.config.environment import Environment
from prfaas.config.reader import read_topology
from prfaas.config.topology import Topology, VllmEngine
from prfaas.core.errors import ConfigError
from prfaas.core.ids import ClusterName
from prfaas.core.index.index import PrefixIndex
from prfaas.core.routing.router import RouterPolicy
from prfaas.core.routing.threshold import Threshold
from prfaas.core.routing.view import Back, Source
from prfaas.gateway.front import Front, FrontSettings
from prfaas.gateway.gateway import Gateway, GatewaySettings
from prfaas.gateway.sources import ServiceSource
from prfaas.model.fetch import resolve_model
from prfaas.model.text import Text
from prfaas.runtime.client import make_session
from prfaas.runtime.log import set_up_logging
from prfaas.runtime.metrics import Metrics
from prfaas.runtime.tasks import Tasks, until_stopped

log = structlog.get_logger(__name__)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--cluster", required=True, help="The PD cluster whose head this is.")
def command(file: Path, cluster: str) -> None:
    """Serve one OpenAI-compatible endpoint: the head of PD cluster CLUSTER of topology FILE."""
    topology = read_topology(file)
    environment = environment_of(topology, file, gateway=cluster)
    set_up_logging(environment.log.level, environment.log.format, program="gateway", cluster=cluster)
    name = ClusterName(cluster)
    if name not in topology.of_kind("pd"):
        raise ConfigError(f"{file}: {cluster!r} is no pd cluster; expected one of {', '.join(topology.of_kind('pd'))}")
    text = Text.load(resolve_model(topology.model))
    raise SystemExit(asyncio.run(_serve(topology, environment, name, text)))


async def _serve(topology: Topology, environment: Environment, name: ClusterName, text: Text) -> int:
    cluster, metrics, tasks = topology.clusters[name], Metrics(), Tasks()
    async with make_session(environment.secret) as session:
        gateways: list[Gateway] = []

        def home_changed() -> None:
            for gateway in gateways:
                gateway.home_changed()

        # Prefixes that are copied away are paced; a hand-over at home is not.
        rates = {link.name: int(link.bandwidth_bps) for link in topology.links if link.source == name}
        shares = LinkShares(rates, topology.limits.leases.pace_ns)
        roster = roster_of(topology, session, name, metrics)
        exchange = KVExchange(name, PrefixIndex())
        hear_nodes(topology, environment, exchange, roster, metrics, tasks)
        head = head_of(topology, environment, name, roster, shares, home_changed)
        gateway = Gateway(
            settings(topology, name),
            [
                ServiceSource(source, service_of(session, source, topology.clusters[source]))
                for source in topology.of_kind("prfaas")
                if topology.link(source, name) is not None
            ],
            head,
            metrics,
            exchange.index,
            roots_of(topology)("", ""),
        )
        gateways.append(gateway)
        front = Front(front_settings(topology, environment), gateway, text)
        listening = await listen(front.app(), cluster, name)
        tasks.spawn(gateway.run(), "gateway")
        for source in topology.of_kind("prfaas"):
            if topology.link(source, name) is not None:
                url = service_of(session, source, topology.clusters[source]).node.url
                tasks.spawn(exchange.follow(source, url, session), f"caches of {source}")
        log.info("listening", url=listening.url, model=topology.public_name)
        try:
            return await until_stopped(tasks)
        finally:
            await listening.close()
            await tasks.close()
            text.close()


def settings(topology: Topology, name: ClusterName) -> GatewaySettings:
    """What the gateway of `name` needs of the topology."""
    remote = [
        Source(source, link.name, False, int(link.bandwidth_bps), int(link.rtt_ns), _back(topology, name, source))
        for source in topology.of_kind("prfaas")
        if (link := topology.link(source, name)) is not None
    ]
    limits, policy = topology.limits, topology.policy
    return GatewaySettings(
        cluster=name,
        model=topology.public_name,
        sources=(*remote, Source(name, home_link(name), home=True)),
        policy=RouterPolicy(
            Threshold(policy.threshold),
            limits.whole_prompt,
            limits.attempts,
            policy.kind,
            policy.order,
            policy.remainder,
            policy.prefix_copies,
        ),
        credit_lease_ms=limits.leases.credit_ns // 1_000_000,
        poll_s=limits.health_interval_ns / 1e9,
    )


def _back(topology: Topology, name: ClusterName, source: ClusterName) -> Back | None:
    """The link from `name` to `source`, if there is one."""
    link = topology.link(name, source)
    return Back(link.name, int(link.bandwidth_bps), int(link.rtt_ns)) if link is not None else None


def front_settings(topology: Topology, environment: Environment) -> FrontSettings:
    """What the door of a gateway checks."""
    return FrontSettings(
        model=topology.public_name,
        max_body_bytes=topology.limits.max_body_bytes,
        deadline_ns=topology.limits.deadline_ns,
        api_keys=environment.api_keys,
        created_s=int(time.time()),
        max_requests=topology.limits.max_requests,
        secret=environment.secret,
        vllm=any(isinstance(node.engine, VllmEngine) for _, node in topology.nodes()),
    )
