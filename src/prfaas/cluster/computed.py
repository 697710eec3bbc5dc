"""What a node's answer to a prefill leg says: how its KV can be had, and what computing it took.

It knows the answers of our nodes and of vLLM; it does not know calls or who asked.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from prfaas.core.errors import ProtocolError


class _Answer(msgspec.Struct):
    kv_transfer_params: dict[str, Any]


def parameters_of(answer: bytes) -> dict[str, Any]:
    """How the KV of a prefill that is done can be had, from its answer."""
    try:
        return msgspec.json.decode(answer, type=_Answer).kv_transfer_params
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ProtocolError("bad_reply", f"no kv_transfer_params in the answer to a prefill: {error}") from None


class _Computed(msgspec.Struct):
    computed_ns: Annotated[int, msgspec.Meta(ge=0)] | None = None


class _Details(msgspec.Struct):
    cached_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _Details | None = None


class _Told(msgspec.Struct):
    kv_transfer_params: _Computed | None = None
    usage: _Usage | None = None


def cost_of(answer: bytes) -> tuple[int | None, int]:
    """What a prefill took of its node's time, as nodes of ours say in their answer; and how many tokens the node had
    kept, as vLLM may say too."""
    try:
        told = msgspec.json.decode(answer, type=_Told)
    except (msgspec.MsgspecError, UnicodeError):
        return None, 0
    computed = told.kv_transfer_params
    details = told.usage.prompt_tokens_details if told.usage is not None else None
    cached = details.cached_tokens if details is not None else None
    return computed.computed_ns if computed is not None else None, cached or 0
