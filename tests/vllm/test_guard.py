"""The guard of a vLLM node's door, without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prfaas.core.errors import ConfigError
from prfaas.engine.vllm.guard import MIDDLEWARE, Guard

SECRET = "a secret of thirty-two characters."
SHOWN = [(b"authorization", f"Bearer {SECRET}".encode())]


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", SECRET)


async def asked(path: str, method: str = "GET", headers: Any = (), kind: str = "http") -> list[Any]:
    """What is sent: ["through"] by the application behind the guard."""
    sent: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        sent.append("through")

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("a body is not read for strangers")

    scope = {"type": kind, "method": method, "path": path, "headers": list(headers)}
    await Guard(application)(scope, receive, send)
    return sent


@pytest.mark.parametrize("path", ["/health", "/metrics"])
async def test_health_and_metrics_are_for_all(path: str) -> None:
    assert await asked(path) == ["through"]
    assert await asked(path, "POST") != ["through"]
    assert await asked(path + "/") != ["through"]


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1/completions",
        "/invocations",
        "/tokenize",
        "/load",
        "/version",
        "/ping",
        "/docs",
        "/healthx",
        "//health",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "HEAD"])
async def test_all_else_demands_the_secret(path: str, method: str) -> None:
    start, body = await asked(path, method)
    assert start["status"] == 401
    headers = dict(start["headers"])
    assert headers[b"www-authenticate"] == b"Bearer"
    assert int(headers[b"content-length"]) == len(body["body"])
    error = json.loads(body["body"])["error"]
    assert error["code"] == "invalid_api_key"
    assert error["message"] == "the Authorization header has no valid key"
    assert await asked(path, method, SHOWN) == ["through"]


@pytest.mark.parametrize(
    "value",
    ["", "Bearer", "Bearer ", SECRET, f"Basic {SECRET}", f"Bearer {SECRET}x", f"Bearer {SECRET[:-1]}", "Bearer \xff"],
)
async def test_what_is_not_the_secret(value: str) -> None:
    assert (await asked("/invocations", "POST", [(b"authorization", value.encode("latin-1"))]))[0]["status"] == 401


async def test_the_scheme_has_any_case() -> None:
    assert await asked("/load", headers=[(b"authorization", f"bearer  {SECRET}".encode())]) == ["through"]


async def test_a_web_socket_is_closed_and_a_lifespan_is_not() -> None:
    (closed,) = await asked("/v1/realtime", kind="websocket")
    assert closed["type"] == "websocket.close"
    assert await asked("/v1/realtime", headers=SHOWN, kind="websocket") == ["through"]
    assert await asked("", kind="lifespan") == ["through"]


def test_without_a_secret_no_door(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY")
    with pytest.raises(ConfigError, match=r"there is no \$VLLM_API_KEY"):
        Guard(lambda *_: None)  # type: ignore[arg-type,return-value]


def test_its_name_is_where_it_is() -> None:
    assert f"{Guard.__module__}.{Guard.__qualname__}" == MIDDLEWARE
