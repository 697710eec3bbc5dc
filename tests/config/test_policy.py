"""The policy section: the names are the catalog's, and what is left out is `ours`."""

from __future__ import annotations

from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from prfaas.config.reader import read_topology
from prfaas.config.topology import Policy
from prfaas.core.errors import ConfigError
from prfaas.core.routing.catalog import DEFAULT, NAMES

EXAMPLE = (Path(__file__).parents[2] / "examples" / "two-clusters.yaml").read_text().partition("policy:")[0]


def read(tmp_path: Path, section: str) -> Policy:
    file = tmp_path / "t.yaml"
    file.write_text(EXAMPLE + section)
    return read_topology(file).policy


def test_the_names_are_those_of_the_catalog() -> None:
    assert set(get_args(get_type_hints(Policy)["kind"])) == set(NAMES)
    assert Policy().kind == DEFAULT


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("", Policy()),
        ("policy: {threshold: 512}\n", Policy(kind="ours", threshold=512)),
        ("policy: {kind: threshold, threshold: 512}\n", Policy(kind="threshold", threshold=512)),
        ("policy: {kind: pull, order: 0.5}\n", Policy(kind="pull", order=0.5)),
        ("policy: {order: 4}\n", Policy(order=4.0)),
        ("policy: {short_remainder: 64}\n", Policy(short_remainder=64)),
    ],
)
def test_what_is_said_and_what_is_left_out(tmp_path: Path, section: str, expected: Policy) -> None:
    assert read(tmp_path, section) == expected


@pytest.mark.parametrize("order", ["-1", "1001", "fast"])
def test_an_order_has_bounds(tmp_path: Path, order: str) -> None:
    with pytest.raises(ConfigError, match=r"policy\.order: got"):
        read(tmp_path, f"policy: {{order: {order}}}\n")


@pytest.mark.parametrize("tokens", ["-1", "1048577", "none"])
def test_a_short_remainder_has_bounds(tmp_path: Path, tokens: str) -> None:
    with pytest.raises(ConfigError, match=r"policy\.short_remainder: got"):
        read(tmp_path, f"policy: {{short_remainder: {tokens}}}\n")


def test_what_a_short_remainder_is_when_it_is_left_out() -> None:
    assert Policy().remainder == 512
    assert Policy(short_remainder=0).remainder == 0
    for kind in NAMES:
        if kind != "ours":
            assert Policy(kind=kind).remainder == 0  # type: ignore[arg-type]
            assert Policy(kind=kind, short_remainder=9).remainder == 9  # type: ignore[arg-type]
