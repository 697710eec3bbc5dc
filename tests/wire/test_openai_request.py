"""What a client may send wrongly meets the right OpenAI error; what changes nothing is accepted."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from prfaas.core.errors import RequestError
from prfaas.model.text import packed
from prfaas.wire.control import TransferParams
from prfaas.wire.openai import add_field, parse_chat, parse_completion
from prfaas.wire.openai.fields import reshapes


def completion(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": "a"} | fields).encode()


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]} | fields).encode()


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"prompt": 5}, "prompt", "invalid_type"),
        ({"prompt": None}, "prompt", "invalid_type"),
        ({"prompt": []}, "prompt", "empty_prompt"),
        ({"prompt": [[]]}, "prompt", "empty_prompt"),
        ({"prompt": ["a", "b"]}, "prompt", "several_prompts"),
        ({"prompt": [[1], [2]]}, "prompt", "several_prompts"),
        ({"prompt": [1, "a"]}, "prompt[1]", "invalid_type"),
        ({"prompt": ["a", 1]}, "prompt[1]", "invalid_type"),
        ({"prompt": [[1, None]]}, "prompt[0][1]", "invalid_type"),
        ({"prompt": [{}]}, "prompt[0]", "invalid_type"),
        ({"prompt": [1, True]}, "prompt[1]", "invalid_type"),
        ({"prompt": [1, 2.5]}, "prompt[1]", "invalid_type"),
        ({"model": 3}, "model", "invalid_type"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": -1}, "max_tokens", "invalid_value"),
        ({"max_tokens": "5"}, "max_tokens", "invalid_type"),
        ({"max_tokens": 2**40}, "max_tokens", "invalid_value"),
        ({"temperature": 2.1}, "temperature", "invalid_value"),
        ({"temperature": -0.1}, "temperature", "invalid_value"),
        ({"temperature": "0"}, "temperature", "invalid_type"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"top_p": 1.01}, "top_p", "invalid_value"),
        ({"seed": 1.5}, "seed", "invalid_type"),
        ({"seed": 2**63}, "seed", "invalid_value"),
        ({"stop": ["a"] * 5}, "stop", "invalid_value"),
        ({"stop": ""}, "stop", "invalid_value"),
        ({"stop": ["a", ""]}, "stop", "invalid_value"),
        ({"stop": ["a", 3]}, "stop[1]", "invalid_type"),
        ({"stream": "yes"}, "stream", "invalid_type"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": 9}, "n", "invalid_value"),
        ({"n": True}, "n", "invalid_type"),
        ({"n": 1.0}, "n", "invalid_type"),
        ({"best_of": 3}, "best_of", "unsupported_parameter"),
        ({"best_of": 2, "n": 3}, "best_of", "invalid_value"),
        ({"echo": 1}, "echo", "invalid_type"),
        ({"logprobs": 6}, "logprobs", "invalid_value"),
        ({"logprobs": -1}, "logprobs", "invalid_value"),
        ({"logprobs": True}, "logprobs", "invalid_type"),
        ({"top_logprobs": 2}, "top_logprobs", "unsupported_parameter"),
        ({"prompt": [2**70]}, "prompt[0]", "invalid_value"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "unsupported_parameter"),
        ({"suffix": "x"}, "suffix", "unsupported_parameter"),
        ({"presence_penalty": 0.5}, "presence_penalty", "unsupported_parameter"),
        ({"max_token": 5}, "max_token", "unknown_parameter"),
        ({"messages": []}, "messages", "unknown_parameter"),
        ({"kv_transfer_params": "x"}, "kv_transfer_params", "invalid_type"),
    ],
)
def test_completion_refuses(fields: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_completion(completion(**fields))
    error = caught.value
    assert (error.status, error.kind, error.param, error.code) == (400, "invalid_request_error", param, code)
    assert param.split("[")[0] in error.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 4}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": 1}]}]}, "messages[0].tool_calls"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 9}, "n"),
        ({"echo": True}, "echo"),
        ({"logprobs": 3}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 2}, "top_logprobs"),
        ({"best_of": 2}, "best_of"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"prompt": "a"}, "prompt"),
    ],
)
def test_chat_refuses(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_chat(chat(**fields))
    assert (caught.value.status, caught.value.param) == (400, param)
    assert caught.value.code


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"model":"m","prompt":"a"} x',
        b'{"model":"m","prompt":"\xff"}',
        b'{"model":"m","prompt":"\\ud800 alone"}',
        b'{"model":"m","prompt":"a","temperature":NaN}',
        b'{"model":"m","prompt":"a","temperature":Infinity}',
        b'{"model":"m","prompt":"a","user":"\xed\xa0\x80"}',
        b'{"model":"m","prompt":"a","stop":"\\udc00"}',
        b'{"model":"m","prompt":"a","\\ud83d":1}',
        b'{"model":"m","prompt":"a\x00"}',
        b'\xef\xbb\xbf{"model":"m","prompt":"a"}',
        b'{"model":"m","prompt":' + b"[" * 200_000,
        b'{"model":"m","prompt":"a",}',
        b"{'model':'m','prompt':'a'}",
        b'{"model":"m","prompt":"a","user":' + b"[" * 200_000,
        b'{"model":"m","prompt":"cut o',
    ],
)
def test_broken_json(body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        parse_completion(body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


def test_other_json_than_an_object() -> None:
    with pytest.raises(RequestError, match="Expected `object`, got `array`"):
        parse_chat(b"[]")


def test_missing_fields_are_named() -> None:
    with pytest.raises(RequestError, match="missing required parameter: messages") as caught:
        parse_chat(b'{"model":"m"}')
    assert caught.value.param == "messages"


def test_neutral_and_ignored_fields_are_accepted() -> None:
    nothing = {
        "n": 1, "best_of": None, "echo": False, "logit_bias": {}, "presence_penalty": 0.0, "frequency_penalty": 0,
        "user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "stop": None, "seed": None,
        "temperature": None, "top_k": -1, "suffix": None,
    }  # fmt: skip
    request = parse_completion(completion(**nothing))
    assert request.stops == ()
    assert request.temperature is None
    parse_chat(chat(tools=[], tool_choice="none", response_format={"type": "text"}, logprobs=False, top_logprobs=0))


def test_choices_scores_and_echo() -> None:
    request = parse_completion(completion(n=3, best_of=3, logprobs=0, echo=True, max_tokens=0))
    assert (request.choices, request.likeliest, request.stays, request.max_new_tokens) == (3, 0, "echo", 0)
    request = parse_completion(completion(echo=False, logprobs=5))
    assert (request.choices, request.likeliest, request.stays, request.max_new_tokens) == (1, 5, "", None)
    for fields, likeliest in (
        ({}, None), ({"logprobs": False, "top_logprobs": 0}, None), ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ):  # fmt: skip
        assert parse_chat(chat(**fields)).likeliest == likeliest


@pytest.mark.parametrize("digits", [30, 5000, 400_000])
def test_numbers_of_any_length(digits: int) -> None:
    """Python itself refuses to print an integer of over 4300 digits."""
    for field in ("seed", "max_tokens", "n", "temperature", "logprobs", "prompt"):
        with pytest.raises(RequestError) as caught:
            parse_completion(b'{"model":"m","prompt":"a","%b":1%b}' % (field.encode(), b"0" * digits))
        assert (caught.value.status, caught.value.param) == (400, field)
        assert len(caught.value.message) < 200
    with pytest.raises(RequestError) as caught:
        parse_completion(b'{"model":"m","prompt":[1%b]}' % (b"0" * digits))
    assert caught.value.param == "prompt[0]"


def test_of_a_key_twice_the_last_counts() -> None:
    """As for Python's own reader and most others: gateway, node and a stock vLLM agree."""
    assert parse_completion(b'{"model":"m","prompt":"a","n":3,"prompt":"b","n":2}').prompt == "b"
    assert json.loads(b'{"n":3,"n":2}')["n"] == parse_completion(b'{"model":"m","prompt":"a","n":3,"n":2}').n


def test_prompts() -> None:
    assert parse_completion(completion(prompt="x")).text_or_ids == "x"
    assert parse_completion(completion(prompt=["x"])).text_or_ids == "x"
    assert parse_completion(completion(prompt=[3, 4])).text_or_ids == packed([3, 4])
    assert parse_completion(completion(prompt=[3])).text_or_ids == packed([3])
    assert parse_completion(completion(prompt=[[3, 4]])).text_or_ids == packed([3, 4])
    assert parse_completion(completion(prompt="")).text_or_ids == ""
    assert parse_completion(b'{"model":"m","prompt" : [ \n[ 3,\t4 ] ] }').prompt == packed([3, 4])
    assert parse_completion(b'{"model":"m","prompt": [\n"x" ]}').prompt == "x"


@pytest.mark.parametrize("strange", [-1, 2**32, 2**63 - 1, -(2**63)])
def test_ids_that_no_model_has_are_kept_to_be_refused_by_number(strange: int) -> None:
    for prompt in ([3, strange], [[3, strange]]):
        assert parse_completion(completion(prompt=prompt)).text_or_ids == [3, strange]


def test_chat_messages_and_an_answer_sent_back() -> None:
    nothing: dict[str, Any] = {"refusal": None, "annotations": [], "audio": None, "tool_calls": None}
    answered = {"role": "assistant", "content": "yes"} | nothing
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    turns = [{"role": "system", "content": "s"}, answered, {"role": "user", "content": parts, "name": "ann"}]
    request = parse_chat(chat(messages=turns, max_tokens=5, max_completion_tokens=7))
    assert [m.as_dict() for m in request.messages] == [
        {"role": "system", "content": "s"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "one\ntwo", "name": "ann"},
    ]
    assert request.max_new_tokens == 7


def test_a_field_is_added_without_touching_the_rest() -> None:
    body = b'{"model": "m",  "prompt":"a", "kv_transfer_params": {"transfer_id": "forged"}}\r\n '
    added = add_field(body, "kv_transfer_params", TransferParams(transfer_id="r.1", do_remote_prefill=True))
    assert added.startswith(body.rstrip()[:-1])
    params = msgspec.convert(parse_completion(added).kv_transfer_params, TransferParams)
    assert params == TransferParams(transfer_id="r.1", do_remote_prefill=True)


def test_what_an_engine_checks_itself() -> None:
    """Before vLLM, fields that are not known here pass; ranges of those that are known hold all the same."""
    body = msgspec.json.encode({"model": "m", "prompt": "x", "top_k": 5, "of_tomorrow": {"a": 1}})
    assert parse_completion(body, engine_checks=True).prompt == "x"
    with pytest.raises(RequestError):
        parse_completion(body)
    chat = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}]}
    assert parse_chat(msgspec.json.encode(chat), engine_checks=True).messages[0].text == "x"
    with pytest.raises(RequestError, match="temperature"):
        parse_chat(msgspec.json.encode(chat | {"temperature": 9}), engine_checks=True)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, False),
        ({"top_k": 5, "min_p": 0.1, "unknown": 1}, False),
        ({"tools": []}, False),
        ({"tools": None, "add_generation_prompt": True, "chat_template_kwargs": {}}, False),
        ({"tools": [{"type": "function"}]}, True),
        ({"add_generation_prompt": False}, True),
        ({"cache_salt": "a"}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}}, True),
        ({"prompt_logprobs": 0}, True),
    ],
)
def test_fields_by_which_an_engine_makes_another_prompt(fields: dict[str, Any], expected: bool) -> None:
    assert reshapes(msgspec.json.encode({"model": "m", "prompt": "x"} | fields)) is expected
