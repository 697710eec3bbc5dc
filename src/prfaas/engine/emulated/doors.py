"""The faults of a running emulated node over HTTP: read, replaced, taken away. For tests.

    GET    /prfaas/v1/faults    {"faults": [{"fault": {...}, "struck": 0}, ...]}
    PUT    /prfaas/v1/faults    {"faults": [{...}, ...]}, as in the topology file
    DELETE /prfaas/v1/faults

It knows HTTP and faults. Whoever asks must show the secret, as at all of a node's internal doors.
"""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from prfaas.config.complaint import convert, explain, written
from prfaas.config.document import dotted
from prfaas.config.topology import Fault
from prfaas.core.errors import RequestError
from prfaas.engine.emulated.faults import Faults
from prfaas.runtime.http import json_reply, read_body

PATH = "/prfaas/v1/faults"


class FaultList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is put."""

    faults: tuple[Fault, ...]


def fault_routes(faults: Faults) -> list[web.RouteDef]:
    """The doors to `faults`."""

    def shown() -> web.Response:
        struck = [{"fault": fault, "struck": times} for fault, times in faults.struck]
        return json_reply(msgspec.to_builtins({"faults": struck}, enc_hook=written))

    async def get(request: web.Request) -> web.StreamResponse:
        return shown()

    async def put(request: web.Request) -> web.StreamResponse:
        faults.replace(_read(await read_body(request)))
        return shown()

    async def delete(request: web.Request) -> web.StreamResponse:
        faults.replace(())
        return shown()

    return [web.get(PATH, get), web.put(PATH, put), web.delete(PATH, delete)]


def _read(body: bytes) -> tuple[Fault, ...]:
    """Raises RequestError, 400, with the place and what was expected."""
    value: Any = None
    try:
        value = msgspec.json.decode(body)
        said: FaultList = convert(value, FaultList)
    except msgspec.ValidationError as error:
        where, what = explain(error, value, FaultList)
        raise RequestError(f"{dotted(where)}: {what}" if where else what, code="invalid_value") from None
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RequestError(f"the body is not as expected: {error}", code="invalid_json") from None
    return said.faults
