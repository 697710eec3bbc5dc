"""Other models and connectors through a gateway, each in a system of its own: vLLM servers are too big to keep many."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.e2e.system import alive, until
from tests.e2e.texts import licences
from tests.vllm.pair import ROOT
from tests.vllm.served import LENGTHS, THRESHOLD, Served, equal, prompt, served, topology

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
Tiny = Callable[[str], Path]


@pytest.mark.parametrize(("kind", "dtype"), [("falcon_h1", "float32"), ("qwen3_next", "bfloat16")])
def test_recurrent_layers_beside_attention(tiny: Tiny, tmp_path: Path, kind: str, dtype: str) -> None:
    with served(topology(tiny(kind), dtype=dtype), tmp_path) as system:
        equal(system, LENGTHS, exact=dtype == "float32")
        if dtype == "float32":  # else a prefix that is known moves the split, and near-ties flip
            equal(system, LENGTHS[-8:], held=[1025])  # its state was handed over where one is kept
        system.all_free()


@pytest.mark.parametrize("kind", ["gemma3", "falcon_h1"])
def test_stock_nixl(tiny: Tiny, tmp_path: Path, kind: str) -> None:
    with served(topology(tiny(kind), "nixl"), tmp_path) as system:
        shaken_hands(system, 40, "remote; cluster=far; reason=long")
        equal(system, LENGTHS)
        equal(system, LENGTHS[-3:])


def test_ours_between_clusters_and_nixl_inside(tiny: Tiny, tmp_path: Path) -> None:
    """Both connectors in one vLLM: which of them a request is for, its parameters say."""
    text = (
        topology(tiny("gemma3"))
        .replace("inside: prfaas", "inside: nixl")
        .replace("connector: nixl", "connector: prfaas")
    )
    decode = next(line for line in text.splitlines() if "home-decode" in line)
    more = decode.replace("home-decode", "home-prefill").replace("role: decode", "role: prefill")
    both = decode.replace("}]", "}, " + more.strip().removeprefix("nodes: [").removesuffix("]") + "]")
    text = text.replace(decode, both).replace(f"threshold: {THRESHOLD}", "threshold: 400")
    with served(text, tmp_path) as system:
        shaken_hands(system, 40, "local; cluster=home; reason=short")
        for length in (50, 300, 399, 401, 900, 2000):
            answer = system.ask(prompt(length))
            assert answer.status_code == 200, answer.text
            route = "remote; cluster=far; reason=long" if length > 400 else "local; cluster=home; reason=short"
            assert answer.headers["x-prfaas-route"] == route
            assert answer.json()["choices"][0]["token_ids"] == system.alone(prompt(length)), length
        assert system.metric("home-prefill", "vllm:prompt_tokens_total") > 700  # those of the short ones
        assert system.control("home-decode", "prfaas_kv_bytes_total") > 0
        system.all_free()


def shaken_hands(system: Served, length: int, route: str) -> None:
    """NIXL gives its first handshake five seconds, which a busy machine may not keep: the request goes another way."""
    until("NIXL works", lambda: system.ask(prompt(length)).headers["x-prfaas-route"] == route)


def test_real_weights(tmp_path: Path) -> None:
    """examples/vllm-two-clusters.yaml: a licence goes far away, a question stays, both in words. Ctrl-C ends it all."""
    subprocess.run([sys.executable, "-m", "prfaas.cli.main", "fetch", "gemma3-270m"], check=True)
    system = Served.start(ROOT / "examples" / "vllm-two-clusters.yaml", tmp_path)
    try:
        client = system.client()
        ask = partial(client.completions.with_raw_response.create, model="gemma3-270m", max_tokens=12, temperature=0)
        text = licences()[:3000]
        for question, route in ("The capital of France is", "local; cluster=home"), (text, "remote; cluster=far"):
            answer = ask(prompt=question)
            assert answer.headers["x-prfaas-route"].startswith(route)
            alone = system.ask(question, "home-decode", model="gemma3-270m", cache_salt="alone", ignore_eos=False)
            assert answer.parse().choices[0].text == alone.json()["choices"][0]["text"]
        system.all_free()
        started = [pid for leader in system.pids.values() for pid in session(leader)]
        assert len(started) >= 4 + 2 * 2  # the heads and servers, and each vLLM's engine and worker
    finally:
        assert system.stop() == 0
    until("all processes have ended", lambda: not any(map(alive, started)))


def session(leader: int) -> list[int]:
    """The processes of the session that a process began: programs that `up` starts, and what they start."""
    found = subprocess.run(["ps", "-o", "pid=", "-s", str(leader)], capture_output=True, text=True, check=True)
    return [int(pid) for pid in found.stdout.split()]
