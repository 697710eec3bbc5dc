"""The topology of a plan: good for `prfaas validate`, and the same things bind in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from prfaas.cli.engines import check_engines
from prfaas.config.reader import read_topology
from prfaas.config.topology import EmulatedEngine, Topology
from prfaas.core.errors import ConfigError
from prfaas.engine.emulated.layouts import layout_of
from prfaas.plan.plan import Plan
from prfaas.plan.topologyfile import BYTES_SCALE, TIME_SCALE, write_topology_file

from .conftest import plan_of


def written(plan: Plan, directory: Path) -> Topology:
    path = directory / "topology.yaml"
    write_topology_file(plan, path)
    topology = read_topology(path)
    check_engines(topology)
    return topology


def test_the_papers_nodes_are_all_there(paper: Plan, tmp_path: Path) -> None:
    topology = written(paper, tmp_path)
    assert len(topology.clusters["far"].nodes) == 4
    assert len(topology.clusters["home"].of_role("prefill")) == 3
    assert len(topology.clusters["home"].of_role("decode")) == 5
    assert topology.policy.threshold == paper.exact.prfaas.threshold
    (link,) = topology.links
    assert link.bandwidth_bps == pytest.approx(100e9 * BYTES_SCALE / TIME_SCALE, rel=0.005)
    decode = topology.clusters["home"].of_role("decode")[0].engine
    assert isinstance(decode, EmulatedEngine)
    assert decode.max_sequences == 20


def test_its_bytes_are_the_models(paper: Plan) -> None:
    for tokens in (1000, 27_000, 131_072):
        made = layout_of("paper-1t", BYTES_SCALE).bytes_at(tokens)
        assert made == pytest.approx(paper.inputs.kv_bytes(tokens) * BYTES_SCALE, rel=0.01)


def test_a_large_plan_keeps_shares_and_what_binds(changed: Callable[..., Path], tmp_path: Path) -> None:
    path = changed(("nodes: 4", "nodes: 400"), ("nodes: 8 ", "nodes: 800 "), ("100Gbps", "1Tbps"))
    topology = written(plan_of(path), tmp_path)
    nodes = [len(cluster.nodes) for cluster in topology.clusters.values()]
    assert sum(nodes) <= 17
    assert nodes[1] == pytest.approx(2 * nodes[0], abs=1)
    expected = 1e12 * BYTES_SCALE / TIME_SCALE * nodes[0] / 400
    assert topology.links[0].bandwidth_bps == pytest.approx(expected, rel=0.01)


def test_two_by_two(two_by_two: Plan, tmp_path: Path) -> None:
    topology = written(two_by_two, tmp_path)
    assert set(topology.clusters) == {"north", "south", "east", "west"}
    assert len(topology.links) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["topology.yaml"]


def test_another_model_has_a_stand_in_of_its_weight(changed: Callable[..., Path], tmp_path: Path) -> None:
    plan = plan_of(changed(("model: paper-1t", "model: Kimi-Linear-48B-A3B")))
    topology = written(plan, tmp_path)
    engine = topology.clusters["far"].nodes[0].engine
    assert isinstance(engine, EmulatedEngine)
    mean = round(plan.inputs.workload.lengths.mean)
    assert engine.layout == "paper-1t"
    ratio = plan.inputs.kv_bytes(mean) / layout_of("paper-1t", 1.0).bytes_at(mean)
    assert engine.bytes_scale == pytest.approx(BYTES_SCALE * ratio)
    assert "stands in" in (tmp_path / "topology.yaml").read_text()


def test_a_place_that_cannot_be_written_is_refused(paper: Plan, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a file to write the topology to"):
        write_topology_file(paper, tmp_path / "none" / "topology.yaml")
