"""Work within a request's deadline: past it, one error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prfaas.core.errors import RequestError


@asynccontextmanager
async def within(deadline_ns: int) -> AsyncIterator[None]:
    """The body is cancelled at `deadline_ns` on the loop's clock. Raises RequestError, 504, then."""
    try:
        async with asyncio.timeout_at(deadline_ns / 1e9) as scope:
            yield
    except TimeoutError:
        if not scope.expired():
            raise
        raise RequestError(
            "the request's deadline passed", status=504, kind="server_error", code="deadline_exceeded"
        ) from None
