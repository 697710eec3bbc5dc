"""Clusters of `vllm serve` behind a gateway, started by `prfaas up`, and how tests ask them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.system import SECRET, System, until
from tests.freeports import free_port

LENGTHS = [1, 2, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 200, 255, 256, 257, 300, 383, 384, 385, 511, 512, 513]
LENGTHS += [767, 1000, 1024, 1025, 1500, 2047, 2500, 3000]
"""32 lengths: around blocks, chunks and windows."""
THRESHOLD = 16
MADE = 12
"""Tokens of an answer."""


def prompt(length: int) -> list[int]:
    """Random bytes, always the same for one length."""
    chance = random.Random(length)
    return [chance.randrange(256) for _ in range(length)]


def topology(
    model: Path,
    connector: str = "prfaas",
    dtype: str = "float32",
    more: str = "",
    mbps: int = 400,
    far_more: str = "",
    far_data: str = "",
) -> str:
    """A cluster that prefills and one that decodes. `far_more`: more of the engine that prefills."""

    def engine(special: str = "") -> str:
        return (
            f"{{kind: vllm, device: cpu, connector: {connector}, inside: {connector}, dtype: {dtype}, "
            f"max_sequences: 4, kv_memory: 512MiB, chunk_tokens: 512, {special or f'arguments: [{more}]'}}}"
        )

    return f"""
model: {model}
served_name: m
clusters:
  home:
    kind: pd
    events_listen: 127.0.0.1:{free_port()}
    nodes: [{{name: home-decode, role: decode, engine: {engine()}}}]
  far: {{kind: prfaas, nodes: [{{name: far-prefill, role: prefill, {far_data} engine: {engine(far_more)}}}]}}
links: [{{from: far, to: home, bandwidth: {mbps}Mbps, rtt: 4ms, emulate: true}}]
policy: {{kind: threshold, threshold: {THRESHOLD}}}
limits: {{max_model_len: 4096, deadline: 200s, leases: {{node: 30s}}}}
"""


class Served(System):
    """The system of `topology`."""

    def ask(self, tokens: list[int] | str, at: str | None = None, **more: Any) -> httpx2.Response:
        """A greedy answer of the gateway, or of the program `at`."""
        body = {"model": "m", "prompt": tokens, "max_tokens": MADE, "temperature": 0, "ignore_eos": True}
        body |= {"return_token_ids": True} | more
        url = self.url if at is None else self.health_of(at)
        headers = {} if at is None else {"Authorization": f"Bearer {SECRET}"}
        return httpx2.post(url + "/v1/completions", json=body, headers=headers, timeout=240)

    def tokens(self, *given: Any, **more: Any) -> list[int]:
        """The tokens of an answer."""
        answer = self.ask(*given, **more)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["choices"][0]["token_ids"])

    def alone(self, tokens: list[int], at: str = "home-decode", made: int = MADE) -> list[int]:
        """What one vLLM answers that does both, with a prefix cache that it shares with nothing else."""
        return self.tokens(tokens, at, max_tokens=made, cache_salt="alone")

    def control(self, node: str, name: str) -> float:
        """The sum of a metric of our connector in `node`."""
        found = next(one for _, one in self.topology.nodes() if one.name == node)
        text = httpx2.get(f"http://{found.control_listen}/metrics", timeout=10).text
        families = text_string_to_metric_families(text)
        return sum(sample.value for family in families for sample in family.samples if sample.name == name)

    def free(self) -> dict[str, float]:
        """What is in use: nothing, when all is over."""
        used: dict[str, float] = {}
        for _, node in self.topology.nodes():
            for name in ("vllm:kv_cache_usage_perc", "vllm:num_requests_running", "vllm:num_requests_waiting"):
                used[f"{node.name} {name}"] = self.metric(node.name, name)
            if node.control_listen is not None:
                for name in ("prfaas_transfers_in_use", "prfaas_blocks_in_use"):
                    used[f"{node.name} {name}"] = self.control(node.name, name)
        return {what: count for what, count in used.items() if count}

    def all_free(self) -> None:
        """Fails unless everything that requests held is free soon, vLLM's blocks too."""
        try:
            until("nothing is in use", lambda: not self.free())
        except AssertionError as error:
            raise AssertionError(f"{error}; still in use: {self.free()}") from None


@contextmanager
def served(text: str, state: Path) -> Iterator[Served]:
    """That topology at work, for the block."""
    file = state / "topology.yaml"
    file.write_text(text)
    system = Served.start(file, state)
    assert isinstance(system, Served)
    try:
        yield system
    finally:
        system.stop()


def equal(system: Served, lengths: list[int], exact: bool = True, held: Sequence[int] = ()) -> None:
    """Every answer is the one that one vLLM gives, and long prompts were prefilled far away, but those of the lengths
    `held`: the gateway knows that home has all but their last token.

    Where sums are not `exact` (bfloat16), near-ties of random weights are flipped by where a prompt is split. There the
    last token of the prompt is one that a single vLLM said itself, and the answer is what it went on with: so both have
    computed the last token apart from the others. What is too short to be handed over is not split, and left out.
    """
    wrong = {}
    for length in lengths if exact else [length for length in lengths if length > THRESHOLD]:
        tokens = prompt(length)
        if exact:
            expected = system.alone(tokens)
        else:
            first, *expected = system.alone(tokens[:-1], made=MADE + 1)
            tokens[-1] = first
        answer = system.ask(tokens)
        assert answer.status_code == 200, (length, answer.text)
        route = answer.headers["x-prfaas-route"]
        away = length > THRESHOLD and length not in held
        assert route.startswith("remote; cluster=far" if away else "local; cluster=home"), (length, route)
        found = answer.json()["choices"][0]["token_ids"]
        if found != expected:
            wrong[length] = (found, expected)
    assert not wrong, f"found, and expected, by length: {wrong}"
