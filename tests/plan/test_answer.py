"""`--json` and plan files: the schemas in docs/ are current, and what is said fits them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from prfaas.plan.answer import answer, answer_json
from prfaas.plan.plan import Plan
from prfaas.plan.planschema import plan_schema, planfile_schema

from .conftest import PAPER, ROOT, TWO_BY_TWO, plan_of

SCHEMAS = {"plan": plan_schema, "planfile": planfile_schema}


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_file_in_docs_is_current(name: str) -> None:
    stored = (ROOT / "docs" / "schemas" / f"{name}.json").read_text()
    assert stored == SCHEMAS[name](), f"stale; write it anew: prfaas schema {name} > docs/schemas/{name}.json"


@pytest.mark.parametrize("path", [PAPER, TWO_BY_TWO], ids=lambda path: path.stem)
def test_the_examples_fit(path: Path) -> None:
    schema = json.loads(planfile_schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(path.read_text()), schema)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_setting_is_described_and_has_its_default(name: str) -> None:
    for shape, about in json.loads(SCHEMAS[name]())["$defs"].items():
        for key, field in about["properties"].items():
            assert field.get("description"), f"{shape}.{key}"
            if name == "planfile":
                assert key in about.get("required", ()) or "default" in field, f"{shape}.{key}"


def said(plan: Plan, formulas: str) -> Any:
    found = json.loads(answer_json(answer(plan, getattr(plan, formulas))))
    jsonschema.validate(found, json.loads(plan_schema()))
    return found


COMMON = {"lambda_max", "n_d", "theta", "ttft_mean_s", "ttft_p90_s", "binding"}
AWAY = {"n_prfaas", "egress_gbps", "offloaded"}


@pytest.mark.parametrize("formulas", ["paper", "exact"])
def test_what_does_not_apply_is_absent(paper: Plan, formulas: str) -> None:
    found = said(paper, formulas)
    assert set(found) == {"designs", "ratios"}
    designs = found["designs"]
    assert {name: set(one) - COMMON for name, one in designs.items()} == {
        "prfaas": AWAY | {"threshold", "n_p"},
        "homogeneous": {"n_p"},
        "naive": AWAY,
        "balanced": AWAY | {"n_p"},
    }
    assert {name: set(one["theta"]) for name, one in designs.items()} == {
        "prfaas": {"prfaas", "pd_p", "pd_d"},
        "homogeneous": {"pd_p", "pd_d"},
        "naive": {"prfaas", "pd_d"},
        "balanced": {"prfaas", "pd_p", "pd_d"},
    }
    assert set(found["ratios"]) == {"vs_homogeneous", "vs_naive", "vs_balanced"}
    for name, ratio in found["ratios"].items():
        other = designs[name.removeprefix("vs_")]["lambda_max"]
        assert ratio == pytest.approx(designs["prfaas"]["lambda_max"] / other, rel=1e-5)


def test_equation_6_holds_of_what_is_said(paper: Plan) -> None:
    for name, one in said(paper, "paper")["designs"].items():
        if name != "balanced":
            p = one.get("offloaded", 0.0)
            theta = one["theta"]
            rates = [theta["pd_d"]]
            rates += [theta["prfaas"] / p] if "prfaas" in theta else []
            rates += [theta["pd_p"] / (1 - p)] if "pd_p" in theta else []
            assert one["lambda_max"] == pytest.approx(min(rates), rel=1e-4)


def test_prices_bring_cost_and_the_same_cost_design(two_by_two: Plan) -> None:
    found = said(two_by_two, "paper")
    assert all(one["cost_per_million_tokens"] > 0 for one in found["designs"].values())
    assert "homogeneous_same_cost" in found["designs"]
    assert found["ratios"]["vs_homogeneous_same_cost"] < found["ratios"]["vs_homogeneous"]


def test_no_prefill_at_home_has_no_rate(changed: Callable[..., Path]) -> None:
    found = said(plan_of(changed(("output: 1024", "output: 4096"))), "paper")["designs"]["prfaas"]
    assert (found["threshold"], found["n_p"], found["n_d"]) == (0, 0, 8)
    assert "pd_p" not in found["theta"]
    assert found["offloaded"] == 1
    assert found["binding"] == "pd_d"
