"""`prfaas profile measure` against a running system whose profile is known: it must find that profile again.

One PD cluster of emulated nodes, at the profile's own pace. What a client sees of a prompt is the prefill of all but
the last token, one decode step for that, and what gateway, tokenizer and hand-over add.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from prfaas.cli.main import cli
from prfaas.model.profilefile import load_profile, read_profile_file
from tests.e2e.system import System, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(180)]

KNOWN = """
name: known
source: made up
date: 2026-01-01
prefill:
  basis: modelled
  points:
    - {uncached: 500, time: 1s}
    - {uncached: 1000, time: 1300ms}
    - {uncached: 2000, time: 2500ms}
decode:
  basis: modelled
  points:
    - {batch: 1, context: 500, time: 20ms}
    - {batch: 1, context: 2000, time: 30ms}
    - {batch: 4, context: 500, time: 35ms}
    - {batch: 4, context: 2000, time: 60ms}
"""
TOPOLOGY = """
model: emulated
clusters:
  home:
    kind: pd
    nodes:
      - name: p
        role: prefill
        engine: &engine {kind: emulated, profile: ./known.yaml, layout: hybrid, prefix_cache: false}
      - {name: d, role: decode, engine: *engine}
"""
SHARE = 0.05
OVERHEAD_NS = 50_000_000
"""What gateway and hand-over may add to a prompt on a busy machine; on an idle one it is a few ms."""


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    (tmp_path / "known.yaml").write_text(KNOWN)
    (tmp_path / "topology.yaml").write_text(TOPOLOGY)
    made = System.start(tmp_path / "topology.yaml", tmp_path / "state")
    until("the gateway knows its prefill node", lambda: made.metric("home", "prfaas_prefill_nodes_ready") > 0)
    yield made
    assert made.stop() == 0


def test_the_known_profile_is_found_again(system: System, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known, out = load_profile(str(tmp_path / "known.yaml")), tmp_path / "measured.yaml"
    wanted = "--lengths 500,1000,2000 --cached 500 --batches 1,4 --contexts 500 --repeats 3 --steps 24"
    few = wanted.split()
    result = CliRunner().invoke(cli, ["profile", "measure", system.url, "--out", str(out), *few], prog_name="prfaas")
    assert result.exit_code == 0, result.output
    assert "stopped there: the endpoint had 0 cached, of a prefix of 500 that it had just seen" in result.stderr
    found = read_profile_file(out)
    rows = []
    for row in found.prefill.points:
        true_ns = known.prefill_ns(row.uncached - 1, row.uncached - 1) + known.decode_step_ns(1, row.uncached)
        rows.append((f"prefill {row.uncached}", true_ns, int(row.time_ns), OVERHEAD_NS))
    for step in found.decode.points:
        assert step.context is not None
        true_ns = known.decode_step_ns(step.batch, step.context)
        rows.append((f"decode {step.batch} x {step.context}", true_ns, int(step.time_ns), 0))
    assert [row[0].split()[0] for row in rows] == ["prefill"] * 3 + ["decode"] * 2
    with capsys.disabled():
        print()
        for what, true_ns, ns, _ in rows:
            print(f"  {what:<16} known {true_ns / 1e6:8.1f} ms, measured {ns / 1e6:8.1f} ms, {ns / true_ns - 1:+.1%}")
    for what, true_ns, ns, overhead_ns in rows:
        assert true_ns * (1 - SHARE) <= ns <= true_ns * (1 + SHARE) + overhead_ns, what
    system.settled()
