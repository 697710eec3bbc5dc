"""Bodies of every shape at the gateway: a valid answer or an OpenAI error, never a 500, and nothing left behind."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion

from prfaas.testing.bytemodel import VOCAB, write_byte_model
from prfaas.testing.grid import Grid, two_clusters
from prfaas.testing.noderig import MODEL, Answer, Rig
from prfaas.wire.openai.fields import IGNORED, NEUTRAL
from prfaas.wire.openai.request import ChatCompletionRequest, CompletionRequest

KINDS = {"/v1/completions": CompletionRequest, "/v1/chat/completions": ChatCompletionRequest}

words = st.text(max_size=12) | st.sampled_from(["", "data: [DONE]\n\n", "\x00", "é😀", "</s>", "x" * 300])
numbers = (
    st.integers(-3, 25)
    | st.sampled_from([2**31 - 1, 2**31, -(2**63), 2**63, 10**40, 0.5, -0.0, 1e308, 1.0])
    | st.floats(width=16)
)
plain = st.none() | st.booleans() | numbers | words | st.just("\ud800")
anything = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=3), max_leaves=8
)
ids = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=130)
parts = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": words}), max_size=3)
message = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["system", "user", "assistant", "developer", "tool"]),
        "content": words | parts | anything,
    },
    optional={"name": words, "tool_calls": st.just([]) | anything, "refusal": st.none()},
)
right: dict[str, st.SearchStrategy[Any]] = {
    "model": st.just(MODEL),
    "prompt": words | ids | st.lists(words, max_size=2) | st.text(min_size=60, max_size=130),
    "messages": st.lists(message, min_size=1, max_size=4) | st.lists(message | anything, max_size=2),
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}),
    "max_tokens": st.integers(0, 12),
    "max_completion_tokens": st.integers(1, 12),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0.01, 1),
    "n": st.integers(1, 8),
    "best_of": st.just(1) | st.integers(1, 3),
    "seed": st.integers(-(2**63), 2**63 - 1),
    "stop": st.text(min_size=1, max_size=3) | st.lists(words, max_size=5),
    "logprobs": st.none() | st.integers(0, 5) | st.booleans(),
    "top_logprobs": st.integers(0, 20),
    "echo": st.booleans(),
    "ignore_eos": st.booleans(),
}
"""Values that may be right, by field."""
others = st.sampled_from([*sorted(IGNORED), *NEUTRAL, "max_token", "", "\ud800", "prompt "])


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    """A path and a body: mostly right fields, some wrong values or unknown names; sometimes cut, or bytes changed."""
    path = draw(st.sampled_from(sorted(KINDS)))
    names = sorted(KINDS[path].__struct_fields__)
    needed = {"model", "prompt" if path == "/v1/completions" else "messages"}
    chosen = needed | set(draw(st.lists(st.sampled_from([name for name in names if name in right]), max_size=5)))
    body = {name: draw(right[name]) for name in sorted(chosen)}
    if draw(st.integers(0, 3)) == 0:
        body[draw(st.sampled_from(names))] = draw(anything)
    if draw(st.integers(0, 3)) == 0:
        name = draw(others)
        body[name] = draw(st.sampled_from(NEUTRAL[name])) if NEUTRAL.get(name) else draw(anything)
    raw = json.dumps(body, ensure_ascii=draw(st.booleans())).encode(errors="surrogatepass")
    match draw(st.sampled_from(["whole"] * 12 + ["cut", "changed", "twice", "noise"])):
        case "cut":
            raw = raw[: draw(st.integers(0, len(raw)))]
        case "changed":
            at = draw(st.integers(0, len(raw)))
            raw = raw[:at] + draw(st.binary(max_size=3)) + raw[at + draw(st.integers(0, 2)) :]
        case "twice":
            raw = raw[:-1] + b"," + json.dumps({draw(st.sampled_from(names)): draw(anything)}).encode()[1:]
        case "noise":
            raw = draw(st.binary(max_size=40))
    return path, raw


@pytest.fixture
async def grid(tmp_path: Path) -> AsyncIterator[Grid]:
    """One grid for all examples of a test."""
    async with AsyncExitStack() as stack:
        rig = Rig(write_byte_model(tmp_path / "model"), stack)
        far, home = [await rig.node("far-p", "prefill")], [await rig.node("home-p", "prefill")]
        decoders = [await rig.node("home-d", "decode")]
        async with two_clusters(rig, far=far, home=home, decoders=decoders, queue_length=64) as made:
            yield made


@given(asked=bodies())
@example(asked=("/v1/completions", b'{"model":"derived","prompt":' + b"[" * 100_000))
@example(asked=("/v1/completions", b'{"model":"derived","prompt":[1' + b"0" * 5000 + b"]}"))
@example(asked=("/v1/completions", b'{"model":"derived","prompt":"\xff"}'))
@example(asked=("/v1/completions", b'{"model":"derived","prompt":"","metadata":[["\xed\xa0\x80"]]}'))
@example(asked=("/v1/completions", b'{"model":"' + b"\\u0000" * 100_000 + b'","prompt":"a"}'))
@example(asked=("/v1/completions", b'{"model":"derived","prompt":"a","x":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001))
@example(asked=("/v1/chat/completions", b'{"model":"derived","messages":[' + b'{"role":"user","content":""},' * 9000))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@pytest.mark.slow
async def test_bodies(grid: Grid, asked: tuple[str, bytes]) -> None:
    path, raw = asked
    async with grid.session.post(grid.front.url + path, data=raw) as response:
        answer = Answer(response.status, dict(response.headers), await response.read())
    if answer.status == 200:
        valid(path, msgspec.json.decode(raw), answer)
    else:
        assert answer.status in (400, 404, 413), answer.body
        error = answer.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        assert error["message"]
        assert len(answer.body) < 2000
    await grid.settled()


def valid(path: str, body: dict[str, Any], answer: Answer) -> None:
    """An answer of the shape that was asked for."""
    told, scored = answer.choices, not any(body.get("logprobs") is nothing for nothing in (None, False))
    assert len(told) == (body.get("n") or 1)
    assert answer.streamed == bool(body.get("stream"))
    for choice in told:
        assert choice.finish in ("stop", "length")
        assert (choice.logprobs is not None) == scored
    if answer.streamed:
        assert [event.is_done for event in answer.events] == [False] * (len(answer.events) - 1) + [True]
        assert not any(event.name == "error" for event in answer.events)
    else:
        if body.get("echo"):  # the client's types know no null for a first token
            return
        shape = Completion if path == "/v1/completions" else ChatCompletion
        shape.model_validate_json(answer.body, strict=True)
        assert answer.usage["total_tokens"] == answer.usage["prompt_tokens"] + answer.usage["completion_tokens"]
