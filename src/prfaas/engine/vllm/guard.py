"""The door of a vLLM node: whoever asks must show the secret, whatever the path.

vLLM's own API key guards /v1 and a few prefixes only; /invocations, /tokenize, /load and others answer to anybody. It
knows ASGI and the secret's variable; it does not know vLLM's paths, so that one which a new version adds is shut too.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from prfaas.core.errors import ConfigError, RequestError
from prfaas.wire.openai.answer import error_body, error_detail

SECRET = "VLLM_API_KEY"
"""The variable that has it, which vLLM reads too."""
OPEN = frozenset({("GET", "/health"), ("GET", "/metrics")})
MIDDLEWARE = f"{__name__}.Guard"
"""For vLLM's `--middleware`."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


class Guard:
    """An ASGI middleware around `app`. Raises ConfigError when the environment has no secret."""

    def __init__(self, app: Application) -> None:
        self._app, self._secret = app, secret_of(os.environ).encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Hand on what is open or shows the secret; 401 for any other request, and no web socket."""
        if scope["type"] == "lifespan" or self._may(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await _refuse(send)
        else:
            await send({"type": "websocket.close", "code": 1008, "reason": "no valid key"})

    def _may(self, scope: Message) -> bool:
        if scope["type"] == "http" and (scope["method"], scope["path"]) in OPEN:
            return True
        return any(self._shown(value) for name, value in scope["headers"] if name.lower() == b"authorization")

    def _shown(self, value: bytes) -> bool:
        scheme, _, given = value.partition(b" ")
        return hmac.compare_digest(given.strip(), self._secret) and scheme.lower() == b"bearer"


def secret_of(environ: Mapping[str, str]) -> str:
    """Raises ConfigError when there is none: a door without a key is not opened."""
    secret = environ.get(SECRET, "")
    if not secret:
        raise ConfigError(f"there is no ${SECRET}; expected the topology's secret in it, as `prfaas node` sets it")
    return secret


async def _refuse(send: Send) -> None:
    error = RequestError("the Authorization header has no valid key", status=401, code="invalid_api_key")
    body = error_body(error_detail(error))
    headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body})
