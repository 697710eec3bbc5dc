"""Real KV over real sockets: what shapes an answer does so the same way, wherever the prompt was prefilled."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from prfaas.testing.noderig import Answer
from tests.e2e.system import SECRET, System
from tests.e2e.texts import licences

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PROMPT = "naïve 😀 "
BODIES: dict[str, dict[str, Any]] = {
    "greedy, scored": {"logprobs": 5},
    "one token": {"max_tokens": 1, "logprobs": 0},
    "several": {"n": 3, "temperature": 1.1, "top_p": 0.95, "seed": 5, "logprobs": 2},
    "stops": {"stop": ["e", "  ", "qu"], "n": 2, "temperature": 1, "seed": 3, "max_tokens": 24},
    "echo": {"echo": True, "logprobs": 3, "max_tokens": 3},
    "echo only": {"echo": True, "logprobs": 1, "max_tokens": 0},
    "chat": {"messages": True, "n": 2, "temperature": 0.8, "seed": 1, "logprobs": True, "top_logprobs": 4},
    "chat, greedy": {"messages": True, "max_completion_tokens": 5},
}


def ask(url: str, body: dict[str, Any]) -> tuple[Answer, str]:
    """The answer, and its route."""
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    got = httpx2.post(url + path, json=body, headers={"Authorization": f"Bearer {SECRET}"}, timeout=120)
    assert got.status_code == 200, got.text
    return Answer(200, {"Content-Type": got.headers["content-type"]}, got.content), got.headers.get(
        "x-prfaas-route", ""
    )


@pytest.mark.parametrize("fields", BODIES.values(), ids=BODIES)
def test_an_answer_is_that_of_one_node_alone(tiny: System, fields: dict[str, Any]) -> None:
    prompt = PROMPT + licences()[:700]
    body: dict[str, Any] = {"model": tiny.model, "temperature": 0, "max_tokens": 8} | fields
    if body.pop("messages", False):
        turns = [("system", "Be brief."), ("user", prompt), ("assistant", "Yes."), ("user", "And then?")]
        body["messages"] = [{"role": role, "content": content} for role, content in turns]
    else:
        body["prompt"] = prompt
    alone, _ = ask(tiny.health_of("home-decode"), body)
    for stream in ({}, {"stream": True, "stream_options": {"include_usage": True}}):
        told, route = ask(tiny.url, body | stream)
        expected = "local; cluster=home; reason=echo" if body.get("echo") else "remote; cluster=far; reason=long"
        assert route == expected
        assert told.choices == alone.choices
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):  # what was cached depends on who was asked
            assert told.usage[name] == alone.usage[name]
    assert len(alone.choices) == body.get("n", 1)
    assert all(not choice.text.startswith(PROMPT) or body.get("echo") for choice in alone.choices)
    tiny.settled()
