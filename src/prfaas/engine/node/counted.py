"""What a node counts of its prefix cache, beside `runtime.metrics`.

    prfaas_prompt_tokens_total{source}     tokens of prompts by where their KV came from: computed, cached (in a prefix
                                           that was kept), received (over a link), held (kept by the node that
                                           received the rest, so that they did not have to cross)
    prfaas_prefix_blocks{node}             KV blocks of prefixes that are kept
    prfaas_prefix_copies_total{side,outcome}   prefixes lent to another cluster, or fetched from one, and how that
                                           ended: `ok` or one word (`runtime.outcomes`)
    vllm:prefix_cache_queries_total        tokens of prompts that were looked up, as vLLM has it
    vllm:prefix_cache_hits_total           those of them that were kept

It knows names and numbers; it does not know who counts.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from prfaas.runtime.outcomes import label


class PrefixMetrics:
    """Of one node, and the model called `model`."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        self._sources = Counter(
            "prfaas_prompt_tokens", "Tokens of prompts, by where their KV came from.", ("source",), registry=registry
        )
        self._queries, self._hits = (
            Counter(f"vllm:prefix_cache_{name}", text, ("model_name",), registry=registry).labels(model)
            for name, text in (("queries", "Prompt tokens looked up."), ("hits", "Prompt tokens that were kept."))
        )
        self._blocks = Gauge("prfaas_prefix_blocks", "KV blocks of kept prefixes.", ("node",), registry=registry)

        self._copies = Counter(
            "prfaas_prefix_copies", "Prefixes lent and fetched.", ("side", "outcome"), registry=registry
        )

    def copied(self, side: str, outcome: str) -> None:
        """A copy of a prefix ended, on this side (lent, fetched)."""
        self._copies.labels(side, label(outcome)).inc()

    def watch(self, node: str, blocks: Callable[[], int]) -> None:
        """Read what `node` keeps when the metrics are read."""
        self._blocks.labels(node).set_function(blocks)

    def prompt(self, tokens: int, cached: int) -> None:
        """A prompt of `tokens` tokens, of which so many were `cached`; the others were computed."""
        self._count(computed=tokens - cached, cached=cached)
        self._queries.inc(tokens)
        self._hits.inc(cached)

    def landed(self, tokens: int, received: int, held: int) -> None:
        """A prompt of `tokens` tokens that was prefilled elsewhere: whether it was kept there is counted there."""
        self._count(computed=tokens - received - held, received=received, held=held)

    def _count(self, **sources: int) -> None:
        for source, count in sources.items():
            self._sources.labels(source).inc(count)
