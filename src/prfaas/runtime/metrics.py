"""Metrics: ours, and an engine's under vLLM's names, so that existing dashboards read both.

It knows prometheus_client and the names; it does not know who counts. Each program (each test) has its own registry;
there are no globals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from prfaas.runtime.outcomes import label

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 600)


class Metrics:
    """What all programs count.

    prfaas_requests_total{route,outcome}   requests that ended, each once. A gateway's `route`: local, remote, or none
                                           (never placed); `outcome`: ok, refused (an error instead of an answer),
                                           broken (in mid-stream), gone (the client left). A service's `route` is
                                           prefill, `outcome` ok, failed, gone
    prfaas_stage_seconds{stage}            time in one stage of a request's life
    prfaas_kv_bytes_total{link}            KV bytes that crossed a link, counted where they were received
    prfaas_blocks_in_use{node}             KV blocks that sequences and transfers hold
    prfaas_transfers_in_use{node}          transfers that hold anything
    prfaas_prefill_nodes_ready{cluster}    for each cluster that a gateway may send prefills to
    prfaas_members{cluster,role,state}     nodes of a cluster as its head knows them; states as in docs/states.md
    prfaas_unknown_signals_total{signal}   decisions that lacked it: speed:CLUSTER, cache:CLUSTER, ...
    prfaas_longer_prefixes_total{outcome}  decisions for a cluster while another one had a longer prefix, by what was to
                                           become of it (docs/routing.md); and of each copy: lent, or why not
    prfaas_kv_events_total{node,kind}      told of prefix caches: stored, removed, cleared; lost, broken
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "prfaas_requests", "Requests that ended.", ("route", "outcome"), registry=self.registry
        )
        self._stages = Histogram(
            "prfaas_stage_seconds", "Time in a stage.", ("stage",), registry=self.registry, buckets=SECONDS
        )
        self._kv_bytes = Counter("prfaas_kv_bytes", "KV bytes over a link.", ("link",), registry=self.registry)
        self._blocks = Gauge("prfaas_blocks_in_use", "KV blocks held.", ("node",), registry=self.registry)
        self._transfers = Gauge("prfaas_transfers_in_use", "Transfers in hand.", ("node",), registry=self.registry)
        labels = ("cluster", "role", "state")
        self._sources = Gauge(
            "prfaas_prefill_nodes_ready", "Prefill nodes ready, as last heard.", ("cluster",), registry=self.registry
        )
        self._kv_events = Counter(
            "prfaas_kv_events", "Events of prefix caches.", ("node", "kind"), registry=self.registry
        )
        self._unknown = Counter(
            "prfaas_unknown_signals", "Decisions without a signal.", ("signal",), registry=self.registry
        )
        self._longer = Counter(
            "prfaas_longer_prefixes", "Decisions while another cluster had more.", ("outcome",), registry=self.registry
        )
        self._members = Gauge("prfaas_members", "Nodes of a cluster.", labels, registry=self.registry)

    def kv_events(self, node: str, kind: str, count: int) -> None:
        """`count` events of `kind` came from `node`."""
        self._kv_events.labels(node, kind).inc(count)

    def request_ended(self, route: str, outcome: str) -> None:
        """One request ended."""
        self._requests.labels(route, outcome).inc()

    def signal_unknown(self, signal: str) -> None:
        """A decision had to be made without `signal`."""
        self._unknown.labels(signal).inc()

    def longer_prefix(self, outcome: str) -> None:
        """What becomes of a prefix that another cluster has, and that is longer."""
        self._longer.labels(label(outcome)).inc()

    def source_ready(self, cluster: str, nodes: int) -> None:
        """`nodes` prefill nodes of `cluster` are ready, as a gateway just heard."""
        self._sources.labels(cluster).set(nodes)

    def stage_took(self, stage: str, took_ns: int) -> None:
        """A stage took `took_ns`."""
        self._stages.labels(stage).observe(took_ns / 1e9)

    @contextmanager
    def stage(self, stage: str) -> Iterator[None]:
        """Time the body, however it ends."""
        began = perf_counter_ns()
        try:
            yield
        finally:
            self.stage_took(stage, perf_counter_ns() - began)

    def kv_moved(self, link: str, moved_bytes: int) -> None:
        """`moved_bytes` crossed `link`."""
        self._kv_bytes.labels(link).inc(moved_bytes)

    def watch_node(self, node: str, blocks: Callable[[], int], transfers: Callable[[], int]) -> None:
        """Read what `node` holds when the metrics are read."""
        self._blocks.labels(node).set_function(blocks)
        self._transfers.labels(node).set_function(transfers)

    def set_members(self, cluster: str, role: str, state: str, count: int) -> None:
        """So many members of `cluster` have this role and are in this state."""
        self._members.labels(cluster, role, state).set(count)

    def set_node(self, node: str, blocks: int, transfers: int) -> None:
        """What `node` said that it holds."""
        self._blocks.labels(node).set(blocks)
        self._transfers.labels(node).set(transfers)

    def text(self) -> bytes:
        """All of it, as Prometheus reads it (`CONTENT_TYPE`)."""
        return generate_latest(self.registry)


class EngineMetrics:
    """What an engine counts, under vLLM's names, labelled with the model's."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        def counter(name: str, text: str, *more: str) -> Counter:
            return Counter(name, text, ("model_name", *more), registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, ("model_name",), registry=registry)

        self._running = gauge("vllm:num_requests_running", "Requests in the engine.").labels(model)
        self._waiting = gauge("vllm:num_requests_waiting", "Requests that wait for room.").labels(model)
        self._usage = gauge("vllm:kv_cache_usage_perc", "KV blocks in use, 1 is all.").labels(model)
        self.prompt_tokens = counter("vllm:prompt_tokens", "Prompt tokens prefilled or received.").labels(model)
        self.generation_tokens = counter("vllm:generation_tokens", "Tokens generated.").labels(model)
        first = Histogram(
            "vllm:time_to_first_token_seconds",
            "To the first token.",
            ("model_name",),
            registry=registry,
            buckets=SECONDS,
        )
        self.first_token = first.labels(model)
        self._success = counter("vllm:request_success", "Requests answered.", "finished_reason")
        self._model = model

    def watch(self, running: Callable[[], float], waiting: Callable[[], float], usage: Callable[[], float]) -> None:
        """Read the load when the metrics are read."""
        self._running.set_function(running)
        self._waiting.set_function(waiting)
        self._usage.set_function(usage)

    def succeeded(self, reason: str) -> None:
        """One request was answered; `reason`: stop or length."""
        self._success.labels(self._model, reason).inc()
