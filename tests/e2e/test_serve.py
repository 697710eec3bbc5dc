"""The system that `prfaas up` started, over its public port, with the official client. Greedy answers of every route
must equal what one process says that computes it all."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import httpx2
import openai
import pytest

from tests.e2e.conftest import Reference
from tests.e2e.system import System, until
from tests.e2e.texts import licences

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

LONG, SHORT = 3000, 40
"""Characters, which are tokens of the tiny model; the example's threshold is 512."""


def route(headers: httpx2.Headers) -> tuple[str, str, str]:
    """What x-prfaas-route says: route, cluster, reason."""
    route, cluster, reason, *_ = (part.strip() for part in headers["x-prfaas-route"].split(";"))
    return route, cluster.removeprefix("cluster="), reason.removeprefix("reason=")


@pytest.fixture
def client(tiny: System) -> Iterator[openai.OpenAI]:
    with tiny.client() as client:
        yield client


@pytest.mark.parametrize(("size", "where"), [(LONG, ("remote", "far", "long")), (SHORT, ("local", "home", "short"))])
@pytest.mark.parametrize("stream", [False, True])
def test_a_long_text_goes_remote_and_a_question_stays(
    tiny: System, client: openai.OpenAI, one_process: Reference, size: int, where: tuple[str, str, str], stream: bool
) -> None:
    prompt = licences()[:size]
    link = "far->home" if where[0] == "remote" else "home->home"
    before = tiny.metric("home-decode", "prfaas_kv_bytes_total", link=link)
    raw = client.completions.with_raw_response.create(
        model=tiny.model,
        prompt=prompt,
        max_tokens=24,
        temperature=0,
        stream=stream,
        extra_body={"stream_options": {"include_usage": True}} if stream else {},
    )
    assert route(raw.headers) == where
    if stream:
        chunks = list(raw.parse())
        text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
        usage = chunks[-1].usage
        assert len(chunks) > 3, "the answer came in one piece"
    else:
        answer = raw.parse()
        text, usage = answer.choices[0].text, answer.usage
    assert text == one_process(prompt, 24)
    assert usage is not None
    assert usage.prompt_tokens == size
    assert usage.completion_tokens <= 24
    assert tiny.metric("home-decode", "prfaas_kv_bytes_total", link=link) > before
    tiny.settled()


@pytest.mark.parametrize("size", [1, 2, 511, 512, 513, 514, 1025])
def test_every_route_gives_the_same_tokens(
    tiny: System, client: openai.OpenAI, one_process: Reference, size: int
) -> None:
    prompt = licences()[3 * size : 4 * size]  # prompts that begin alike are cached
    raw = client.completions.with_raw_response.create(model=tiny.model, prompt=prompt, max_tokens=8, temperature=0)
    expected = "single" if size == 1 else "short" if size <= 512 else "long"
    assert route(raw.headers)[2] == expected
    assert raw.parse().choices[0].text == one_process(prompt, 8)


def test_chat_with_several_turns_and_stop(tiny: System, client: openai.OpenAI) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": licences()[:1200]},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "And?"},
    ]
    raw = client.chat.completions.with_raw_response.create(
        model=tiny.model,
        messages=messages,
        max_tokens=12,
        temperature=0,  # type: ignore[arg-type]
    )
    assert route(raw.headers)[0] == "remote"
    whole = raw.parse().choices[0].message.content
    assert whole
    stop = whole[len(whole) // 2 :][:1]
    cut = client.chat.completions.create(
        model=tiny.model,
        messages=messages,
        max_tokens=12,
        temperature=0,
        stop=[stop],  # type: ignore[arg-type]
    )
    assert cut.choices[0].message.content == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


def test_seeds_repeat(tiny: System, client: openai.OpenAI) -> None:
    def ask(seed: int) -> str:
        answer = client.completions.create(
            model=tiny.model, prompt=licences()[:700], max_tokens=16, temperature=1.0, top_p=0.9, seed=seed
        )
        return answer.choices[0].text

    assert ask(7) == ask(7)
    assert len({ask(seed) for seed in range(4)}) > 1


def test_errors_have_openai_bodies(tiny: System, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.completions.create(model="gpt-9", prompt="x")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model=tiny.model, prompt="x", temperature=9)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.APIStatusError) as long:
        client.completions.create(model=tiny.model, prompt=[1] * 1000, max_tokens=10_000_000)
    assert long.value.status_code == 413
    assert long.value.code == "context_length_exceeded"
    answer = httpx2.post(tiny.url + "/v1/completions", content=b'{"model": "tiny', timeout=10)
    assert answer.status_code == 400
    assert set(json.loads(answer.content)["error"]) == {"message", "type", "param", "code"}
    tiny.settled()


def test_a_deadline_is_a_504_and_leaves_nothing(tiny: System) -> None:
    answer = httpx2.post(
        tiny.url + "/v1/completions",
        json={"model": tiny.model, "prompt": licences()[:4000], "max_tokens": 400, "temperature": 0},
        headers={"x-prfaas-deadline-ms": "150"},
        timeout=30,
    )
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "deadline_exceeded"
    tiny.settled()


def test_a_client_that_leaves_stops_the_work_on_both_sides(tiny: System) -> None:
    body = {"model": tiny.model, "prompt": licences()[:6000], "max_tokens": 2000, "temperature": 0, "stream": True}
    gone = tiny.metric("home", "prfaas_requests_total", outcome="gone")
    with pytest.raises(httpx2.ReadTimeout):
        httpx2.post(tiny.url + "/v1/completions", json=body, timeout=httpx2.Timeout(10, read=0.3))
    until("the gateway books it", lambda: tiny.metric("home", "prfaas_requests_total", outcome="gone") == gone + 1)
    tiny.settled()


def test_models_health_and_metrics(tiny: System, client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [tiny.model]
    assert client.models.retrieve(tiny.model).id == tiny.model
    assert httpx2.get(tiny.url + "/health", timeout=5).status_code == 200
    assert tiny.metric("home", "prfaas_requests_total", route="remote", outcome="ok") > 0
    assert tiny.metric("home", "prfaas_requests_total", route="local", outcome="ok") > 0
    assert tiny.metric("home", "prfaas_stage_seconds_count", stage="queue") > 0
    assert tiny.metric("far-prefill", "vllm:prompt_tokens_total") > 0


def test_a_node_refuses_who_does_not_know_the_secret(tiny: System) -> None:
    answer = httpx2.post(
        tiny.health_of("far-prefill") + "/v1/completions", json={"model": tiny.model, "prompt": "x"}, timeout=5
    )
    assert answer.status_code == 401


def test_a_dead_prefill_service_is_a_visible_fallback(
    tiny: System, client: openai.OpenAI, one_process: Reference
) -> None:
    prompt = licences()[:LONG]
    dead = tiny.kill("far")
    raw = client.completions.with_raw_response.create(model=tiny.model, prompt=prompt, max_tokens=8, temperature=0)
    said = route(raw.headers)
    assert said[:2] == ("local", "home")
    assert said[2] in ("unreachable", "retry")
    assert raw.parse().choices[0].text == one_process(prompt, 8)
    tiny.restored("far", dead)

    starts = itertools.count(5000, 64)

    def remote_again() -> bool:
        fresh = licences()[(at := next(starts)) : at + LONG]  # what home had to compute is cached there
        raw = client.completions.with_raw_response.create(model=tiny.model, prompt=fresh, max_tokens=1)
        return route(raw.headers)[0] == "remote"

    until("the far cluster is used again", remote_again)
    tiny.settled()


def test_a_dead_decode_node_is_one_clear_error_or_an_answer_later(tiny: System, client: openai.OpenAI) -> None:
    dead = tiny.kill("home-decode")
    with pytest.raises(openai.APIStatusError) as none:
        client.completions.create(model=tiny.model, prompt=licences()[:LONG], max_tokens=4)
    assert none.value.status_code in (502, 503)
    tiny.restored("home-decode", dead)
    until("the gateway sees it", lambda: httpx2.get(tiny.url + "/health", timeout=5).status_code == 200)
    client.completions.create(model=tiny.model, prompt=licences()[:LONG], max_tokens=4)
    tiny.settled()
