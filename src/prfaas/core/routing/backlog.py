"""A cluster as policies see it: nodes, when they will be free, who waits in which order, and its links.

It is the queue of the cluster too: order and hand-over are here, once. It knows jobs by their keys; it does not know
how long anything really takes, nor who asked. A job waits in one queue at a time; whoever takes it names the epoch
under which it was offered, and a late claim finds another epoch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING

from prfaas.core.errors import InvariantError
from prfaas.core.routing.order import key_ns
from prfaas.core.routing.uplink import NEVER_NS, Uplink

if TYPE_CHECKING:
    from prfaas.core.routing.policy import Job

LOOK = 64
"""Waiting jobs that a prediction goes through one by one; what waits beyond them is taken as evenly spread."""

Key = tuple[int, int]


class Backlog:
    """`at`: its number. `nodes`: how many can take work. `ends`: when each running prefill is expected to end. `links`:
    by the home that they lead to. `order`: see `Policy.order`. `stuck`: by home, jobs prefilled here whose KV
    has not arrived."""

    __slots__ = ("_jobs", "_keys", "at", "ends", "links", "name", "nodes", "order", "stuck", "work_ns")

    def __init__(self, at: int, name: str, nodes: int, order: float = 0.0) -> None:
        self.at = at
        self.name = name
        self.nodes = nodes
        self.order = order
        self.ends: list[int] = []
        self.links: dict[int, Uplink] = {}
        self.stuck: dict[int, dict[int, Job]] = {}
        self.work_ns = 0
        self._keys: list[Key] = []
        self._jobs: list[Job] = []

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def idle(self) -> int:
        """Nodes without work."""
        free = self.nodes - len(self.ends)
        return free if free > 0 else 0

    @property
    def waiting(self) -> list[Job]:
        """Those that wait, next first. Not to be changed."""
        return self._jobs

    def key_ns(self, job: Job) -> int:
        """What orders the queue: arrival + order * prefill time. No later job can be before it for ever."""
        return key_ns(self.order, job.arrival_ns, job.prefill_ns[self.at])

    def push(self, job: Job) -> None:
        """`job` waits here from now on."""
        job.where, job.key_ns, job.epoch = self.at, self.key_ns(job), job.epoch + 1
        key = (job.key_ns, job.number)
        at = bisect_right(self._keys, key)
        self._keys.insert(at, key)
        self._jobs.insert(at, job)
        self.work_ns += job.prefill_ns[self.at]
        if job.home in self.links:
            self.links[job.home].queued_bytes += job.kv_bytes[self.at]

    def pop(self) -> Job:
        """The next one, which starts here."""
        return self._taken(0)

    def claim(self, job: Job, epoch: int) -> bool:
        """Take `job` out for another cluster, if it still waits here under `epoch`."""
        if job.where != self.at or job.epoch != epoch:
            return False
        at = bisect_left(self._keys, (job.key_ns, job.number))
        if at == len(self._jobs) or self._jobs[at] is not job:
            return False
        self._taken(at)
        return True

    def drop_all(self) -> list[Job]:
        """Everybody who waits, taken out."""
        dropped = list(self._jobs)
        while self._jobs:
            self._taken(len(self._jobs) - 1)
        return dropped

    def started(self, end_ns: int) -> None:
        """A node began a prefill that should end then."""
        insort(self.ends, end_ns)

    def ended(self, end_ns: int) -> None:
        """The prefill that should have ended at `end_ns` is over."""
        at = bisect_left(self.ends, end_ns)
        if at == len(self.ends) or self.ends[at] != end_ns:
            raise InvariantError(f"no prefill on {self.name} ends at {end_ns}")
        del self.ends[at]

    def wait_ns(self, now_ns: int, job: Job) -> int:
        """How long `job`, which is not here, would wait for a node here if nobody came before it later."""
        if not self.nodes:
            return NEVER_NS
        if not self._jobs:
            if len(self.ends) < self.nodes:
                return 0
            ahead = 0
        else:
            ahead = bisect_right(self._keys, (self.key_ns(job), job.number))
        if ahead == 0:
            free = self.idle
            return 0 if free else max(0, self.ends[len(self.ends) - self.nodes] - now_ns)
        starts, rest_ns = self._starts(now_ns, min(ahead, LOOK))
        if ahead <= LOOK:
            return starts[0] - now_ns
        share = (self.work_ns * (ahead - LOOK)) // len(self._jobs)
        return rest_ns + share // self.nodes

    def starts(self, now_ns: int) -> list[int]:
        """When each of the first `LOOK` that wait is expected to begin."""
        if not self.nodes:
            return [NEVER_NS] * min(LOOK, len(self._jobs))
        free = self._free(now_ns)
        found = []
        at = self.at
        for job in self._jobs[:LOOK]:
            begin = free[0]
            found.append(begin)
            heapreplace(free, begin + job.prefill_ns[at])
        return found

    def per_node_ns(self, now_ns: int) -> int:
        """Work that waits or runs, a node."""
        if not self.nodes:
            return NEVER_NS
        running = 0
        for end in self.ends:
            if end > now_ns:
                running += end - now_ns
        return (self.work_ns + running) // self.nodes

    def validate(self) -> None:
        """Raises InvariantError when order or sums are wrong."""
        if self._keys != sorted(self._keys) or len(self._keys) != len(self._jobs):
            raise InvariantError(f"the queue of {self.name} is out of order")
        if self.work_ns != sum(job.prefill_ns[self.at] for job in self._jobs):
            raise InvariantError(f"the queue of {self.name} miscounts its work")
        for home, link in self.links.items():
            if link.queued_bytes != sum(job.kv_bytes[self.at] for job in self._jobs if job.home == home):
                raise InvariantError(f"the queue of {self.name} miscounts what it will send")

    def _free(self, now_ns: int) -> list[int]:
        free = [end if end > now_ns else now_ns for end in self.ends[max(0, len(self.ends) - self.nodes) :]]
        free += [now_ns] * (self.nodes - len(free))
        heapify(free)
        return free

    def _starts(self, now_ns: int, ahead: int) -> tuple[list[int], int]:
        """The heap of free times once the first `ahead` were placed, and the mean wait then."""
        free = self._free(now_ns)
        at = self.at
        for place in range(ahead):
            heapreplace(free, free[0] + self._jobs[place].prefill_ns[at])
        return free, sum(free) // len(free) - now_ns

    def _taken(self, at: int) -> Job:
        job = self._jobs.pop(at)
        del self._keys[at]
        self.work_ns -= job.prefill_ns[self.at]
        if job.home in self.links:
            self.links[job.home].queued_bytes -= job.kv_bytes[self.at]
        job.where = -1
        return job
