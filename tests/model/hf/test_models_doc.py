"""docs/models.md: its tables are what the code computes, and every family has its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from prfaas.model.hf.families import FAMILIES
from prfaas.model.hf.groups import bytes_per_token, groups_of, state_bytes
from prfaas.model.hf.load import known_models, load_layout
from prfaas.model.hf.table3 import LENGTHS, PHI_KV_GBPS, implied_prefill_s

MIB = 1 << 20
LINES = (Path(__file__).parents[3] / "docs" / "models.md").read_text().splitlines()


def weights(model: str) -> list[str]:
    layout = load_layout(model)
    return [f"{layout.bytes_at(length) / MIB:,.1f}" for length in LENGTHS]


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


@pytest.mark.parametrize("model", known_models())
def test_known_models(model: str) -> None:
    layout = load_layout(model)
    windows = sum(group.bytes_per_token * group.window for group in groups_of(layout))
    constant = (f"{windows / MIB:,.1f}", f"{state_bytes(layout) / MIB:,.1f}")
    assert row(model, f"{bytes_per_token(layout):,}", *constant, *weights(model)) in LINES


@pytest.mark.parametrize("model", PHI_KV_GBPS)
def test_table_3(model: str) -> None:
    assert row(model, *weights(model), *(f"{implied_prefill_s(model, length):.2f}" for length in LENGTHS)) in LINES


def test_table_5() -> None:
    printed = (190.8, 308.9, 701.3, 2316.3)
    ours = [load_layout("paper-1t").bytes_at(length) / MIB for length in LENGTHS]
    cells = [f"{mib:,.1f} ({(mib / theirs - 1) * 100:+.1f} %)" for mib, theirs in zip(ours, printed, strict=True)]
    assert row("`paper-1t`, MiB", *cells) in LINES


def test_every_family_is_named() -> None:
    named = "\n".join(LINES)
    for name in FAMILIES:
        assert f"`{name}`" in named, name
