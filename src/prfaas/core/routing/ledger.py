"""The backlogs of one gateway's sources: its own jobs by its requests' lives, those of others by what heads report.

It knows backlogs, reports and which transfers are its own; it does not know policies or why a request is where it is.
Backlogs are driven as the simulator drives them: a job is pushed where it is placed, leaves the queue when a node is
bound, and runs until its prefill lets go. A head's report says who else waits and runs there. Those jobs are in the
backlog until the next report, and no policy may move them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from prfaas.core.errors import InvariantError
from prfaas.core.ids import ClusterName, RequestId, TransferId
from prfaas.core.routing.backlog import Backlog
from prfaas.core.routing.cached import NOTHING, Cached
from prfaas.core.routing.copies import Copies
from prfaas.core.routing.copying import Copy
from prfaas.core.routing.crossing import Crossing
from prfaas.core.routing.curve import Curve
from prfaas.core.routing.kvsize import KvSize
from prfaas.core.routing.policy import IMPOSSIBLE, Job, Policy
from prfaas.core.routing.uplink import Uplink
from prfaas.core.routing.view import JobSeen, Source, SourceSeen

HOME = 0
"""Our own cluster's number: the first option of every job."""
REMEMBERED_NS = 10 * 10**9
"""A report may be that old: a transfer of ours that it lists, and that ended meanwhile, is nobody else's."""
NOWHERE = -1

Stage = tuple[TransferId, ClusterName, bool]
"""Where a request's prefill is: its transfer, the cluster, and whether a node has it."""


class Own:
    """A request of ours. `at`: the cluster that has its prefill, or `NOWHERE`; `end_ns`: when it should end, once it
    runs. `copy`: what was decided of a longer prefix elsewhere."""

    __slots__ = ("at", "cached", "copy", "end_ns", "job", "request", "transfer")

    def __init__(self, request: RequestId, job: Job) -> None:
        self.request = request
        self.job = job
        self.transfer: TransferId | None = None
        self.at = NOWHERE
        self.end_ns: int | None = None
        self.cached = NOTHING
        self.copy: Copy | None = None


class Ledger:
    """`backlogs[0]` is our own cluster's, then those of the other `sources` in their order."""

    def __init__(self, sources: Sequence[Source], order: float, copies: bool = True) -> None:
        self.sources = tuple(sorted(sources, key=lambda source: not source.home))
        if [source.home for source in self.sources].count(True) != 1:
            raise InvariantError(f"expected our own cluster among the sources, once: {sources}")
        self.backlogs = [Backlog(at, source.cluster, 0, order) for at, source in enumerate(self.sources)]
        self.kv = KvSize()
        self._curves: list[Curve | None] = [None] * len(self.sources)
        self._crossings: list[Crossing | None] = []
        for source, backlog in zip(self.sources, self.backlogs, strict=True):
            crossing = None if source.home else Crossing(Uplink(source.bandwidth_bps, source.rtt_ns))
            if crossing is not None:
                backlog.links[HOME] = crossing.uplink
                backlog.stuck[HOME] = {}
            self._crossings.append(crossing)
        self.copies = Copies(self.sources, self._crossings, self.kv.at, self._rest_ns, copies)
        self._at = {source.cluster: at for at, source in enumerate(self.sources)}
        self._options = tuple(range(len(self.sources)))
        self._own: dict[RequestId, Own] = {}
        self._numbers: dict[int, Own] = {}
        self._transfers: dict[TransferId, Own] = {}
        self._gone: dict[TransferId, int] = {}
        self._others: list[tuple[list[Job], list[int]]] = [([], []) for _ in self.sources]
        self._came = 0

    def priced(
        self, now_ns: int, request: RequestId, tokens: int, able: Sequence[bool], cached: Cached = NOTHING
    ) -> Job:
        """The job of `request`, which is nowhere now, with what is known of it. What is not known is 0 in it, see
        `unknown`; clusters that are not `able` are impossible. All of the KV crosses a link, whatever was `cached`."""
        own = self._own.get(request)
        if own is None:
            clusters = len(self.sources)
            job = Job(self._came, now_ns, tokens, self._options, [tokens] * clusters, [0] * clusters, [0] * clusters)
            own = self._own[request] = self._numbers[job.number] = Own(request, job)
            self._came += 1
        self._leave(now_ns, own)
        self._book(now_ns)
        job, own.cached, own.copy = own.job, cached, None
        kv_bytes = self.kv.at(tokens) or 0
        for at, can in enumerate(able):
            job.uncached[at] = tokens - cached.at(self.sources[at].cluster, tokens)
            job.prefill_ns[at] = self._job_ns(now_ns, own, at) if can else IMPOSSIBLE
            job.kv_bytes[at] = 0 if at == HOME else kv_bytes
        job.lenders = self.copies.home_from(tokens)
        return job

    def copy(self, now_ns: int, request: RequestId, at: int) -> Copy | None:
        """What becomes of a longer prefix elsewhere now that `request`, which was priced, goes to cluster `at`."""
        own = self._own[request]
        own.copy = self.copies.to(now_ns, at, own.job.tokens, own.cached)
        return own.copy

    def unknown(self, job: Job, cached: Cached = NOTHING) -> tuple[str, ...]:
        """Signals that a choice among the clusters that can take `job` lacks: `speed:CLUSTER`, `bandwidth:CLUSTER`,
        `kv_bytes`, `cache:CLUSTER`. Where there is no choice nothing is lacking."""
        able = [at for at in job.options if job.prefill_ns[at] != IMPOSSIBLE]
        if len(able) < 2:
            return ()
        found = [f"speed:{self.sources[at].cluster}" for at in able if not self.knows(at, job.tokens)]
        away = [at for at in able if at != HOME]
        found += [f"bandwidth:{self.sources[at].cluster}" for at in away if self.sources[at].bandwidth_bps is None]
        if away and self.kv.at(job.tokens) is None:
            found.append("kv_bytes")
        names = [self.sources[at].cluster for at in able]
        found += [f"cache:{name}" for name in names if name in cached.unknown]
        return tuple(found)

    def knows(self, at: int, tokens: int) -> bool:
        """Whether it is known how long cluster `at` takes."""
        curve = self._curves[at]
        return curve is not None and curve.at(tokens) is not None

    def follow(self, now_ns: int, request: RequestId, stage: Stage | None) -> None:
        """Where the prefill of `request` is by now; None: nowhere any more."""
        own = self._own.get(request)
        if own is None:
            if stage is not None:
                raise InvariantError(f"request {request} was placed unpriced")
            return
        if own.transfer is not None and (stage is None or stage[0] != own.transfer):
            self._leave(now_ns, own)
        if stage is None:
            return
        transfer, cluster, runs = stage
        if own.transfer is None:
            own.transfer, own.at = transfer, self._at[cluster]
            self._transfers[transfer] = own
            self.backlogs[own.at].push(own.job)
        if runs and own.end_ns is None:
            self._begin(now_ns, own)

    def forget(self, now_ns: int, request: RequestId) -> None:
        """The request is over. Harmless when it was never priced."""
        own = self._own.pop(request, None)
        if own is not None:
            self._leave(now_ns, own)
            del self._numbers[own.job.number]

    def claims(self, now_ns: int, policy: Policy) -> tuple[RequestId, Source] | None:
        """The request that an idle node elsewhere should take, and where that is; None when there is none.

        A job beside an idle node of its own cluster is as good as started: nobody takes it. Times that are not known
        are no reason to move.
        """
        takers = [at for at, one in enumerate(self.backlogs) if one.idle > len(one)]
        if not takers or not policy.moves or all(one.idle >= len(one) for one in self.backlogs):
            return None
        self._book(now_ns)
        for taker in takers:
            job = policy.claim(now_ns, taker, self.backlogs)
            if job is None or not (self.knows(taker, job.tokens) and self.knows(job.where, job.tokens)):
                continue
            other = self.backlogs[job.where]
            if any(job is one for one in other.waiting[: other.idle]):
                continue
            return self._numbers[job.number].request, self.sources[taker]
        return None

    def report(self, now_ns: int, seen: SourceSeen) -> None:
        """What a head says of its cluster, or that it cannot be asked. News of clusters that are no source is none."""
        at = self._at.get(seen.cluster)
        if at is None:
            return
        backlog, (waiting, ends) = self.backlogs[at], self._others[at]
        for job in waiting:
            if not backlog.claim(job, job.epoch):
                raise InvariantError(f"a job of others is not in the queue of {seen.cluster}")
        for end_ns in ends:
            backlog.ended(end_ns)
        self._others[at] = ([], [])
        backlog.nodes = seen.ready
        self.copies.able[at] = seen.copies
        if seen.curve is not None and seen.curve != self._curves[at]:
            self._curves[at] = seen.curve
            self._reprice(now_ns, at)
        if not seen.ready:
            return
        for one in seen.busy:
            own = self._transfers.get(one.transfer)
            if own is not None and own.at == at and own.end_ns is None:
                self._begin(now_ns, own, one.since_ns)
        self._others[at] = (self._others_waiting(now_ns, at, seen), self._others_running(now_ns, at, seen))
        for job in self._others[at][0]:
            backlog.push(job)
        for end_ns in self._others[at][1]:
            backlog.started(end_ns)

    def validate(self, stages: Mapping[RequestId, Stage | None]) -> None:
        """Raises InvariantError when a backlog contradicts itself, or the lives of the requests: `stages` of all."""
        waiting, ends = [0] * len(self.sources), [list(ends) for _, ends in self._others]
        for request, own in self._own.items():
            stage = stages.get(request)
            if (stage is None) != (own.transfer is None) or (stage is not None and stage[0] != own.transfer):
                raise InvariantError(f"request {request} is at {stage}, its job in {own.transfer}")
            if stage is not None and (self._at[stage[1]] != own.at or (stage[2] and own.end_ns is None)):
                raise InvariantError(f"request {request} is at {stage}, its job at {own.at} until {own.end_ns}")
            if own.transfer is not None and own.end_ns is None:
                waiting[own.at] += 1
                if own.job.where != own.at:
                    raise InvariantError(f"request {request} waits at {own.job.where}, not at {own.at}")
            elif own.end_ns is not None:
                ends[own.at].append(own.end_ns)
        for at, backlog in enumerate(self.backlogs):
            backlog.validate()
            if len(backlog) != waiting[at] + len(self._others[at][0]) or backlog.ends != sorted(ends[at]):
                raise InvariantError(f"{backlog.name} has {len(backlog)} waiting and {backlog.ends} running")
            crossing = self._crossings[at]
            copied = self.copies.on_their_way(crossing) if crossing is not None else 0
            if crossing is not None and len(crossing) - copied != len(ends[at]) - len(self._others[at][1]):
                raise InvariantError(f"{len(crossing)} transfers cross from {backlog.name}")
        placed = sum(own.transfer is not None for own in self._own.values())
        if len(self._transfers) != placed or len(self._numbers) != len(self._own):
            raise InvariantError(f"transfers {sorted(self._transfers)} of requests {sorted(self._own)}")

    def _book(self, now_ns: int) -> None:
        self.copies.book(now_ns)  # the links home are among its own

    def _prefill_ns(self, at: int, tokens: int, uncached: int | None = None) -> int:
        curve = self._curves[at]
        if curve is None:
            return 0
        return curve.rest(tokens, 0 if uncached is None else tokens - uncached) or 0

    def _rest_ns(self, at: int, tokens: int, cached: int) -> int | None:
        curve = self._curves[at]
        return curve.rest(tokens, cached) if curve is not None else None

    def _job_ns(self, now_ns: int, own: Own, at: int) -> int:
        """How long cluster `at` takes for it, with a copy of a longer prefix first where that is sooner."""
        copy = self.copies.to(now_ns, at, own.job.tokens, own.cached)
        if copy is not None and copy.made:
            return copy.whole_ns
        return self._prefill_ns(at, own.job.tokens, own.job.uncached[at])

    def _begin(self, now_ns: int, own: Own, since_ns: int = 0) -> None:
        """A node has it, for `since_ns` by now: it computes, or, where nodes share their time among prefills, will when
        one is free."""
        job, backlog = own.job, self.backlogs[own.at]
        if not backlog.claim(job, job.epoch):
            raise InvariantError(f"job {job.number} does not wait for {backlog.name}")
        ends, nodes = backlog.ends, backlog.nodes
        free_ns = ends[len(ends) - nodes] if 0 < nodes <= len(ends) else now_ns
        own.end_ns = max(now_ns, free_ns) - since_ns + job.prefill_ns[own.at]
        backlog.started(own.end_ns)
        crossing = self._crossings[own.at]
        if crossing is not None and own.transfer is not None:
            crossing.begin(now_ns, own.transfer, own.end_ns, job.kv_bytes[own.at])
        if own.copy is not None and own.copy.made and own.transfer is not None:
            self.copies.begin(now_ns, own.transfer, own.copy)

    def _leave(self, now_ns: int, own: Own) -> None:
        """It has nothing to do with any cluster any more."""
        if own.transfer is None:
            return
        backlog, crossing = self.backlogs[own.at], self._crossings[own.at]
        self.copies.end(now_ns, own.transfer)
        if own.end_ns is not None:
            backlog.ended(own.end_ns)
            if crossing is not None:
                crossing.end(now_ns, own.transfer)
        elif not backlog.claim(own.job, own.job.epoch):
            raise InvariantError(f"job {own.job.number} does not wait for {backlog.name}")
        del self._transfers[own.transfer]
        for transfer, gone_ns in list(islice(self._gone.items(), 2)):  # the oldest: as many as come, and one more
            if now_ns - gone_ns > REMEMBERED_NS:
                del self._gone[transfer]
        self._gone[own.transfer] = now_ns
        own.transfer, own.at, own.end_ns = None, NOWHERE, None

    def _reprice(self, now_ns: int, at: int) -> None:
        """It is known anew how long cluster `at` takes."""
        backlog = self.backlogs[at]
        mine = [own.job for own in self._own.values() if own.transfer is not None and own.end_ns is None]
        here = [job for job in mine if job.where == at]
        for job in here:
            backlog.claim(job, job.epoch)
        for job in mine:
            if job.prefill_ns[at] != IMPOSSIBLE:
                job.prefill_ns[at] = self._job_ns(now_ns, self._numbers[job.number], at)
        for job in here:
            backlog.push(job)

    def _others_waiting(self, now_ns: int, at: int, seen: SourceSeen) -> list[Job]:
        theirs = [one for one in seen.queue if self._is_foreign(one)]
        jobs = [self._other(at, nth, now_ns - one.since_ns, one.tokens, 1) for nth, one in enumerate(theirs)]
        listed = {one.transfer for one in seen.queue}
        mine = [
            own
            for own in self._transfers.values()
            if own.at == at and own.end_ns is None and own.transfer not in listed
        ]
        many = seen.waiting - len(seen.queue) - len(mine)
        tokens = seen.rest_waiting - sum(own.job.tokens for own in mine)
        if many > 0 and tokens > 0:  # behind those that are listed, as one
            jobs.append(self._other(at, len(jobs), now_ns, tokens // many, many))
        return jobs

    def _others_running(self, now_ns: int, at: int, seen: SourceSeen) -> list[int]:
        theirs = [one for one in seen.busy if self._is_foreign(one)]
        sharing = max(1, -(-seen.running // seen.ready))
        ends = [now_ns - one.since_ns + sharing * self._prefill_ns(at, one.tokens) for one in theirs]
        listed = {one.transfer for one in seen.busy}
        mine = [
            own
            for own in self._transfers.values()
            if own.at == at and own.end_ns is not None and own.transfer not in listed
        ]
        many = seen.running - len(seen.busy) - len(mine)
        tokens = seen.rest_running - sum(own.job.tokens for own in mine)
        if many > 0 and tokens > 0:  # half done, as far as anybody knows
            ends += [now_ns + sharing * self._prefill_ns(at, tokens // many) // 2] * many
        return ends

    def _is_foreign(self, one: JobSeen) -> bool:
        return one.transfer not in self._transfers and one.transfer not in self._gone

    def _other(self, at: int, nth: int, arrival_ns: int, tokens: int, many: int) -> Job:
        """A job, or `many` alike, of somebody else: only `at` can have it, so nobody can take it from there, and its KV
        crosses no link of ours."""
        clusters = len(self.sources)
        prefill = [IMPOSSIBLE] * clusters
        prefill[at] = many * self._prefill_ns(at, tokens)
        return Job(-1 - nth, arrival_ns, tokens, (at,), [tokens] * clusters, prefill, [0] * clusters)
