"""Answers have OpenAI's shapes: checked with the official client's own types."""

from __future__ import annotations

import json

from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from prfaas.core.errors import RequestError
from prfaas.wire.openai import AnswerWriter, Finished, error_body, error_detail, error_event, parse_error, usage
from prfaas.wire.sse import EventReader


def test_whole_bodies() -> None:
    chat = ChatCompletion.model_validate_json(
        AnswerWriter("chat", "r1", "m", 7).whole([Finished("hi", "stop")], usage(3, 1)), strict=True
    )
    assert (chat.id, chat.object, chat.created, chat.model) == ("chatcmpl-r1", "chat.completion", 7, "m")
    assert chat.choices[0].message.content == "hi"
    assert chat.choices[0].finish_reason == "stop"
    assert chat.usage is not None
    assert (chat.usage.prompt_tokens, chat.usage.completion_tokens, chat.usage.total_tokens) == (3, 1, 4)
    assert chat.usage.prompt_tokens_details is not None
    assert chat.usage.prompt_tokens_details.cached_tokens == 0
    body = AnswerWriter("completion", "r2", "m", 7).whole([Finished("hi", "length")], usage(3, 1), {"transfer_id": "t"})
    text = Completion.model_validate_json(body, strict=True)
    assert (text.id, text.object, text.choices[0].text, text.choices[0].finish_reason) == (
        "cmpl-r2", "text_completion", "hi", "length",
    )  # fmt: skip
    assert json.loads(body)["kv_transfer_params"] == {"transfer_id": "t"}


def test_chat_stream() -> None:
    writer = AnswerWriter("chat", "r", "m", 7, include_usage=True)
    raw = writer.first() + writer.text("a [DONE]\n\n") + writer.last("stop") + writer.end(usage(3, 2))
    *events, done = EventReader().feed(raw)
    assert done.is_done
    assert not any(event.is_done for event in events)
    role, text, end, used = [ChatCompletionChunk.model_validate_json(event.data) for event in events]
    assert role.choices[0].delta.role == "assistant"
    assert text.choices[0].delta.content == "a [DONE]\n\n"
    assert (end.choices[0].finish_reason, end.choices[0].delta.content) == ("stop", None)
    assert used.choices == []
    assert used.usage is not None
    assert used.usage.total_tokens == 5
    assert {chunk.id for chunk in (role, text, end, used)} == {"chatcmpl-r"}
    assert json.loads(events[1].data)["usage"] is None


def test_completion_stream_without_usage() -> None:
    writer = AnswerWriter("completion", "r", "m", 7)
    assert writer.first() == b""
    text, end, done = EventReader().feed(writer.text("é") + writer.last("length") + writer.end(usage(3, 2)))
    assert done.is_done
    assert json.loads(text.data)["choices"] == [{"index": 0, "text": "é", "logprobs": None, "finish_reason": None}]
    assert Completion.model_validate_json(end.data).choices[0].finish_reason == "length"
    assert "usage" not in json.loads(end.data)


def test_errors() -> None:
    detail = error_detail(RequestError("no such model", status=404, code="model_not_found", param="model"))
    body = error_body(detail)
    error = json.loads(body)["error"]
    assert error == {
        "message": "no such model",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }
    assert parse_error(body) == detail
    assert parse_error(b"<html>") is None
    assert parse_error(b'{"error": "plain"}') is None
    (event,) = EventReader().feed(error_event(detail))
    assert event.name == "error"
    assert not event.is_done
