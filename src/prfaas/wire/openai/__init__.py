"""OpenAI's HTTP API, as bytes and checked values: requests (`request`), answers and errors (`answer`)."""

from prfaas.wire.openai.answer import (
    AnswerWriter,
    ErrorBody,
    ErrorDetail,
    Finished,
    Kind,
    ModelCard,
    ModelList,
    Usage,
    error_body,
    error_detail,
    error_event,
    parse_error,
    usage,
)
from prfaas.wire.openai.logprobs import Scored
from prfaas.wire.openai.request import (
    AnyRequest,
    ChatCompletionRequest,
    CompletionRequest,
    Message,
    add_field,
    parse_chat,
    parse_completion,
)

__all__ = [
    "AnswerWriter",
    "AnyRequest",
    "ChatCompletionRequest",
    "CompletionRequest",
    "ErrorBody",
    "ErrorDetail",
    "Finished",
    "Kind",
    "Message",
    "ModelCard",
    "ModelList",
    "Scored",
    "Usage",
    "add_field",
    "error_body",
    "error_detail",
    "error_event",
    "parse_chat",
    "parse_completion",
    "parse_error",
    "usage",
]
