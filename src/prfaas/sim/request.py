"""One simulated request: a job for the policies, and what happened to it."""

from __future__ import annotations

from prfaas.core.routing.policy import Job
from prfaas.sim.flow import Flow

UNSEEN = -1


class Request(Job):
    """`output`: tokens of its answer. `blocks`: ids of its full blocks. `tries`: how often it was placed. `source`: the
    cluster from which its KV crosses a link, -1 while none does. `counted`: statistics want it. Times are of the last
    try, `UNSEEN` until they are known."""

    __slots__ = (
        "begun_ns",
        "blocks",
        "counted",
        "done_ns",
        "first_ns",
        "flow",
        "landed_ns",
        "output",
        "rescuer",
        "session",
        "source",
        "tries",
    )

    output: int
    blocks: tuple[int, ...]
    counted: bool
    tries: int
    source: int
    begun_ns: int
    done_ns: int
    landed_ns: int
    first_ns: int
    flow: Flow | None
    rescuer: int
    session: int

    @property
    def unsent_bytes(self) -> int:
        """What of its KV has yet to leave, as the line last counted."""
        return 0 if self.flow is None else self.flow.left

    def ready(self, output: int, blocks: tuple[int, ...], counted: bool) -> None:
        """Set what a job does not have. A method, not a constructor, since it costs less."""
        self.output = output
        self.blocks = blocks
        self.counted = counted
        self.tries = 0
        self.source = -1
        self.begun_ns = self.done_ns = self.landed_ns = self.first_ns = UNSEEN
        self.flow = None
        self.rescuer = -1
        self.session = -1
