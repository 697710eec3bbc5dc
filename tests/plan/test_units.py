"""Quantities in a plan file arrive in base units, whatever the unit that they were written in."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prfaas.config.units import Bandwidth, Duration, Size
from prfaas.core.throughput.equations import egress_bps, kv_throughput_bps
from prfaas.plan.inputs import read_inputs
from prfaas.plan.planreader import read_plan

from .conftest import PAPER


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(list(Bandwidth.UNITS)),
    st.integers(1, 999),
    st.sampled_from(["us", "ms", "s"]),
    st.integers(1, 999),
    st.sampled_from(["GB", "GiB", "TB", "TiB"]),
)
def test_units_round_trip(tmp_path: Path, line: str, width: int, unit: str, time: int, size: str) -> None:
    text = PAPER.read_text().replace("100Gbps", f"{width}{line}").replace("rtt: 5ms", f"rtt: {time}{unit}")
    path = tmp_path / "plan.yaml"
    path.write_text(text.replace("decode_batch: 20", f"decode_batch: 1\n    kv_memory: {width}{size}"))
    said, document = read_plan(path)
    assert read_inputs(said, document).site().homes[0].links_bps == (width * Bandwidth.UNITS[line],)
    (link,) = said.links
    assert Bandwidth.parse(link.bandwidth_bps.text()) == link.bandwidth_bps == width * Bandwidth.UNITS[line]
    assert Duration.parse(link.rtt_ns.text()) == link.rtt_ns == time * Duration.UNITS[unit]
    memory = said.clusters["home"].kv_memory_bytes
    assert memory is not None
    assert Size.parse(memory.text()) == memory == width * Size.UNITS[size]


@given(st.floats(1, 1e12), st.floats(1e-3, 1e3), st.integers(1, 1000))
def test_bits_and_bytes(size: float, seconds: float, nodes: int) -> None:
    assert kv_throughput_bps(size, seconds) * seconds / 8 == pytest.approx(size)
    assert egress_bps(nodes, size, seconds) == pytest.approx(nodes * kv_throughput_bps(size, seconds))
