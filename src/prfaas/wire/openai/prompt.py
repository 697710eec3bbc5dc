"""A request's prompt as token ids: the one way that gateway and nodes share, so that their counts and hashes agree."""

from __future__ import annotations

from prfaas.model.text import Text
from prfaas.wire.openai.request import AnyRequest, ChatCompletionRequest


async def prompt_tokens(request: AnyRequest, text: Text) -> list[int]:
    """Ids of the prompt, at least one, all in range, made off the event loop. Raises RequestError, 400."""
    if isinstance(request, ChatCompletionRequest):
        return await text.encode_chat([message.as_dict() for message in request.messages])
    prompt = request.text_or_ids
    return await (text.encode(prompt) if isinstance(prompt, str) else text.checked(prompt))
