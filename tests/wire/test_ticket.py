"""Tickets are good for exactly what they name, until they expire, and only if they are ours."""

from __future__ import annotations

import base64
import json
from typing import Any

import jwt
import pytest

from prfaas.core.errors import ConfigError, ProtocolError
from prfaas.core.ids import Epoch, LinkName, NodeName, TransferId
from prfaas.wire.ticket import Claims, mint, verify

SECRET = b"0123456789abcdef0123456789abcdef"
NOW = 1_800_000_000.5
FOR: dict[str, Any] = {
    "transfer": TransferId("r.0"),
    "epoch": Epoch(77),
    "node": NodeName("p0"),
    "receiver": NodeName("d0"),
}


def make(**changes: Any) -> str:
    wanted = {**FOR, "link": LinkName("p->d"), "lifetime_s": 60, "now": NOW, **changes}
    return mint(wanted.pop("secret", SECRET), **wanted)


def code_of(ticket: str, **changes: Any) -> str:
    with pytest.raises(ProtocolError) as caught:
        verify(SECRET, ticket, **{**FOR, "now": NOW, **changes})
    assert caught.value.code == "ticket"
    return caught.value.detail


def test_a_good_ticket() -> None:
    claims = verify(SECRET, make(), **FOR, now=NOW + 59)
    assert claims == Claims(
        TransferId("r.0"), Epoch(77), NodeName("p0"), NodeName("d0"), LinkName("p->d"), int(NOW) + 60
    )


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"transfer": "r.1"}, "transfer"),
        ({"node": "p1"}, "node"),
        ({"epoch": 78}, "epoch"),
        ({"receiver": "d1"}, "receiver"),
        ({"now": NOW + 60}, "expired"),
        ({"now": NOW + 10_000}, "expired"),
    ],
)
def test_good_for_nothing_else(changes: dict[str, Any], what: str) -> None:
    assert what in code_of(make(), **changes)


def test_good_for_each_ranks_share() -> None:
    assert verify(SECRET, make(), **{**FOR, "transfer": TransferId("r.0@3/4")}, now=NOW).transfer == "r.0@3/4"
    assert "transfer" in code_of(make(), transfer=TransferId("r.1@3/4"))
    assert "transfer" in code_of(make(), transfer=TransferId("r.0@4/4"))
    assert "transfer" in code_of(make(), transfer=TransferId("r.0@1/2@0/2"))
    assert "transfer" in code_of(make(transfer=TransferId("r.0@3/4"))), "a share's is not good for the whole"


def test_another_secret_algorithm_or_text_is_no_ticket() -> None:
    code_of(make(secret=SECRET[::-1]))
    code_of("")
    code_of("a.b.c")
    code_of(make()[:-2])
    head, body, signature = make().split(".")
    none = base64.urlsafe_b64encode(json.dumps({"alg": "none", "typ": "JWT"}).encode()).rstrip(b"=").decode()
    code_of(f"{none}.{body}.")
    code_of(f"{none}.{body}.{signature}")
    other = base64.urlsafe_b64encode(json.dumps({"alg": "HS512", "typ": "JWT"}).encode()).rstrip(b"=").decode()
    code_of(f"{other}.{body}.{signature}")
    assert head


def test_the_secret_itself_signs_no_ticket() -> None:
    """A token made with the bare secret (for another purpose) is not taken for one."""
    claims = jwt.decode(make(), options={"verify_signature": False})
    code_of(jwt.encode(claims, SECRET, algorithm="HS256"))


def test_a_claim_that_is_missing_is_refused() -> None:
    from prfaas.wire import ticket as module

    claims = jwt.decode(make(), options={"verify_signature": False})
    for name in list(claims):
        fewer = {key: value for key, value in claims.items() if key != name}
        code_of(jwt.encode(fewer, module._key(SECRET), algorithm="HS256"))
    code_of(jwt.encode({**claims, "exp": "never"}, module._key(SECRET), algorithm="HS256"))


def test_a_short_secret_is_a_mistake_of_ours() -> None:
    with pytest.raises(ConfigError, match="5 bytes"):
        make(secret=b"short")
