"""What a gateway is told of links: those that the file lists, each in its direction."""

from __future__ import annotations

from pathlib import Path

import pytest

from prfaas.cli.gateway import settings
from prfaas.config.reader import read_topology
from prfaas.core.ids import ClusterName, LinkName
from prfaas.core.routing.view import Back

FILE = """
model: emulated
clusters:
  home: {kind: pd, nodes: [{name: d, role: decode, engine: &e {kind: emulated, profile: paper-h20}}]}
  far: {kind: prfaas, nodes: [{name: p, role: prefill, engine: *e}]}
links:
  - {from: far, to: home, bandwidth: 2Gbps, rtt: 10ms}
"""
BACK = "  - {from: home, to: far, bandwidth: 1Gbps, rtt: 12ms}\n"


@pytest.mark.parametrize(
    ("more", "back", "copies"),
    [
        ("", None, True),
        (BACK, Back(LinkName("home->far"), 10**9, 12 * 10**6), True),
        ("policy: {prefix_copies: false}\n", None, False),
    ],
)
def test_a_copy_goes_where_a_link_goes(tmp_path: Path, more: str, back: Back | None, copies: bool) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text(FILE + more)
    made = settings(read_topology(file), ClusterName("home"))
    (far, home) = made.sources
    assert (far.cluster, far.link, far.bandwidth_bps, far.rtt_ns) == ("far", "far->home", 2 * 10**9, 10 * 10**6)
    assert (far.back, home.back) == (back, None)
    assert made.policy.copies is copies
