"""What a node is asked to do: a checked request, its tokens, its leg of a hand-over and its deadline.

It knows requests, limits of the engine and how a body becomes all this. It does not know how it is done.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from prfaas.core.errors import RequestError
from prfaas.core.ids import TransferId
from prfaas.core.transfer.shards import whole_transfer
from prfaas.engine.base import Limits, Sampling
from prfaas.model.text import Text, prompt_hash
from prfaas.wire.control import PrefixSource, TransferParams
from prfaas.wire.openai import AnyRequest, CompletionRequest, Kind
from prfaas.wire.openai.prompt import prompt_tokens

DEFAULT_COMPLETION_TOKENS = 16
DEFAULT_CHAT_TOKENS = 1024
"""A chat that names no bound. Room is taken for the longest answer, so the whole context would let few chats in."""
MAX_ID_CHARS = 256
MAX_CONNECTIONS = 64
NO_TRANSFER = TransferParams(transfer_id="")


@dataclass(frozen=True, slots=True)
class Asked:
    """`deadline_ns` and `arrived_ns` are on the loop's clock. `leg.transfer_id` is "" when nothing is handed over."""

    kind: Kind
    request: AnyRequest
    leg: TransferParams
    tokens: array[int]
    sampling: Sampling
    arrived_ns: int
    deadline_ns: int

    @property
    def transfer(self) -> TransferId:
        """The transfer of the hand-over."""
        return TransferId(self.leg.transfer_id)

    @property
    def kv_tokens(self) -> int:
        """Tokens whose KV is handed over: always all but the last."""
        return len(self.tokens) - 1

    def sampling_of(self, index: int) -> Sampling:
        """Choice `index` has a seed of its own: the client's plus the index, as vLLM has it."""
        seed = self.sampling.seed
        return self.sampling if seed is None else replace(self.sampling, seed=seed + index)

    @property
    def computes(self) -> bool:
        """Whether anything is computed at all: an echo without an answer and without scores is only text."""
        return self.sampling.max_tokens > 0 or self.sampling.prompt_logprobs is not None

    @property
    def room_tokens(self) -> int:
        """Tokens that the sequence may come to: prompt and longest answer."""
        return len(self.tokens) + self.sampling.max_tokens


def transfer_params(said: dict[str, Any] | None) -> TransferParams:
    """The leg that a request is, `NO_TRANSFER` if it is none. Raises RequestError, 400."""
    if said is None:
        return NO_TRANSFER
    try:
        leg = msgspec.convert(said, TransferParams)
    except msgspec.ValidationError as error:
        raise _bad(str(error)) from None
    if not 1 <= len(leg.transfer_id) <= MAX_ID_CHARS:
        raise _bad(f"transfer_id has 1 to {MAX_ID_CHARS} characters")
    if whole_transfer(TransferId(leg.transfer_id)) != leg.transfer_id:
        raise _bad(f"transfer_id {leg.transfer_id} is a name for a rank's share of a transfer")
    if leg.do_remote_decode and leg.do_remote_prefill:
        raise _bad("one of do_remote_decode and do_remote_prefill, not both")
    if leg.do_remote_prefill and not (leg.remote and leg.ticket and leg.prompt_hash):
        raise _bad("do_remote_prefill needs remote, ticket and prompt_hash")
    if not 1 <= leg.connections <= MAX_CONNECTIONS:
        raise _bad(f"connections is 1 to {MAX_CONNECTIONS}")
    if leg.prefix is not None:
        _check_prefix(leg, leg.prefix)
    if leg.deadline_ms < 0:
        raise _bad("deadline_ms is negative")
    return leg


async def understand(
    kind: Kind, request: AnyRequest, leg: TransferParams, text: Text, limits: Limits, arrived_ns: int, deadline_ns: int
) -> Asked:
    """Tokenize and check. Raises RequestError: 400, 409 when the prompt is not the one that was prefilled, 413."""
    bound = partial(_max_tokens, request, longest=limits.max_model_len, prefill_only=leg.do_remote_decode)
    tokens = await prompt_tokens(request, text, partial(bound, how="at least "))
    if leg.do_remote_prefill and request.stays:
        raise _bad(f"{request.stays} is computed whole where it is answered")
    if leg.do_remote_prefill and (leg.prompt_tokens, leg.prompt_hash) != (len(tokens), prompt_hash(tokens)):
        raise RequestError(
            f"the prompt has {len(tokens)} tokens here, {leg.prompt_tokens} where it was prefilled, or other ones",
            status=409,
            code="prompt_mismatch",
        )
    stop_ids = frozenset() if request.ignore_eos else text.stop_ids
    sampling = Sampling(
        max_tokens=bound(len(tokens)),
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        seed=request.seed,
        stop_ids=stop_ids,
        logprobs=request.likeliest,
        prompt_logprobs=request.likeliest if request.stays else None,
    )
    return Asked(kind, request, leg, tokens, sampling, arrived_ns, deadline_ns)


def _max_tokens(request: AnyRequest, prompt: int, *, longest: int, prefill_only: bool, how: str = "") -> int:
    """The bound on the answer: what the client said, or the default of its kind, within the context. `how` is
    "at least " when `prompt` counts what is not tokenized."""
    said, left = request.max_new_tokens, longest - prompt
    if prefill_only:
        said = 1
    if left < (1 if said is None else min(1, said)) or (said is not None and said > left):
        wanted = f"; with {said} tokens of answer that makes {prompt + said}" if said is not None else ""
        raise RequestError(
            f"this model's context is {longest} tokens, the prompt has {how}{prompt}{wanted}",
            status=413,
            code="context_length_exceeded",
            param=request.bound_field if left >= (1 if said is None else min(1, said)) else request.prompt_field,
        )
    if said is not None:
        return said
    return min(DEFAULT_COMPLETION_TOKENS if isinstance(request, CompletionRequest) else DEFAULT_CHAT_TOKENS, left)


def _check_prefix(leg: TransferParams, prefix: PrefixSource) -> None:
    if not leg.do_remote_decode or not (prefix.remote and prefix.ticket):
        raise _bad("prefix is for a prefill leg, and needs remote and ticket")
    if not 1 <= len(prefix.transfer_id) <= MAX_ID_CHARS or prefix.transfer_id == leg.transfer_id:
        raise _bad(f"prefix has a transfer_id of its own, of 1 to {MAX_ID_CHARS} characters")
    if prefix.length < 1 or prefix.deadline_ms < 1 or not 1 <= prefix.connections <= MAX_CONNECTIONS:
        raise _bad(f"prefix has a length and a deadline_ms above 0, and 1 to {MAX_CONNECTIONS} connections")


def _bad(what: str) -> RequestError:
    return RequestError(f"kv_transfer_params: {what}", param="kv_transfer_params", code="invalid_value")
