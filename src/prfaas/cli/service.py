"""`prfaas prefill-service`: the composition root of a PrfaaS cluster's head."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
import structlog

from prfaas.cli.caches import hear_nodes
from prfaas.cli.heads import head_of, listen, roster_of
from prfaas.cli.secrets import environment_of
from prfaas.cluster.kvexchange import KVExchange
from prfaas.cluster.shares import LinkShares
from prfaas.config.environment import Environment
from prfaas.config.reader import read_topology
from prfaas.config.topology import Topology
from prfaas.core.errors import ConfigError
from prfaas.core.ids import ClusterName
from prfaas.core.index.index import PrefixIndex
from prfaas.runtime.client import make_session
from prfaas.runtime.log import set_up_logging
from prfaas.runtime.metrics import Metrics
from prfaas.runtime.tasks import Tasks, until_stopped
from prfaas.service.front import ServiceFront

log = structlog.get_logger(__name__)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--cluster", required=True, help="The PrfaaS cluster whose head this is.")
def command(file: Path, cluster: str) -> None:
    """Prefill for other clusters: the head of PrfaaS cluster CLUSTER of topology FILE."""
    topology = read_topology(file)
    environment = environment_of(topology, file)
    set_up_logging(environment.log.level, environment.log.format, program="prefill-service", cluster=cluster)
    name, known = ClusterName(cluster), topology.of_kind("prfaas")
    if name not in known:
        raise ConfigError(f"{file}: {cluster!r} is no prfaas cluster; expected one of {', '.join(known) or 'none'}")
    raise SystemExit(asyncio.run(_serve(topology, environment, name)))


async def _serve(topology: Topology, environment: Environment, name: ClusterName) -> int:
    metrics, tasks = Metrics(), Tasks()
    async with make_session(environment.secret) as session:
        rates = {link.name: int(link.bandwidth_bps) for link in topology.links if link.source == name}
        roster = roster_of(topology, session, name, metrics)
        head = head_of(topology, environment, name, roster, LinkShares(rates, topology.limits.leases.pace_ns))
        exchange = KVExchange(name, PrefixIndex())
        heard = hear_nodes(topology, environment, exchange, roster, metrics, tasks)
        front = ServiceFront(
            head, metrics, topology.limits.max_body_bytes, environment.secret, exchange if heard else None
        )
        listening = await listen(front.app(), topology.clusters[name], name)
        tasks.spawn(head.run(), "cluster head")
        log.info("listening", url=listening.url, model=topology.public_name)
        try:
            return await until_stopped(tasks)
        finally:
            await listening.close()
            await tasks.close()
