"""Faults of a scenario file: what does not belong to the kind, or cannot be, is refused with its row."""

from __future__ import annotations

from pathlib import Path

import pytest

from prfaas.core.errors import ConfigError
from prfaas.sim.fromplan import Planned
from prfaas.sim.scenario import Scenario, read_scenario

TAKES = "  - {{kind: to_prefill, cluster: home, node: {node}, at: {at}s, lasts: 1s}}\n"


def read(path: Path, paper: Planned, rows: str) -> Scenario:
    file = path / "scenario.yaml"
    file.write_text("faults:\n" + rows)
    return read_scenario(file, paper.setup)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("kind: link, cluster: far", "faults[0]: expected a target: home"),
        ("kind: link, cluster: far, target: near", "faults[0].target: got 'near'; expected home"),
        ("kind: link, cluster: home, target: far", "no link leads from home; expected one of far"),
        ("kind: link, cluster: far, target: home, factor: 2", "faults[0].factor: a link fault has none"),
        ("kind: link, cluster: far, target: home, node: 0", "node: a link fault has none; expected it of node_down,"),
        (
            "kind: node_down, cluster: far, bandwidth: 1Gbps",
            "bandwidth: a node_down fault has none; expected it of link",
        ),
        ("kind: decode_down, cluster: home, target: home", "faults[0].target: a decode_down fault has none"),
        ("kind: service_down, cluster: far, node: 1", "faults[0].node: a service_down fault has none"),
        ("kind: node_down, cluster: far, factor: 3", "expected it of slow_node only"),
        ("kind: decode_down, cluster: far", "faults[0].cluster: far has no decode nodes; expected one of home"),
    ],
)
def test_what_does_not_belong_there_is_refused(tmp_path: Path, paper: Planned, row: str, expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, paper, f"  - {{{row}, at: 1s, lasts: 1s}}\n")
    assert "scenario.yaml:2: " in str(refused.value)
    assert expected in str(refused.value)


def test_the_last_decode_node_keeps_its_role(tmp_path: Path, paper: Planned) -> None:
    nodes = paper.setup.clusters[0].decode
    most = "".join(TAKES.format(node=node, at=nodes - node) for node in range(nodes - 1))
    assert len(read(tmp_path, paper, most).faults) == nodes - 1
    last = TAKES.format(node=nodes - 1, at=99)
    again = TAKES.format(node=0, at=50)  # of one that leaves already: no other
    with pytest.raises(ConfigError, match=rf":{nodes + 2}: .*the last decode node of home; expected that one stays"):
        read(tmp_path, paper, most + again + last)
    comes = "  - {kind: to_decode, cluster: home, node: 0, at: 10s, lasts: 89s}\n"
    assert read(tmp_path, paper, most + comes + last)
    with pytest.raises(ConfigError, match="the last decode node"):
        read(tmp_path, paper, most + comes.replace("89s", "90s") + last)
