"""Through a gateway, remote prefill, a connector and decode: equal to one vLLM that does both, and what breaks."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from tests.e2e.system import SECRET, until
from tests.vllm.served import LENGTHS, Served, equal, prompt, served, topology

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
Tiny = Callable[[str], Path]


@pytest.fixture(scope="module")
def gemma(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Sliding-window and full attention, prefix caches on, and a line so thin that a long prompt's KV takes seconds."""
    with served(topology(tiny("gemma3"), mbps=25), tmp_path_factory.mktemp("gemma")) as system:
        yield system


def test_sliding_windows(gemma: Served) -> None:
    equal(gemma, LENGTHS)
    gemma.all_free()
    only_with_the_secret(gemma.health_of("home-decode"))
    log = gemma.log("home-decode")
    assert "POST /v1/completions" in log
    assert "GET /health HTTP" not in log
    assert "GET /metrics HTTP" not in log
    assert re.search(r" INFO \d\d-\d\d \d\d:\d\d:\d\d \[\S+\] prfaas: node home-decode takes KV on ", log)
    # What the decode node told of its prefix cache.
    assert gemma.metric("home", "prfaas_kv_events_total", node="home-decode", kind="stored") > 0
    assert gemma.metric("home", "prfaas_kv_events_total", node="home-decode", kind="broken") == 0


def only_with_the_secret(url: str) -> None:
    """All that vLLM lists, and what it leaves out of the list; health and metrics are for all."""
    key = {"Authorization": f"Bearer {SECRET}"}
    assert httpx2.get(url + "/openapi.json").status_code == 401
    listed = httpx2.get(url + "/openapi.json", headers=key, timeout=60).json()["paths"]
    routes = [(path, method) for path, methods in listed.items() for method in methods]
    assert {("/invocations", "post"), ("/tokenize", "post"), ("/v1/completions", "post")} <= set(routes)
    for path, method in [*routes, ("/metrics/x", "get"), ("/docs", "get"), ("/nothing", "post")]:
        expected = 200 if (path, method) in (("/health", "get"), ("/metrics", "get")) else 401
        assert httpx2.request(method.upper(), url + path, timeout=60).status_code == expected, (method, path)
    made = httpx2.post(url + "/tokenize", json={"model": "m", "prompt": "a"}, headers=key, timeout=60)
    assert made.status_code == 200, made.text


def test_again_with_prefixes_that_are_known_only_the_rest_crosses(gemma: Served) -> None:
    longer = [prompt(length) + prompt(length + 7)[:200] for length in (1000, 2500)]
    for tokens in longer:
        gemma.tokens(tokens[:-200], "home-decode")
    before = gemma.control("home-decode", "prfaas_kv_bytes_total")
    gemma.tokens(longer[1])
    increment = gemma.control("home-decode", "prfaas_kv_bytes_total") - before
    assert 0 < increment < 700 * 4096  # 4 layers, 2 heads of 64, k and v, 4 bytes: 4 KiB a token at the most
    assert [gemma.tokens(tokens) for tokens in longer] == [gemma.alone(tokens) for tokens in longer]
    equal(gemma, LENGTHS[-8:])
    gemma.all_free()


def test_several_at_once_streamed_and_whole(gemma: Served) -> None:
    expected = {length: gemma.alone(prompt(length)) for length in LENGTHS[8:20]}
    found: dict[int, list[int]] = {}

    def ask(length: int) -> None:
        if length % 2:
            found[length] = gemma.tokens(prompt(length))
            return
        text = gemma.ask(prompt(length), stream=True).text
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        found[length] = [token for event in events for choice in event["choices"] for token in choice["token_ids"]]
        assert text.endswith("data: [DONE]\n\n")

    threads = [threading.Thread(target=ask, args=(length,)) for length in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected
    gemma.all_free()


def test_what_one_vllm_answers(gemma: Served) -> None:
    """Too long, several choices, log-probabilities, a bad value."""
    answer = gemma.ask(prompt(4095), max_tokens=50)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    tokens = prompt(300)
    answer = gemma.ask(tokens, n=3, temperature=0.8)
    assert answer.headers["x-prfaas-route"] == "local; cluster=home; reason=several_choices"
    assert len(answer.json()["choices"]) == 3
    answer = gemma.ask(tokens, logprobs=2)
    assert answer.headers["x-prfaas-route"].startswith("remote")
    alone = gemma.ask(tokens, "home-decode", logprobs=2, cache_salt="alone").json()["choices"][0]["logprobs"]
    assert answer.json()["choices"][0]["logprobs"]["tokens"] == alone["tokens"]
    assert gemma.ask(tokens, top_k=-7).status_code == 400
    gemma.all_free()


def test_a_client_that_leaves_before_the_first_token(gemma: Served) -> None:
    with pytest.raises(httpx2.TimeoutException):
        httpx2.post(gemma.url + "/v1/completions", json={"model": "m", "prompt": prompt(3010)}, timeout=0.3)
    gemma.all_free()
    assert gemma.tokens(prompt(3010)) == gemma.alone(prompt(3010))


def in_transfer(system: Served, tokens: list[int], broken: Callable[[], None]) -> httpx2.Response:
    """The answer to a prompt while whose KV is on its way something is broken."""
    answers: list[httpx2.Response] = []
    asking = threading.Thread(target=lambda: answers.append(system.ask(tokens)))
    before = system.control("home-decode", "prfaas_kv_bytes_total")
    asking.start()
    until("KV arrives", lambda: system.control("home-decode", "prfaas_kv_bytes_total") > before)
    broken()
    asking.join()
    return answers[0]


def test_the_prefill_node_is_killed_in_mid_transfer(gemma: Served) -> None:
    tokens = prompt(3020)
    expected = gemma.alone(tokens)
    dead: list[int] = []
    answer = in_transfer(gemma, tokens, lambda: dead.append(gemma.kill("far-prefill")))
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["token_ids"] == expected
    assert answer.headers["x-prfaas-route"] == "local; cluster=home; reason=retry"
    gemma.restored("far-prefill", dead[0])
    gemma.all_free()
    assert gemma.ask(prompt(3021)).headers["x-prfaas-route"].startswith("remote")


def test_the_decode_node_is_killed_in_mid_transfer(gemma: Served) -> None:
    dead: list[int] = []
    answer = in_transfer(gemma, prompt(3030), lambda: dead.append(gemma.kill("home-decode")))
    assert answer.status_code in (502, 503), answer.text
    assert "error" in answer.json()
    gemma.restored("home-decode", dead[0])
    gemma.all_free()
    assert gemma.tokens(prompt(3030)) == gemma.alone(prompt(3030))
