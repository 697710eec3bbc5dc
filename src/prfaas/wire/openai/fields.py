"""Which fields of OpenAI's (and vLLM's) requests change nothing here, and which would change the answer.

It knows names and neutral values. A field that would change the answer is refused by name unless its value asks for
nothing; a field that nobody knows is refused too: a silent typo (`max_token`) is a wrong answer. Before vLLM all that
is vLLM's business: there it only matters which fields change the prompt, since a gateway does not know its tokens then.
"""

from __future__ import annotations

from typing import Any

import msgspec

from prfaas.core.errors import RequestError

IGNORED = frozenset({
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "prediction", "parallel_tool_calls", "request_id", "priority",
})  # fmt: skip
"""Accepted, and without effect on the answer."""

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "tools": ([],),
    "tool_choice": ("none",),
    "functions": ([],),
    "function_call": ("none",),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "top_k": (0, -1),
    "min_p": (0,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "truncate_prompt_tokens": (),
    "add_special_tokens": (),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "cache_salt": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "documents": ([],),
}
"""Known, not supported, and the values (beside null) that ask for nothing."""


RESHAPING = frozenset({
    "suffix", "prompt_logprobs", "tools", "functions", "documents", "truncate_prompt_tokens", "add_special_tokens",
    "cache_salt", "chat_template", "chat_template_kwargs", "add_generation_prompt", "continue_final_message",
    "reasoning_effort", "prompt_embeds", "mm_processor_kwargs", "return_prompt_text",
})  # fmt: skip
"""Fields by which an engine makes another prompt of it, scores the prompt, or keeps its cache apart."""


def reshapes(body: bytes) -> bool:
    """Whether an engine that knows all fields would have another prompt, or other use of it, than the text says. `body`
    was parsed before."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return any(
        (value := msgspec.json.decode(fields[name])) is not None
        and not any(_same(value, neutral) for neutral in NEUTRAL.get(name, ()))
        for name in RESHAPING & fields.keys()
    )


def check_fields(fields: dict[str, msgspec.Raw], supported: frozenset[str]) -> None:
    """Raises RequestError, 400, that names the first field of a body which is unknown or not supported."""
    for name, raw in fields.items():
        if name in supported or name in IGNORED:
            continue
        if name not in NEUTRAL:
            raise RequestError(f"unknown parameter: {name[:80]}", param=name[:80], code="unknown_parameter")
        value = msgspec.json.decode(raw)
        if value is not None and not any(_same(value, neutral) for neutral in NEUTRAL[name]):
            raise RequestError(f"unsupported parameter: {name}", param=name, code="unsupported_parameter")


def _same(value: Any, neutral: Any) -> bool:
    """Equal, and no number for a truth value (in Python, 1 == True)."""
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)
