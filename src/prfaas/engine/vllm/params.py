"""`kv_transfer_params` of a request: whether it is ours, and what it says.

It knows TransferParams and what a leg must say; it does not know vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from prfaas.core.errors import RequestError
from prfaas.core.ids import TransferId
from prfaas.core.transfer.shards import whole_transfer
from prfaas.model.text import prompt_hash
from prfaas.wire.control import TransferParams

KEY = "prfaas"


def params_of(given: Mapping[str, Any] | None) -> TransferParams | None:
    """What is under our key; None when the request is not ours. Raises RequestError that names the field at fault."""
    if not given or KEY not in given:
        return None
    try:
        params = msgspec.convert(given[KEY], TransferParams)
    except msgspec.ValidationError as error:
        raise RequestError(f"kv_transfer_params.{KEY}: {error}", code="invalid_transfer_params") from None
    if not params.transfer_id or params.do_remote_decode == params.do_remote_prefill:
        said = f"kv_transfer_params.{KEY} needs a transfer_id, and one of do_remote_decode and do_remote_prefill"
        raise RequestError(said, code="invalid_transfer_params")
    if whole_transfer(TransferId(params.transfer_id)) != params.transfer_id:
        said = f"kv_transfer_params.{KEY}: {params.transfer_id} is a name for a rank's share of a transfer"
        raise RequestError(said, code="invalid_transfer_params")
    if params.do_remote_prefill and not (params.remote and params.ticket and params.connections >= 1):
        said = f"kv_transfer_params.{KEY} of a decode leg needs remote, ticket and connections"
        raise RequestError(said, code="invalid_transfer_params")
    return params


def check_prompt(params: TransferParams, tokens: Sequence[int] | None) -> None:
    """Raises RequestError unless `tokens` are the prompt that `params` speaks of, and KV can be handed over for it."""
    if tokens is None:
        raise RequestError("a prompt of embeddings cannot be handed over", code="no_token_ids")
    if params.prompt_tokens and params.prompt_tokens != len(tokens):
        said = f"{params.prompt_tokens} tokens were said, the prompt has {len(tokens)}"
        raise RequestError(said, status=409, code="prompt_mismatch")
    if params.prompt_hash and params.prompt_hash != prompt_hash(tokens):
        raise RequestError("the prompt's hash is not the one that was said", status=409, code="prompt_mismatch")
    if len(tokens) < 2:
        raise RequestError("a prompt of one token has no KV to hand over", code="nothing_to_prefill")
