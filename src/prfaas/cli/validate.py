"""`prfaas validate`: is a topology file good, without starting anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from prfaas.cli.checkpoint import check_model
from prfaas.cli.engines import check_engines
from prfaas.cli.fits import check_fits, had
from prfaas.config.checks import unlisted
from prfaas.config.document import read_document
from prfaas.config.environment import wants_keys
from prfaas.config.reader import read_topology
from prfaas.config.topology import Topology, VllmEngine
from prfaas.core.errors import ConfigError
from prfaas.model.fetch import present_model


@click.command("validate")
@click.argument("file", type=click.Path(path_type=Path))
def command(file: Path) -> None:
    """Check the topology in FILE, and the model that it names if that is here; exit code 2 and one line when it is
    wrong."""
    topology = read_topology(file)
    try:
        check_engines(topology)
        directory = had(topology, present_model)
        check_fits(topology, directory)
        if directory is not None:
            check_model(topology, directory)
    except ConfigError as error:
        raise read_document(file).located(error) from None
    click.echo(f"{file}: good: {described(topology)}")
    for note in notes(topology):
        click.echo(f"note: {note}")


def notes(topology: Topology) -> Iterator[str]:
    """What is good here, and yet will not do for programs that are started one by one."""
    security = topology.security
    for name, cluster in topology.of_kind("pd").items():
        if wants_keys(cluster):
            keys = f"the file {security.api_keys_file}" if security.api_keys_file else f"${security.api_keys_env}"
            because = f"{cluster.listen} is not on loopback"
            yield f"`prfaas gateway FILE --cluster {name}` will want API keys in {keys}: {because}"
    for cluster_name, node in topology.nodes():
        missing = unlisted(node)
        if 0 < len(missing) < len(node.listeners):
            listed = ", ".join(f"`{key}`" for key in missing)
            yield f"only `prfaas up` can start node {node.name} of {cluster_name}: it has no {listed}"
        events = topology.clusters[cluster_name].events_listen
        if events is not None and isinstance(node.engine, VllmEngine) and node.replay_listen is None:
            lacks = "has no `replay_listen`: what its head misses of its KV events stays unknown"
            yield f"unless `prfaas up` starts it, node {node.name} of {cluster_name} {lacks}"


def described(topology: Topology) -> str:
    """One line: how many of what."""
    nodes = sum(len(cluster.nodes) for cluster in topology.clusters.values())
    counts = ((len(topology.clusters), "cluster"), (nodes, "node"), (len(topology.links), "link"))
    counted = ", ".join(f"{count} {what}{'' if count == 1 else 's'}" for count, what in counts)
    return f"{counted}, model {topology.public_name}"
