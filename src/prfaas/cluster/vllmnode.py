"""Nodes that are `vllm serve`: what they say of themselves, put together from vLLM's doors and our connector's.

It knows vLLM's health, model list and metrics, and where our connector listens beside them. It does not know queues or
requests' lives. `StreamingVllm` hands KV over while it prefills (our connector); `SequentialVllm` when it has, by the
parameters that its answer carries (NixlConnector).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import aiohttp
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from prfaas.cluster.nodeclient import NodeAddress, NodeClient
from prfaas.core.errors import PeerFailure, ProtocolError
from prfaas.core.ids import ClusterName
from prfaas.runtime.client import call, fetch
from prfaas.wire.control import CreditReply, CreditRequest, NodeInfo, PaceLease, TransferParams

T = TypeVar("T")
MAX_METRICS_BYTES = 16 << 20
REMOTE_DECODE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What vLLM's own connectors take to mean: prefill, and say how the KV can be had."""


@dataclass(frozen=True, slots=True)
class VllmNode:
    """What the topology says of one: `control` is the URL of our connector's door, "" when it has none."""

    cluster: ClusterName
    role: Literal["prefill", "decode"]
    model: str
    max_sequences: int
    control: str


class _Model(msgspec.Struct):
    id: str
    max_model_len: int = 0


class _Models(msgspec.Struct):
    data: list[_Model]


class SequentialVllm(NodeClient):
    """A node whose KV is fetched once its prefill is over, by vLLM's own connector."""

    streams = False
    tells_cause = False

    def __init__(self, session: aiohttp.ClientSession, node: NodeAddress, vllm: VllmNode) -> None:
        super().__init__(session, node)
        self._vllm = vllm

    async def info(self, timeout_s: float) -> NodeInfo:
        """Put together from vLLM's model list, health and metrics. Raises PeerFailure until it is healthy."""
        await self._healthy(timeout_s)
        models = await self.get("/v1/models", _Models, timeout_s)
        served = next((model for model in models.data if model.id == self._vllm.model), None)
        if served is None:
            said = f"{self.node.url} serves {', '.join(model.id for model in models.data)[:200]}"
            raise PeerFailure("wrong_model", f"{said}, not {self._vllm.model}")
        load = await self._load(timeout_s)
        return NodeInfo(
            node=self.node.name,
            cluster=self._vllm.cluster,
            role=self._vllm.role,
            epoch=load.started_ns,
            model=served.id,
            layout="",  # vLLM's own connectors compare the geometry themselves
            max_model_len=served.max_model_len,
            max_sequences=self._vllm.max_sequences,
            data=[],
            running=load.running,
            block_tokens=load.block_tokens,
            kv_blocks=load.kv_blocks,
        )

    async def credit(self, request: CreditRequest, timeout_s: float) -> CreditReply:
        """vLLM takes KV when it has blocks for it: there is nothing to ask for."""
        return CreditReply(request.transfer_id, 0, self.node.name)

    async def release_credit(self, transfer: str, timeout_s: float) -> None:
        """There was none."""

    async def pace(self, lease: PaceLease, timeout_s: float) -> None:
        """vLLM's own connectors cannot be paced."""

    def parameters(self, params: TransferParams) -> dict[str, Any]:
        """Of a prefill leg. (A decode leg gets what the prefill answered.)"""
        return {**REMOTE_DECODE} if params.do_remote_decode else {}

    async def sent(self, transfer: str) -> None:
        """The decode node fetches when it likes: not followed from here."""

    async def _healthy(self, timeout_s: float) -> None:
        await fetch(self._session, f"{self.node.url}/health", timeout_s=timeout_s)

    async def _load(self, timeout_s: float) -> Load:
        url = f"{self.node.url}/metrics"
        text = await fetch(self._session, url, timeout_s=timeout_s, max_bytes=MAX_METRICS_BYTES)
        return load_of(text.decode(errors="replace"), url)


class StreamingVllm(SequentialVllm):
    """A node with our connector: it has the node protocol's control endpoints beside vLLM's door."""

    streams = True

    async def info(self, timeout_s: float) -> NodeInfo:
        """What the connector says, with vLLM's load. Raises PeerFailure until both are up."""
        await self._healthy(timeout_s)
        info = await self._control("GET", "/prfaas/v1/node", None, NodeInfo, timeout_s)
        load = await self._load(timeout_s)
        return msgspec.structs.replace(
            info, running=load.running, block_tokens=load.block_tokens, kv_blocks=load.kv_blocks
        )

    async def credit(self, request: CreditRequest, timeout_s: float) -> CreditReply:
        """See NodeClient."""
        return await self._control("POST", "/prfaas/v1/credit", request, CreditReply, timeout_s)

    async def release_credit(self, transfer: str, timeout_s: float) -> None:
        """See NodeClient."""
        await self._control("DELETE", f"/prfaas/v1/credit/{transfer}", None, dict[str, Any], timeout_s)

    async def pace(self, lease: PaceLease, timeout_s: float) -> None:
        """See NodeClient."""
        await self._control("POST", "/prfaas/v1/pace", lease, dict[str, Any], timeout_s)

    def parameters(self, params: TransferParams) -> dict[str, Any]:
        """Under a name of our own, so that a connector of vLLM's beside ours does not take them for its own."""
        return {"prfaas": params} if params.do_remote_decode or params.do_remote_prefill else {}

    async def sent(self, transfer: str) -> None:
        """Until the KV has left: the answer of vLLM only says that it was computed.

        Raises PeerFailure, "kv_transfer_failed", when it did not arrive.
        """
        outcome = await self._control("GET", f"/prfaas/v1/sent/{transfer}", None, _Sent, None)
        if outcome.cause != "applied":
            raise PeerFailure("kv_transfer_failed", f"{outcome.cause}: {outcome.detail}")

    async def _control(
        self, method: str, path: str, body: msgspec.Struct | None, kind: type[T], timeout_s: float | None
    ) -> T:
        return await call(self._session, method, self._vllm.control + path, body, kind, timeout_s=timeout_s)


class _Sent(msgspec.Struct):
    cause: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """What vLLM's metrics say: sequences `running` (those that wait included), KV blocks, and since when it runs."""

    running: int
    block_tokens: int
    kv_blocks: int
    started_ns: int


def load_of(metrics: str, source: str) -> Load:
    """From the text of `/metrics`, over all engines of the server. Raises ProtocolError when that is not vLLM's."""
    found: dict[str, float] = {}
    block_tokens = 0
    try:
        for family in text_string_to_metric_families(metrics):
            for sample in family.samples:
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
                if sample.name == "vllm:cache_config_info":
                    block_tokens = _whole(sample.labels.get("block_size"))
                    found["blocks"] = found.get("blocks", 0.0) + _whole(sample.labels.get("num_gpu_blocks"))
    except ValueError as error:
        raise ProtocolError("bad_reply", f"{source}: {error}") from None
    if "vllm:num_requests_running" not in found:
        raise ProtocolError("bad_reply", f"{source}: no vllm:num_requests_running; expected vLLM's metrics")
    running = found["vllm:num_requests_running"] + found.get("vllm:num_requests_waiting", 0.0)
    started_ns = int(found.get("process_start_time_seconds", 0.0) * 1e9)
    return Load(int(running), block_tokens, int(found.get("blocks", 0.0)), max(1, started_ns))


def _whole(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0
