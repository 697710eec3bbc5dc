"""From a plan file to a checked `PlanFile`. Every fault is one line: `FILE:LINE: path: what is wrong; expected ...`.

It knows which settings make sense together; it does not read profiles, layouts or traces.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from prfaas.config.complaint import convert, explain
from prfaas.config.document import Document, Where, read_document
from prfaas.plan.planfile import LogNormal, PlanCluster, PlanFile, PlanLink, Trace

Problem = tuple[Where, str]


def read_plan(path: Path) -> tuple[PlanFile, Document]:
    """The plan in `path`, checked, with file names made absolute, and the document for further faults.
    Raises ConfigError."""
    document = read_document(path, "a plan file (see `prfaas schema planfile`)")
    try:
        said: PlanFile = convert(document.value, PlanFile)
    except msgspec.ValidationError as error:
        raise document.error(*explain(error, document.value, PlanFile)) from None
    for where, what in _problems(said):
        raise document.error(where, what)
    return _located(said, path.parent), document


def _problems(said: PlanFile) -> Iterator[Problem]:
    lengths = said.traffic.lengths
    if isinstance(lengths, LogNormal):
        if lengths.least >= lengths.most:
            yield (
                ("traffic", "lengths", "most"),
                f"got {lengths.most}, not above least ({lengths.least}); expected more",
            )
        if said.traffic.output is None:
            yield ("traffic",), "`output` is missing; expected it here, since lengths are not from a trace"
    for kind, why in (("prfaas", "to plan with"), ("pd", "since only a pd cluster decodes")):
        if not said.of_kind(kind):  # type: ignore[arg-type]
            yield ("clusters",), f"no cluster has kind {kind}; expected at least one, {why}"
    for name, cluster in said.clusters.items():
        yield from _cluster(("clusters", name), cluster, said)
    yield from _shares(said)
    for at, link in enumerate(said.links):
        yield from _link(("links", at), link, said)
    yield from _links_together(said)
    priced = {name for name, cluster in said.clusters.items() if cluster.price is not None}
    for name in said.clusters:
        if priced and name not in priced:
            yield ("clusters", name), f"`price` is missing; expected it here, since {sorted(priced)[0]} has one"
    for at, link in enumerate(said.links):
        if link.price is not None and not priced:
            yield ("links", at, "price"), "given, but no cluster has one; expected `price` in every cluster too"


def _cluster(where: Where, cluster: PlanCluster, said: PlanFile) -> Iterator[Problem]:
    if cluster.kind == "prfaas":
        for key in ("decode_batch", "kv_memory", "share"):
            if getattr(cluster, "kv_memory_bytes" if key == "kv_memory" else key) is not None:
                yield (*where, key), "a prfaas cluster only prefills; expected it in clusters of kind pd"
    elif cluster.decode_batch is None and said.slo.tpot_ns is None:
        yield where, "nothing says how many sequences decode at once; expected `decode_batch` here, or `slo.tpot`"


def _shares(said: PlanFile) -> Iterator[Problem]:
    homes = said.of_kind("pd")
    given = [cluster.share for cluster in homes.values() if cluster.share is not None]
    for name, cluster in homes.items():
        if given and cluster.share is None:
            yield ("clusters", name), "`share` is missing; expected it in every pd cluster, or in none"
    if given and abs(sum(given) - 1) > 1e-6:
        yield ("clusters",), f"the shares of the pd clusters sum to {sum(given):g}; expected 1"


def _link(where: Where, link: PlanLink, said: PlanFile) -> Iterator[Problem]:
    for key, name, kind in (("from", link.source, "prfaas"), ("to", link.target, "pd")):
        if name not in said.clusters:
            yield (*where, key), f"no cluster is called {name!r}; expected one of {', '.join(said.of_kind(kind))}"  # type: ignore[arg-type]
        elif said.clusters[name].kind != kind:
            yield (*where, key), f"{name} is a {said.clusters[name].kind} cluster; expected one of kind {kind}"


def _links_together(said: PlanFile) -> Iterator[Problem]:
    seen: dict[tuple[str, str], int] = {}
    for at, link in enumerate(said.links):
        pair = (link.source, link.target)
        if pair in seen:
            yield ("links", at), f"a second link {link.source}->{link.target}, after links[{seen[pair]}]; expected one"
        seen.setdefault(pair, at)
    for name in said.of_kind("prfaas"):
        if not any(link.source == name for link in said.links):
            yield ("clusters", name), "no link leads from it to a pd cluster; expected one in `links`"


def _located(said: PlanFile, base: Path) -> PlanFile:
    """With file names made absolute: they are relative to the plan file."""

    def absolute(name: str) -> str:
        return os.path.abspath(base / Path(name).expanduser())

    def named(name: str) -> str:
        return absolute(name) if "/" in name or name.startswith("~") else name

    traffic: Any = said.traffic
    if isinstance(traffic.lengths, Trace):
        traffic = replace(traffic, lengths=replace(traffic.lengths, file=absolute(traffic.lengths.file)))
    clusters = {name: replace(cluster, profile=named(cluster.profile)) for name, cluster in said.clusters.items()}
    model = named(said.model)
    if model == said.model and (base / model).exists():
        model = absolute(model)
    return replace(said, model=model, traffic=traffic, clusters=clusters)
