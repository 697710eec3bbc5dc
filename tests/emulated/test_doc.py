"""docs/emulated.md: its examples are read by the readers, and it names what there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args, get_type_hints

from prfaas.config.reader import read_topology
from prfaas.config.topology import POINTS, EmulatedEngine, Fault
from prfaas.engine.emulated.layouts import LAYOUTS, layout_of
from prfaas.model.profilefile import built_in, read_profile

DOC = (Path(__file__).parents[2] / "docs" / "emulated.md").read_text()
TOPOLOGY, PROFILE, FAULTS = re.findall(r"```yaml\n(.*?)```", DOC, re.DOTALL)


def test_examples(tmp_path: Path) -> None:
    file = tmp_path / "doc.yaml"
    file.write_text(PROFILE)
    assert read_profile(file).prefill_ns(1024, 1024) == 440_000_000
    faults = "".join(f"          {line}\n" for line in FAULTS.splitlines())
    node = "      - {name: p1, role: prefill, engine: {kind: emulated}}\n"
    file.write_text(TOPOLOGY)
    assert len(read_topology(file).clusters["home"].nodes) == 2
    file.write_text(
        "model: emulated\nclusters:\n  home:\n    kind: pd\n    nodes:\n"
        + node
        + "      - name: d1\n        role: decode\n        engine:\n          kind: emulated\n"
        + faults
    )
    engine = read_topology(file).clusters["home"].nodes[1].engine
    assert isinstance(engine, EmulatedEngine)
    assert [(fault.at, fault.do) for fault in engine.faults] == [
        ("prefill:chunk:2", "die"),
        ("decode:token:5", "stall"),
    ]


def test_everything_has_a_row() -> None:
    hints = get_type_hints(Fault, include_extras=True)
    deeds = get_args(get_args(hints["do"])[0])
    for name in (*LAYOUTS, *POINTS, *deeds):
        assert f"| `{name}` |" in DOC, name
    for name in built_in():
        assert f"`{name}`" in DOC


def test_the_weights_are_right() -> None:
    tokens = 1 << 20

    def weight(name: str) -> tuple[float, float]:
        """KiB a token, and MiB a sequence beside them."""
        layout = layout_of(name, 1.0)
        a_token = (layout.bytes_at(2 * tokens) - layout.bytes_at(tokens)) / tokens
        return round(a_token / 1024, 1), round((layout.bytes_at(tokens) - a_token * tokens) / 2**20, 1)

    assert weight("paper-1t") == (16.9, 174.7)
    assert weight("dense") == (32, 0)
    assert weight("window") == (4, 10)
    assert weight("hybrid")[0] == 2.1
