"""Every exception that prfaas raises on purpose.

    PrfaasError
    ├── InvariantError          a bug of ours: carries its story; never caught to go on
    ├── LocalError              our caller's mistake, found before anything was sent
    │   ├── ConfigError         the topology file, the environment or the command line
    │   └── RequestError        a client's request: maps to one OpenAI error body
    └── RemoteError             a peer's misuse or failure: bad frame, bad ticket, broken promise
        ├── ProtocolError       bytes or an order of messages that the protocol does not allow
        └── PeerFailure         the peer said that it failed, or stopped answering
            └── Refused         (runtime.client) it answered with an HTTP error

An expected failure (a leg that dies, a lease that ends) is an event, not an exception.
"""

from __future__ import annotations

from typing import Any


class PrfaasError(Exception):
    """Root of all deliberate errors."""


class InvariantError(PrfaasError):
    """A bug: a state that must not exist. `story` is what led to it, oldest first."""

    def __init__(self, what: str, story: tuple[Any, ...] = ()) -> None:
        super().__init__(what if not story else f"{what}; story: {list(story)}")
        self.story = story


class LocalError(PrfaasError):
    """Our caller's mistake."""


class ConfigError(LocalError):
    """A bad topology file, environment or option: one line that names file, line and what was expected.

    `where`: keys and positions in the topology file, when only whoever has read it can say the line.
    """

    def __init__(self, what: str, where: tuple[str | int, ...] = ()) -> None:
        super().__init__(what)
        self.where = where


class RequestError(LocalError):
    """A client's bad request, as OpenAI reports it.

    `status` is the HTTP status, `kind` OpenAI's `type`, `code` its `code`: always one word for programs; `param` the
    field at fault.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        code: str,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s


class RemoteError(PrfaasError):
    """A peer's fault; the story ends on our side, the peer is told why. `code` is one lower-case word."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class ProtocolError(RemoteError):
    """Bytes, or an order of messages, that the protocol does not allow."""


class PeerFailure(RemoteError):
    """The peer failed or fell silent."""
