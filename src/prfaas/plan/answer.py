"""A plan as JSON. What does not apply is absent.

It knows the shape, which is a promise (docs/schemas/plan.json); it computes nothing.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from prfaas.plan.designs import Binding, Design
from prfaas.plan.plan import Compared, Plan

Rate = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]


class ThetaAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Requests a second of its own kind that each stage sustains."""

    prfaas: Annotated[Rate | UnsetType, Meta(description="Long ones: PrfaaS clusters and links (eq. 3).")] = UNSET
    pd_p: Annotated[Rate | UnsetType, Meta(description="Short ones: the PD clusters' prefill nodes (eq. 4).")] = UNSET
    pd_d: Annotated[Rate, Meta(description="Any: decode nodes (eq. 5).")]


class DesignAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One design at its best. Counts of nodes are over all clusters."""

    lambda_max: Annotated[Rate, Meta(description="Requests a second that it sustains (eq. 6).")]
    threshold: Annotated[Count | UnsetType, Meta(description="Uncached tokens above which prefill goes away.")] = UNSET
    n_prfaas: Annotated[Count | UnsetType, Meta(description="Nodes of the PrfaaS clusters.")] = UNSET
    n_p: Annotated[Count | UnsetType, Meta(description="Prefill nodes of the PD clusters.")] = UNSET
    n_d: Annotated[Count, Meta(description="Decode nodes of the PD clusters.")]
    theta: Annotated[ThetaAnswer, Meta(description="What each stage sustains.")]
    ttft_mean_s: Annotated[Rate, Meta(description="Mean prefill seconds, without queueing and transfer.")]
    ttft_p90_s: Annotated[Rate, Meta(description="Prefill seconds that nine in ten do not exceed.")]
    egress_gbps: Annotated[Rate | UnsetType, Meta(description="KV over all links at lambda_max.")] = UNSET
    offloaded: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | UnsetType, Meta(description="Share of requests that is prefilled away.")
    ] = UNSET
    binding: Annotated[Binding, Meta(description="What limits it.")]
    cost_per_million_tokens: Annotated[
        Rate | UnsetType, Meta(description="Of prompts and answers, with prices only.")
    ] = UNSET


class DesignsAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The designs."""

    prfaas: Annotated[DesignAnswer, Meta(description="Above a threshold to the PrfaaS clusters.")]
    homogeneous: Annotated[DesignAnswer, Meta(description="As many accelerators, all in the PD clusters.")]
    homogeneous_same_cost: Annotated[
        DesignAnswer | UnsetType, Meta(description="PD clusters for as much money, with prices only.")
    ] = UNSET
    naive: Annotated[DesignAnswer, Meta(description="All prefill remote.")]
    balanced: Annotated[DesignAnswer, Meta(description="The prefill nodes of `prfaas`, whatever a prompt's length.")]


class RatiosAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Lambda_max of `prfaas` over that of the others."""

    vs_homogeneous: Annotated[Rate | UnsetType, Meta(description="As many accelerators.")] = UNSET
    vs_homogeneous_same_cost: Annotated[Rate | UnsetType, Meta(description="As much money.")] = UNSET
    vs_naive: Annotated[Rate | UnsetType, Meta(description="All prefill remote.")] = UNSET
    vs_balanced: Annotated[Rate | UnsetType, Meta(description="Length-blind.")] = UNSET


class PlanAnswer(Struct, frozen=True, kw_only=True):
    """What `prfaas plan --json` says."""

    designs: Annotated[DesignsAnswer, Meta(description="Each at its best.")]
    ratios: Annotated[RatiosAnswer, Meta(description="Lambda_max of `prfaas` over that of the others.")]


def answer(plan: Plan, compared: Compared) -> PlanAnswer:
    """The plan by one kind of formulas."""
    same = compared.same_cost

    def made(design: Design) -> DesignAnswer:
        return design_answer(design, plan.cost(design))

    return PlanAnswer(
        designs=DesignsAnswer(
            prfaas=made(compared.prfaas),
            homogeneous=made(compared.homogeneous),
            homogeneous_same_cost=made(same) if same else UNSET,
            naive=made(compared.naive),
            balanced=made(compared.balanced),
        ),
        ratios=RatiosAnswer(
            vs_homogeneous=_given(compared.ratio(compared.homogeneous)),
            vs_homogeneous_same_cost=_given(compared.ratio(same)) if same else UNSET,
            vs_naive=_given(compared.ratio(compared.naive)),
            vs_balanced=_given(compared.ratio(compared.balanced)),
        ),
    )


def design_answer(design: Design, cost: float | None) -> DesignAnswer:
    """One design. `cost`: of a million tokens."""
    away = bool(design.site.remotes)
    return DesignAnswer(
        lambda_max=design.rate,
        threshold=_given(design.threshold),
        n_prfaas=design.n_prfaas if away else UNSET,
        n_p=UNSET if design.name == "naive" and not sum(design.n_p) else sum(design.n_p),
        n_d=sum(design.n_d),
        theta=ThetaAnswer(prfaas=_given(design.theta.prfaas), pd_p=_given(design.theta.pd_p), pd_d=design.theta.pd_d),
        ttft_mean_s=design.ttft_mean_s,
        ttft_p90_s=design.ttft_p90_s,
        egress_gbps=design.egress_bps / 1e9 if away else UNSET,
        offloaded=design.offloaded if away else UNSET,
        binding=design.binding,
        cost_per_million_tokens=_given(cost),
    )


def answer_json(said: PlanAnswer) -> str:
    """As JSON text, numbers to six significant digits."""
    text = msgspec.json.encode(_rounded(msgspec.to_builtins(said)))
    return msgspec.json.format(text, indent=2).decode() + "\n"


def _given(value: Any) -> Any:
    return UNSET if value is None else value


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value
