"""Tickets: signed leave to fetch one transfer's KV, as JSON Web Tokens (HS256, no other algorithm).

It knows claims and the shared secret; it does not know which session has used a ticket (the listener does). The key is
derived from the secret, so that a token made for another purpose with the same secret is no ticket.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from hashlib import sha256

import jwt

from prfaas.core.errors import ConfigError, ProtocolError
from prfaas.core.ids import Epoch, LinkName, NodeName, TransferId
from prfaas.core.transfer.shards import whole_transfer

_PURPOSE = b"prfaas kv ticket 1"
_REQUIRED = ["aud", "sub", "epoch", "rcv", "link", "iat", "exp"]
MIN_SECRET_BYTES = 16


@dataclass(frozen=True, slots=True)
class Claims:
    """What a good ticket allows. `expires` is in seconds of the wall clock."""

    transfer: TransferId
    epoch: Epoch
    node: NodeName
    receiver: NodeName
    link: LinkName
    expires: int


def mint(
    secret: bytes,
    *,
    transfer: TransferId,
    epoch: Epoch,
    node: NodeName,
    receiver: NodeName,
    link: LinkName,
    lifetime_s: int,
    now: float,
) -> str:
    """Leave for `receiver` to fetch `transfer` from `node` (incarnation `epoch`) over `link`, for `lifetime_s` from
    `now`.

    `now` is in seconds of the wall clock. Raises ConfigError when the secret is too short.
    """
    claims = {
        "aud": node,
        "sub": transfer,
        "epoch": epoch,
        "rcv": receiver,
        "link": link,
        "iat": int(now),
        "exp": int(now) + lifetime_s,
    }
    return jwt.encode(claims, _key(secret), algorithm="HS256")


def verify(
    secret: bytes,
    ticket: str,
    *,
    transfer: TransferId,
    epoch: Epoch,
    node: NodeName,
    receiver: NodeName,
    now: float,
) -> Claims:
    """The claims of `ticket`, if it is ours, still good at `now`, and for exactly this, or for the transfer that this
    is a rank's share of. Raises ProtocolError ("ticket")."""
    try:
        claims = jwt.decode(
            ticket,
            _key(secret),
            algorithms=["HS256"],
            options={
                "require": _REQUIRED,
                "verify_exp": False,
                "verify_iat": False,
                "verify_nbf": False,
                "verify_aud": False,
                "verify_sub": False,
            },
        )
    except jwt.PyJWTError as error:
        raise ProtocolError("ticket", f"not valid: {error}") from None
    expires = claims["exp"]
    if not isinstance(expires, int) or now >= expires:
        raise ProtocolError("ticket", "expired")
    whole = whole_transfer(transfer)
    for claim, wanted in (("sub", (transfer, whole)), ("aud", (node,)), ("epoch", (epoch,)), ("rcv", (receiver,))):
        said = str(claims[claim]).encode()
        if not any(hmac.compare_digest(said, str(one).encode()) for one in wanted):
            raise ProtocolError("ticket", f"for another {_MEANS[claim]}")
    return Claims(transfer, epoch, node, receiver, LinkName(str(claims["link"])), expires)


_MEANS = {"sub": "transfer", "aud": "node", "epoch": "epoch", "rcv": "receiver"}


def check_secret(secret: bytes) -> None:
    """Raises ConfigError when `secret` is too short to sign with."""
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigError(f"the shared secret has {len(secret)} bytes; at least {MIN_SECRET_BYTES} are needed")


def _key(secret: bytes) -> bytes:
    check_secret(secret)
    return hmac.new(secret, _PURPOSE, sha256).digest()
