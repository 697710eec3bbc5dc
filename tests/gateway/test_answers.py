"""What the gateway answers equals what one node alone answers to the same body: for every option that shapes an answer,
prefilled far away, at home or nowhere else, streamed or not."""

from __future__ import annotations

from typing import Any

import pytest

from prfaas.testing.grid import Grid, two_clusters
from prfaas.testing.noderig import MODEL, Answer, Rig

LONG, SHORT = "The quick brown fox jumps over the lazy dog. " * 4, "hello wörld"
REMOTE, LOCAL, ECHO = (
    "remote; cluster=far; reason=long",
    "local; cluster=home; reason=short",
    "local; cluster=home; reason=echo",
)
TURNS = [
    {"role": "system", "content": "Be brief. "},
    {"role": "user", "content": "é😀 " * 20},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": [{"type": "text", "text": "And"}, {"type": "text", "text": "then?"}]},
]

COMPLETIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one token": {"max_tokens": 1},
    "several": {"n": 3, "temperature": 1, "seed": 5},
    "as many as there may be": {"n": 8, "temperature": 1, "seed": -3, "max_tokens": 3},
    "several, no chance": {"n": 2},
    "scored": {"logprobs": 5},
    "scored, itself only": {"logprobs": 0, "max_tokens": 1},
    "several, scored": {"n": 4, "temperature": 1.5, "seed": 9, "logprobs": 2},
    "best of as many": {"n": 2, "best_of": 2, "temperature": 1, "seed": 1},
    "stops": {"stop": ["aa", "bb", "\n", "zz"], "max_tokens": 60},
    "stops, several, scored": {
        "stop": ["a", "e", "5"], "n": 3, "temperature": 1, "seed": 2, "logprobs": 1, "max_tokens": 60,
    },
}  # fmt: skip
ECHOES: dict[str, dict[str, Any]] = {
    "echo": {"echo": True},
    "echo only": {"echo": True, "max_tokens": 0},
    "echo only, scored": {"echo": True, "max_tokens": 0, "logprobs": 1},
    "echo, scored": {"echo": True, "max_tokens": 4, "logprobs": 5},
    "echo, several, scored": {"echo": True, "max_tokens": 2, "logprobs": 0, "n": 3, "seed": 1, "temperature": 1},
}
CHATS: dict[str, dict[str, Any]] = {
    "turns": {},
    "one token": {"max_tokens": 1},
    "the newer name": {"max_completion_tokens": 2, "max_tokens": 5},
    "several": {"n": 3, "temperature": 1, "seed": 8},
    "scored": {"logprobs": True},
    "scored, others": {"logprobs": True, "top_logprobs": 20, "n": 2, "temperature": 0.7, "seed": 1},
    "stops": {"stop": ["q", "8"], "max_tokens": 60},
}


async def both(grid: Grid, path: str, body: dict[str, Any], stream: bool) -> tuple[Answer, Answer]:
    """Alone, and by the gateway; equal in all but names and times."""
    if stream:
        body = body | {"stream": True, "stream_options": {"include_usage": True}}
    alone = await grid.decoders[0].post(path, body)
    told = await grid.post(path, body)
    assert (alone.status, told.status) == (200, 200), told.body
    assert told.choices == alone.choices
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):  # what was cached depends on who was asked
        assert told.usage[name] == alone.usage[name]
    assert told.streamed == alone.streamed == stream
    assert len(told.choices) == body.get("n", 1)
    assert all(choice.finish in ("stop", "length") for choice in told.choices)
    if stream:
        assert [event.is_done for event in told.events] == [False] * (len(told.events) - 1) + [True]
    return alone, told


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("prompt", "way"), [(LONG, REMOTE), (SHORT, LOCAL), ([65] * 120, REMOTE)])
@pytest.mark.parametrize("fields", COMPLETIONS.values(), ids=COMPLETIONS)
async def test_completions(grid: Grid, fields: dict[str, Any], prompt: Any, way: str, stream: bool) -> None:
    body = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 12} | fields
    _, told = await both(grid, "/v1/completions", body, stream)
    assert told.headers["x-prfaas-route"] == way
    seen = [node.engine.seen for node in (*grid.far_nodes, *grid.home_nodes)]
    assert sum(counts["prefill"] for counts in seen) == 1
    assert grid.decoders[0].engine.seen["landed"] == body.get("n", 1), "one hand-over serves all choices"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", [LONG, SHORT, [65] * 120], ids=["long", "short", "ids"])
@pytest.mark.parametrize("fields", ECHOES.values(), ids=ECHOES)
async def test_echoes_are_computed_whole(grid: Grid, fields: dict[str, Any], prompt: Any, stream: bool) -> None:
    body = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 12} | fields
    _, told = await both(grid, "/v1/completions", body, stream)
    assert told.headers["x-prfaas-route"] == ECHO
    assert all(node.engine.seen["prefill"] == 0 for node in (*grid.far_nodes, *grid.home_nodes))
    text = prompt if isinstance(prompt, str) else "A" * 120
    assert all(choice.text.startswith(text) for choice in told.choices)
    assert told.usage["completion_tokens"] == body["max_tokens"] * body.get("n", 1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("turns", "way"), [(TURNS, REMOTE), (TURNS[2:3], LOCAL)], ids=["long", "short"])
@pytest.mark.parametrize("fields", CHATS.values(), ids=CHATS)
async def test_chats(grid: Grid, fields: dict[str, Any], turns: Any, way: str, stream: bool) -> None:
    body = {"model": MODEL, "messages": turns, "temperature": 0, "max_tokens": 12} | fields
    _, told = await both(grid, "/v1/chat/completions", body, stream)
    assert told.headers["x-prfaas-route"] == way
    assert grid.decoders[0].engine.seen["landed"] == body.get("n", 1)


async def test_each_choice_has_the_seed_after_the_one_before(grid: Grid) -> None:
    many = await grid.complete(LONG, n=3, seed=40, temperature=1, max_tokens=9)
    single = [await grid.complete(LONG, seed=40 + index, temperature=1, max_tokens=9) for index in range(3)]
    assert [choice.text for choice in many.choices] == [one.text for one in single]
    assert len({choice.text for choice in many.choices}) == 3
    assert many.usage["prompt_tokens"] == single[0].usage["prompt_tokens"]
    assert many.usage["completion_tokens"] == sum(one.usage["completion_tokens"] for one in single)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", [LONG, SHORT])
async def test_text_that_is_hard_to_cut(rig: Rig, prompt: str, stream: bool) -> None:
    """Characters of two to four bytes, an end mark of a stream, and stop strings across all of that."""
    far, home = [await rig.node("far-p", "prefill")], [await rig.node("home-p", "prefill")]
    decoder = await rig.node("home-d", "decode")
    async with two_clusters(rig, far=far, home=home, decoders=[decoder]) as grid:
        for text, stop, expected in (
            ("data: [DONE]\n\ndata: [DONE]\r\n\r\n: é\x00\x85", None, None),
            ("naïve 日本語 👩‍👩‍👧 done", None, None),
            ("naïve 日本語 👩‍👩‍👧 done", ["👩‍👧"], "naïve 日本語 👩‍"),
            ("日本語。日本人", ["本人", "語。本"], "日本語。日"),
            ("one\n\nUser: two", ["\nUser:", "\n\nAssistant"], "one\n"),
            ("[DONE] data: [DONE", ["data: [DONE]"], "[DONE] data: [DONE"),
            ("ends in half 😀", ["😁"], "ends in half 😀"),
        ):
            decoder.engine.answer = [*text.encode()]
            body = {"model": MODEL, "prompt": prompt, "max_tokens": 80, "n": 2, "logprobs": 0}
            _, told = await both(grid, "/v1/completions", body | {"stop": stop}, stream)
            assert [choice.text for choice in told.choices] == [text if expected is None else expected] * 2
            if stream:
                pieces = [choice["text"] for chunk in told.chunks for choice in chunk["choices"]]
                assert not any("\ufffd" in piece for piece in pieces)
        await grid.settled()


async def test_an_echo_is_bounded_by_what_a_decode_node_computes_itself(rig: Rig) -> None:
    far, home = [await rig.node("far-p", "prefill")], [await rig.node("home-p", "prefill")]
    async with two_clusters(
        rig, far=far, home=home, decoders=[await rig.node("home-d", "decode")], whole_limit=100
    ) as grid:
        answer = await grid.complete(LONG, echo=True, max_tokens=1)
        assert (answer.status, answer.code) == (413, "context_length_exceeded")
        assert "echo" in answer.message
        assert "100" in answer.message
        assert (await grid.complete(LONG, max_tokens=1)).status == 200
        assert (await grid.complete([65] * 399, echo=True, max_tokens=2)).status == 413
        await grid.settled()
