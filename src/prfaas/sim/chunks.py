"""Prefill in chunks, several prompts on a node: what a chunk takes, and a node that computes one of each in turn.

It knows chunks, slots and times; it does not know what begins or ends with a prompt (`chunked`). Chunks end at
multiples of their size, counted from the start of the prompt, so that prompts with a common prefix have the same ends.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from prfaas.sim.costs import PrefillNs
from prfaas.sim.nodes import PrefillNode
from prfaas.sim.request import UNSEEN


@dataclass(frozen=True, slots=True)
class ChunkSetup:
    """`tokens` of a chunk; `prompts` that a prefill node holds at once."""

    tokens: int
    prompts: int = 1


def chunks_of(cost: PrefillNs, size: int, uncached: int, context: int) -> list[tuple[int, int]]:
    """Of the last `uncached` of `context` tokens: where each chunk ends, tokens from the start, and what it takes.

    Together they take what the profile says of the whole; each what the prompt takes up to its end, less what it takes
    up to the end before.
    """
    cached = at = context - uncached
    found, before_ns = [], 0
    while at < context:
        at = min(context, at - at % size + size)
        until_ns = max(before_ns, cost(at - cached, at))
        found.append((at, until_ns - before_ns))
        before_ns = until_ns
    return found


class Slot(PrefillNode):
    """One prompt's place on a device. `chunks`: those that are left, the next one last; `length`: how far the prompt is
    computed; `each`: bytes of KV that a token makes."""

    __slots__ = ("chunks", "device", "each", "length")

    def __init__(self, cluster: int, number: int, now_ns: int, device: Device) -> None:
        super().__init__(cluster, number, now_ns)
        self.device = device
        self.chunks: list[tuple[int, int]] = []
        self.length = 0
        self.each = 0.0


class Device:
    """One node. `turn`: the slots that have chunks left, the one that computes first. `held`: slots with a prompt;
    `free`: those without, but for one that the cluster's list of idle nodes has while nothing is held (`idle`).
    `work_ns`: what all chunks that are left take, the one that began at `began_ns` included. `expected_ns`: when all
    will be done, as policies see it."""

    __slots__ = (
        "began_ns",
        "cluster",
        "computing",
        "expected_ns",
        "free",
        "held",
        "idle",
        "slots",
        "turn",
        "version",
        "work_ns",
    )

    def __init__(self, cluster: int, first: int, now_ns: int, prompts: int) -> None:
        self.cluster = cluster
        self.slots = [Slot(cluster, first + at, now_ns, self) for at in range(prompts)]
        self.free: list[Slot] = []
        self.turn: deque[Slot] = deque()
        self.held = self.version = self.work_ns = self.began_ns = 0
        self.idle = self.computing = False
        self.expected_ns = UNSEEN

    def done_ns(self, now_ns: int) -> int:
        """When all that it holds will be done if nothing more comes, what waits for a copied prefix included."""
        if not self.held:
            return UNSEEN
        done = max(now_ns, self.began_ns + self.work_ns) if self.turn else now_ns
        return max([done, *(slot.expected_ns for slot in self.slots if slot.copy is not None)])
