"""Where a request's prefill goes: the policy asked, or the threshold rule where what the policy needs is not known.

It knows the policy, the view and the ledger; it does not know requests' lives, nor what a policy weighs.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace

from prfaas.core.ids import ClusterName, RequestId
from prfaas.core.routing.cached import NOTHING, Cached
from prfaas.core.routing.catalog import policy_of
from prfaas.core.routing.ledger import HOME, Ledger
from prfaas.core.routing.placement import Choice, choose_source
from prfaas.core.routing.policy import IMPOSSIBLE
from prfaas.core.routing.threshold import Threshold
from prfaas.core.routing.view import Source, View

ALWAYS, NEVER = Threshold(0), Threshold(1 << 62)
FIXED = {"threshold": None, "remote": ALWAYS, "local": NEVER}
"""Policies whose rule needs no signal but what is cached, and the threshold that amounts to it; None: its own."""
BLIND = ("balanced", "fastest", "priced")
"""Policies to which no prompt is short."""


class Chooser:
    """`kind` is a name of `catalog`; `order`: see `Policy.order`, None: its own. `whole_limit`: the longest prompt that
    a decode node may compute whole. `copies`: whether prefixes are copied between clusters."""

    def __init__(
        self,
        kind: str,
        threshold: Threshold,
        order: float | None,
        whole_limit: int,
        sources: tuple[Source, ...],
        copies: bool = True,
    ) -> None:
        self._whole_limit = whole_limit
        self.policy = policy_of(kind, threshold.tokens, order)
        self.ledger = Ledger(sources, self.policy.order, copies)
        self._kind = kind
        self._rule = FIXED.get(kind) or threshold

    def choose(
        self,
        now_ns: int,
        request: RequestId,
        tokens: int,
        view: View,
        failed: AbstractSet[ClusterName],
        stays: str,
        why: str = "retry",
        cached: Cached = NOTHING,
    ) -> Choice:
        """Where to prefill a prompt of `tokens` tokens; see `placement.choose_source` for the rest of it."""
        if stays or tokens <= 1:
            return Choice(None, stays or "single")
        ledger = self.ledger
        at_home = cached.at(ledger.sources[HOME].cluster, tokens)
        able = [source.cluster not in failed and view.ready(source, tokens) for source in ledger.sources]
        # Decode nodes that are alone compute what is short, which policies have no word for.
        alone = view.decodes_only and self._kind not in BLIND and not self._rule.offloads(tokens, at_home)
        if not any(able) or (alone and tokens <= self._whole_limit):
            ruled = choose_source(view, self._rule, tokens, failed, stays, why, at_home)
            return replace(ruled, reason=self._named(ruled.reason))
        # Whoever just failed it would be asked for a copy in vain.
        cached = cached.without(failed)
        job = ledger.priced(now_ns, request, tokens, able, cached)
        unknown = ledger.unknown(job, cached)
        if self._kind in FIXED:
            needed = f"cache:{ledger.sources[HOME].cluster}" if self._kind == "threshold" else ""
            unknown = tuple(signal for signal in unknown if signal == needed)
        if not all(ledger.knows(at, tokens) for at in job.options if job.prefill_ns[at] != IMPOSSIBLE):
            ruled = choose_source(view, self._rule, tokens, failed, stays, why, at_home)
            return replace(ruled, reason=self._named(ruled.reason), unknown=unknown)
        answer = self.policy.place(now_ns, job, ledger.backlogs)
        copy = ledger.copy(now_ns, request, answer.cluster)
        source, reason = ledger.sources[answer.cluster], why if failed else answer.reason
        return Choice(source, reason, unknown, answer.scores, copy)

    def _named(self, reason: str) -> str:
        """The rule's reason as the policy calls it."""
        if self._kind == "local" and reason == "short":
            return "local"
        return "remote" if self._kind == "remote" and reason == "long" else reason
