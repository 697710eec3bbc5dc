"""One simulated request: a job for the policies, and what happened to it."""

from __future__ import annotations

from prfaas.core.routing.policy import Job
from prfaas.sim.flow import Flow

UNSEEN = -1


class Request(Job):
    """`output`: tokens of its answer. Times are of the last try, `UNSEEN` until they are known. `node`: of the prefill
    cluster, or -1. `tries`: how often it was placed. `counted`: statistics want it."""

    __slots__ = ("begun_ns", "counted", "done_ns", "first_ns", "flow", "landed_ns", "output", "rescuer", "tries")

    output: int
    counted: bool
    tries: int
    begun_ns: int
    done_ns: int
    landed_ns: int
    first_ns: int
    flow: Flow | None
    rescuer: int

    def ready(self, output: int, counted: bool) -> None:
        """Set what a job does not have. A method, not a constructor, since it costs less."""
        self.output = output
        self.counted = counted
        self.tries = 0
        self.begun_ns = self.done_ns = self.landed_ns = self.first_ns = UNSEEN
        self.flow = None
        self.rescuer = -1
