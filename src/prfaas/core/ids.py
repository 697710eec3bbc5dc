"""Names of things, as types: so that a node's name is never taken for a transfer's."""

from __future__ import annotations

from typing import NewType

ClusterName = NewType("ClusterName", str)
NodeName = NewType("NodeName", str)
LinkName = NewType("LinkName", str)
"""`from->to`, cluster names; a hand-over inside one cluster has the link `cluster->cluster`."""

RequestId = NewType("RequestId", str)
"""One client request, for as long as the gateway answers it."""

TransferId = NewType("TransferId", str)
"""One hand-over of one request's KV. Unique per request *and attempt*: `request.attempt`."""

SessionId = NewType("SessionId", str)
"""The receiver's own mark for one transfer; all its connections, first and resumed, show the same one."""

Epoch = NewType("Epoch", int)
"""A node's incarnation: larger after each restart (wall-clock ns at its start)."""


def transfer_of(request: RequestId, attempt: int) -> TransferId:
    """The transfer of one attempt."""
    return TransferId(f"{request}.{attempt}")
