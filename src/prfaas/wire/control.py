"""What programs say to each other over HTTP: JSON bodies of the internal endpoints, version 1.

It knows the shapes; it does not know who calls whom when (see `docs/structures.md`). Unknown fields are ignored, so
that a newer peer may add some; missing or mistyped ones are refused by msgspec with the path.

    node     GET  /prfaas/v1/node          -> NodeInfo
    node     POST /prfaas/v1/credit        CreditRequest -> CreditReply   (waits until granted, or 409 / 413)
    node     DELETE /prfaas/v1/credit/{transfer}
    node     POST /prfaas/v1/pace          PaceLease -> {}
    node     POST /prfaas/v1/prefix        PrefixRequest -> a stream of PrefixUpdate, one JSON object a line
    node     POST /v1/completions, /v1/chat/completions with `kv_transfer_params` (TransferParams)
    service  GET  /prfaas/v1/cluster       -> ClusterInfo
    service  POST /prfaas/v1/prefill       PrefillRequest -> a stream of PrefillUpdate, one JSON object a line
    service  POST /prfaas/v1/prefill/{transfer}/prefix    PrefixOffer -> {}   (of a prefill that is `bound`)
    service  POST /prfaas/v1/prefix        PrefixRequest -> a stream of PrefixUpdate, one JSON object a line
    heads    the members' endpoints, see `wire.members`
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

LISTED = 64
"""Prefills that a `ClusterInfo` lists one by one, at the most, waiting and at work each."""


class Address(msgspec.Struct, frozen=True):
    """A listener: `host`, `port`; one a rank."""

    host: str
    port: int


class NodeInfo(msgspec.Struct, frozen=True):
    """A node about itself. `epoch` grows with each restart; `layout` names its KV layout (`wire.layout`), "" when it
    compares that itself.

    `kv_blocks` of `block_tokens` tokens each are its KV memory; 0 when it does not say. `fixed`: the part of its KV, by
    name, that only a node of as many ranks can take; "" when any can.
    """

    node: str
    cluster: str
    role: Literal["prefill", "decode"]
    epoch: int
    model: str
    layout: str
    max_model_len: int
    max_sequences: int
    data: list[Address]
    running: int = 0
    blocks_in_use: int = 0
    transfers_in_use: int = 0
    block_tokens: int = 0
    kv_blocks: int = 0
    fixed: str = ""
    prefill_ns: list[tuple[int, int]] = []
    """How long it takes to prefill, (tokens of a prompt, ns) rising, when it knows that; nothing is said of lengths
    outside."""
    kv_events: list[Address] = []
    """Where it is asked what it told of its prefix cache (`wire.kvevents`); none when it tells nothing."""
    copies: bool = False
    """Whether it lends prefixes that it keeps, and fetches those that others lend."""


class PrefixSource(msgspec.Struct, frozen=True):
    """Where a prefill node may fetch the KV of the first `length` tokens of its prompt before it computes the rest.

    `deadline_ms`: milliseconds after which computing is sooner, when the message is sent.
    """

    transfer_id: str
    length: int
    link: str
    remote: list[Address]
    ticket: str
    deadline_ms: int
    connections: int = 1


class TransferParams(msgspec.Struct, frozen=True):
    """`kv_transfer_params` of a leg. The field names `do_remote_*` and `transfer_id` are vLLM's.

    Prefill leg: `do_remote_decode`, and `link` (whose pace holds). Decode leg: `do_remote_prefill`, `remote`, `ticket`,
    `connections`, and the prompt's token count and hash, which the node compares with its own.
    """

    transfer_id: str
    do_remote_decode: bool = False
    do_remote_prefill: bool = False
    link: str = ""
    remote: list[Address] = []
    ticket: str = ""
    connections: int = 1
    prompt_tokens: int = 0
    prompt_hash: str = ""
    deadline_ms: int = 0
    """Milliseconds that are left when the message is sent; 0 means none given."""
    epoch: int = 0
    """The incarnation of the node that is meant: another one refuses, 409 "stale_epoch". 0 means any."""
    receivers: int = 0
    """Ranks of the receiving node, each of which dials for what it holds; 0 means as many as the sender has."""
    prefix: PrefixSource | None = None
    """Of a prefill leg: what to fetch first. Whatever comes of that, the prefill goes on."""


class PrefixRequest(msgspec.Struct, frozen=True):
    """Lend the KV of the first `length` of `tokens` (a JSON list of ids) to `receiver`, over `link`.

    `node`: which node is to, for heads; `layout`: the KV layout that the receiver wants. The loan ends when the
    receiver owns the KV, when who asked hangs up, and after `deadline_ms`.
    """

    transfer_id: str
    node: str
    layout: str
    receiver: str
    link: str
    tokens: msgspec.Raw
    length: int
    deadline_ms: int
    epoch: int = 0


class PrefixUpdate(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the answer: `lent` (a head says where to dial, with what ticket), then `done` or `failed`."""

    state: Literal["lent", "done", "failed"]
    remote: list[Address] = []
    ticket: str = ""
    connections: int = 1
    code: str = ""
    detail: str = ""


class PrefixOffer(msgspec.Struct, frozen=True):
    """What the prefill that announced `prefix_tokens` may fetch; None: nothing after all."""

    prefix: PrefixSource | None


class CreditRequest(msgspec.Struct, frozen=True):
    """Room in the landing buffer for one transfer, until used, released or `lease_ms` old."""

    transfer_id: str
    prompt_tokens: int
    lease_ms: int


class CreditReply(msgspec.Struct, frozen=True):
    """Granted: `kv_bytes` are reserved for the transfer. `receiver` is the audience that the ticket must name."""

    transfer_id: str
    kv_bytes: int
    receiver: str


class PaceLease(msgspec.Struct, frozen=True):
    """This node may send on `link` at `rate_bps` bits a second for `lease_ms` from receipt. A lower `fence` is
    stale."""

    link: str
    rate_bps: int
    lease_ms: int
    fence: int


class PrefillRequest(msgspec.Struct, frozen=True):
    """A gateway asks a prefill service to prefill `tokens` and hold the KV for `receiver` (credit is granted).

    `tokens` is a JSON list of ids, and there are `prompt_tokens` of them: heads pass the list on unread, the node reads
    it. `receivers`: ranks of the receiver, as in `TransferParams`. `prefer`: nodes that have much of it cached.

    `prefix_tokens`: once it is `bound`, a `PrefixOffer` of so many tokens follows, for which the node is to wait, at
    most `prefix_ms`; 0: none.
    """

    transfer_id: str
    tenant: str
    model: str
    layout: str
    receiver: str
    link: str
    tokens: msgspec.Raw
    prompt_tokens: int
    deadline_ms: int
    receivers: int = 0
    prefer: list[str] = []
    prefix_tokens: int = 0
    prefix_ms: int = 0


class PrefillUpdate(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the answer: `queued` (position) -> `bound` (where to dial, ticket) -> `done`, or `failed`.

    A node that hands over when its prefill is done is `bound` only then, and says by `parameters` how (the decode leg's
    `kv_transfer_params`, as the node gave them).
    """

    state: Literal["queued", "bound", "done", "failed"]
    position: int = 0
    node: str = ""
    epoch: int = 0
    remote: list[Address] = []
    ticket: str = ""
    connections: int = 1
    code: str = ""
    detail: str = ""
    parameters: dict[str, Any] | None = None


class PrefillInfo(msgspec.Struct, frozen=True):
    """A prefill of `tokens` tokens that a head has: it waits, or runs, for `ms` by now."""

    transfer: str
    tokens: int
    ms: int


class ClusterInfo(msgspec.Struct, frozen=True):
    """A cluster head about its cluster: nodes ready, prefills waiting and running, model and layout served; and what
    is the trouble when no node is ready.

    `waiting`, next first, and `at_work`: the first `LISTED` of each, and of those that are not listed the tokens,
    `waiting_tokens` and `at_work_tokens`. `slots`: prefills that the ready nodes take at once. `prefill_ns`: as in
    `NodeInfo`, of one of its nodes in the mean, told or learned; empty while it is not known. `nodes`: its prefill
    nodes, ready or not. `copies`: as in `NodeInfo`, of all of them that are ready.
    """

    cluster: str
    model: str
    layout: str
    ready: int
    queued: int
    running: int
    max_model_len: int
    trouble: str = ""
    slots: int = 0
    waiting: list[PrefillInfo] = []
    waiting_tokens: int = 0
    at_work: list[PrefillInfo] = []
    at_work_tokens: int = 0
    prefill_ns: list[tuple[int, int]] = []
    nodes: int | None = None
    copies: bool = False
