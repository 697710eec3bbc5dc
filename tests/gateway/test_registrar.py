"""Joining over HTTP: who may not, what may not be said, and what is answered."""

from __future__ import annotations

from typing import Any

import pytest

from prfaas.cluster.registrar import check_url
from prfaas.core.errors import RequestError
from prfaas.testing.grid import Grid, two_clusters
from prfaas.testing.noderig import MODEL, SECRET, Answer, Rig, until

PATH = "/prfaas/v1/members"
BEARER = {"Authorization": f"Bearer {SECRET}"}


def body(grid: Grid, **fields: Any) -> dict[str, Any]:
    info = grid.far_nodes[0].server.info()
    said = {
        "node": "spare-1",
        "role": "prefill",
        "epoch": 7,
        "url": grid.far_nodes[0].listening.url,
        "data": [{"host": "127.0.0.1", "port": 1}],
        "model": MODEL,
        "layout": info.layout,
        "max_model_len": 400,
        "max_sequences": 4,
        "lease_ms": 5000,
    }
    return said | fields


async def say(
    grid: Grid, method: str, path: str, json: Any = None, head: str = "far", headers: dict[str, str] | None = None
) -> Answer:
    url = (grid.service.url if head == "far" else grid.front.url) + path
    headers = BEARER if headers is None else headers
    async with grid.session.request(method, url, json=json, headers=headers) as response:
        return Answer(response.status, dict(response.headers), await response.read())


@pytest.mark.parametrize("head", ["far", "home"])
async def test_the_secret_is_demanded(grid: Grid, head: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {SECRET}"}):
        for method, path in (
            ("POST", PATH),
            ("GET", PATH),
            ("POST", f"{PATH}/spare-1/renew"),
            ("DELETE", f"{PATH}/spare-1?epoch=1"),
        ):
            answer = await say(grid, method, path, body(grid), head, headers)
            assert (answer.status, answer.code) == (401, "invalid_api_key")
    odd = await say(grid, "GET", "/prfaas/v1/%6dembers", None, head, {})
    assert odd.status in (401, 404)
    assert len((await say(grid, "GET", PATH, None, head)).json["members"]) == (1 if head == "far" else 2)


async def test_a_clients_key_is_not_enough_and_is_not_needed(rig: Rig) -> None:
    decoders = [await rig.node("home-d", "decode")]
    async with two_clusters(rig, far=[], home=[], decoders=decoders, api_keys=("client",)) as grid:
        client = {"Authorization": "Bearer client"}
        assert (await say(grid, "GET", PATH, head="home", headers=client)).status == 401
        assert (await say(grid, "GET", PATH, head="home")).status == 200
        assert (await say(grid, "GET", "/v1/models", head="home")).status == 401, "nor is the secret a client's key"
        assert (await say(grid, "GET", "/v1/models", head="home", headers=client)).status == 200


async def test_a_life_over_http(grid: Grid) -> None:
    joined = await say(grid, "POST", PATH, body(grid))
    assert (joined.status, joined.json) == (200, {"lease_ms": 5000, "renew_ms": 1666})
    (listed, spare) = (await say(grid, "GET", PATH)).json["members"]
    assert (listed["node"], listed["state"], listed["role"]) == ("far-p", "present", "prefill")
    assert (spare["node"], spare["epoch"], spare["running"]) == ("spare-1", 7, 0)
    assert 0 < spare["lease_ms"] <= 5000

    def troubled() -> bool:
        return any("answers as prefill node far-p" in member.trouble for member in grid.head.roster.members().members)

    await until(troubled, "another node answers at that address, and it gets no work")
    assert (await say(grid, "POST", f"{PATH}/spare-1/renew", {"epoch": 7})).json["lease_ms"] == 5000
    stale = await say(grid, "POST", f"{PATH}/spare-1/renew", {"epoch": 6})
    assert (stale.status, stale.code) == (409, "stale_epoch")
    left = await say(grid, "DELETE", f"{PATH}/spare-1?epoch=7")
    assert (left.status, left.json) == (200, {"state": "gone", "running": 0})
    unknown = await say(grid, "POST", f"{PATH}/nobody/renew", {"epoch": 6})
    assert (unknown.status, unknown.code) == (404, "unknown_member")


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"role": "decode"}, 409, "wrong_role"),
        ({"node": "far-p"}, 409, "name_taken"),
        ({"node": "home-d"}, 409, "name_taken"),
        ({"model": "another"}, 409, "wrong_model"),
        ({"layout": "another"}, 409, "layout_mismatch"),
        ({"role": "both"}, 400, "invalid_json"),
        ({"node": "UPPER"}, 400, "invalid_json"),
        ({"node": "x" * 64}, 400, "invalid_json"),
        ({"node": "../x"}, 400, "invalid_json"),
        ({"node": "spare\n"}, 400, "invalid_json"),
        ({"epoch": 0}, 400, "invalid_json"),
        ({"epoch": -1}, 400, "invalid_json"),
        ({"epoch": 2**63}, 400, "invalid_json"),
        ({"epoch": "7"}, 400, "invalid_json"),
        ({"lease_ms": 0}, 400, "invalid_json"),
        ({"max_sequences": 0}, 400, "invalid_json"),
        ({"data": []}, 400, "invalid_json"),
        ({"data": [{"host": "a", "port": 1}] * 65}, 400, "invalid_json"),
        ({"data": [{"host": "a b", "port": 1}]}, 400, "invalid_json"),
        ({"data": [{"host": "a", "port": 0}]}, 400, "invalid_json"),
        ({"url": "http://" + "a" * 300}, 400, "invalid_json"),
        ({"url": "ftp://a:1"}, 400, "invalid_value"),
        ({"url": "http://a"}, 400, "invalid_value"),
    ],
)
async def test_what_is_refused(grid: Grid, fields: dict[str, Any], status: int, code: str) -> None:
    answer = await say(grid, "POST", PATH, body(grid, **fields))
    assert (answer.status, answer.code) == (status, code), answer.body
    assert [member.node for member in grid.head.roster.members().members] == ["far-p"]


async def test_a_gateway_takes_both_roles_and_a_refusal_names_the_node(grid: Grid) -> None:
    refused = await say(grid, "POST", PATH, body(grid, role="decode"))
    assert "spare-1 is a decode node; cluster far takes prefill nodes" in refused.message
    for role in ("decode", "prefill"):
        node = f"spare-{role}"
        assert (await say(grid, "POST", PATH, body(grid, role=role, node=node), "home")).status == 200


@pytest.mark.parametrize("query", ["", "?epoch=", "?epoch=x", "?epoch=-1", "?epoch=" + "9" * 20, "?epoch=²"])
async def test_leaving_needs_the_incarnation(grid: Grid, query: str) -> None:
    answer = await say(grid, "DELETE", f"{PATH}/spare-1{query}")
    assert (answer.status, answer.json["error"]["param"]) == (400, "epoch")


@pytest.mark.parametrize("url", ["http://a:1", "https://a.b-c:65535", "http://[::1]:80", "http://10.0.0.1:8000"])
def test_urls_that_a_head_may_call(url: str) -> None:
    check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "", "a:1", "file:///etc/passwd", "http://", "http://a", "http://a:0", "http://a:65536", "http://a:x",
        "http://a:1/", "http://a:1/x", "http://a:1?x", "http://a:1#x", "http://u:p@a:1", "http://a:1\\@b:2",
        "http://a b:1", "http://a:1\r\nx: y", "gopher://a:1", "http://\u00e9:1", "http://[::1", "http://:1",
    ],
)  # fmt: skip
def test_urls_that_it_may_not(url: str) -> None:
    with pytest.raises(RequestError, match="expected http://HOST:PORT"):
        check_url(url)
