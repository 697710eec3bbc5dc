"""How nodes join and leave a cluster at its head, over HTTP: JSON bodies, version 1.

It knows the shapes and their bounds, which msgspec enforces with the path at fault; it does not know who may join (see
`core.membership`). All of it demands the secret that our programs share.

    head   POST   /prfaas/v1/members                  JoinRequest -> JoinReply, or 409 with the reason
    head   POST   /prfaas/v1/members/{node}/renew     RenewRequest -> JoinReply; 404 "unknown_member": join again
    head   DELETE /prfaas/v1/members/{node}?epoch=    -> LeaveReply, at once; ask again until its state is "gone"
    head   GET    /prfaas/v1/members                  -> MemberList
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

PATH = "/prfaas/v1/members"
MOST_LISTENERS = 64

Name = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")]
Host = Annotated[str, Meta(pattern=r"^[A-Za-z0-9.:-]{1,253}\Z")]
Port = Annotated[int, Meta(ge=1, le=65535)]
Word = Annotated[str, Meta(min_length=1, max_length=256)]
Number = Annotated[int, Meta(ge=1, le=2**63 - 1)]


class DataAddress(msgspec.Struct, frozen=True):
    """One data listener of a node that joins; one a rank."""

    host: Host
    port: Port


class JoinRequest(msgspec.Struct, frozen=True):
    """A node asks to join. `url`: `http(s)://host:port` of its HTTP door; `layout`: the name of its KV layout.

    `epoch` grows with each start. Without a renewal it is gone `lease_ms` later (the head may hold it to its bounds).
    """

    node: Name
    role: Literal["prefill", "decode"]
    epoch: Number
    url: Annotated[str, Meta(min_length=1, max_length=300)]
    data: Annotated[list[DataAddress], Meta(min_length=1, max_length=MOST_LISTENERS)]
    model: Word
    layout: Word
    max_model_len: Number
    max_sequences: Annotated[int, Meta(ge=1, le=1 << 20)]
    lease_ms: Annotated[int, Meta(ge=1, le=86_400_000)]


class RenewRequest(msgspec.Struct, frozen=True):
    """The node is still there, as this incarnation."""

    epoch: Number


class JoinReply(msgspec.Struct, frozen=True):
    """The lease runs for `lease_ms` from now; `renew_ms` is when to renew it."""

    lease_ms: int
    renew_ms: int


class LeaveReply(msgspec.Struct, frozen=True):
    """`draining` while `running` pieces of work are still there, then `gone`."""

    state: Literal["draining", "gone"]
    running: int


class MemberInfo(msgspec.Struct, frozen=True):
    """One member. `state` as `docs/states.md` has them, in lower case; `running`: work that this head gave it.

    `lease_ms` is what is left of its lease; `trouble` is why it takes no work, if it does not.
    """

    node: str
    role: Literal["prefill", "decode"]
    state: str
    epoch: int
    url: str
    running: int
    lease_ms: int
    trouble: str = ""


class MemberList(msgspec.Struct, frozen=True):
    """The members of a cluster, in the order in which they came."""

    cluster: str
    members: list[MemberInfo]
