"""The router's machine: all requests of one gateway, over one view of the world.

It knows the view, the policy and the requests that live; it does not know HTTP, time or sockets. Each decision is
one pure call; everything it rests on came in as an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from prfaas.core.errors import InvariantError
from prfaas.core.ids import ClusterName, LinkName, NodeName, RequestId
from prfaas.core.routing.backlog import Backlog
from prfaas.core.routing.cached import Cached
from prfaas.core.routing.catalog import DEFAULT
from prfaas.core.routing.chooser import Chooser
from prfaas.core.routing.effects import Ended
from prfaas.core.routing.events import Arrived, Claimed, CreditGranted, NodeLost, RequestEvent
from prfaas.core.routing.placement import choose_decoder, choose_holder
from prfaas.core.routing.request import Effect, Life, NoPlace, Place, RequestLife, Tried
from prfaas.core.routing.threshold import Threshold
from prfaas.core.routing.view import DecodeLost, DecodeSeen, Source, SourceSeen, View

RouterEvent = RequestEvent | SourceSeen | DecodeSeen | DecodeLost


@dataclass(frozen=True, slots=True)
class RouterPolicy:
    """`threshold` t, tokens; `whole_limit`: longest prompt, tokens, that a decode node may compute whole; `attempts`:
    places that are tried for one request before its error is shown. `kind`: a name of `catalog`; `order`: see
    `Policy.order`, None: the policy's own. `remainder`: tokens of a prompt that a decode node which holds the rest
    computes itself, see `placement.choose_holder`; 0: none does; `copies`: whether prefixes are copied between
    clusters."""

    threshold: Threshold
    whole_limit: int
    attempts: int
    kind: str = DEFAULT
    order: float | None = None
    remainder: int = 0
    copies: bool = True


class Router:
    """`handle(now_ns, event)` for every request and report of one gateway in cluster `home`."""

    def __init__(self, home: ClusterName, sources: tuple[Source, ...], policy: RouterPolicy) -> None:
        self.view = View(sources)
        self.requests: dict[RequestId, RequestLife] = {}
        self._home = home
        self._policy = policy
        self._chooser = Chooser(policy.kind, policy.threshold, policy.order, policy.whole_limit, sources, policy.copies)
        self._ledger = self._chooser.ledger

    @property
    def backlogs(self) -> Sequence[Backlog]:
        """What policies see: our own cluster first. Not to be changed."""
        return self._ledger.backlogs

    def handle(self, now_ns: int, event: RouterEvent) -> list[Effect]:
        """Effects of `event`. News of a request that is over changes nothing."""
        match event:
            case SourceSeen():
                self.view.seen[event.cluster] = event
                self._ledger.report(now_ns, event)
                return self._claims(now_ns)
            case DecodeSeen():
                self.view.decoders[event.node] = event
                return []
            case DecodeLost():
                return self._lost(now_ns, event) + self._claims(now_ns)
            case Arrived():
                if event.request in self.requests:
                    raise InvariantError(f"request {event.request} arrived twice")
                policy = self._policy
                life = RequestLife(event.request, self._plan, self._home, policy.threshold.tokens, policy.attempts)
                self.requests[event.request] = life
            case _:
                known = self.requests.get(event.request)
                if known is None:
                    return []
                life = known
                if isinstance(event, CreditGranted):
                    self._ledger.kv.seen(life.tokens, event.kv_bytes)
        return self._step(now_ns, life, event) + self._claims(now_ns)

    def _claims(self, now_ns: int) -> list[Effect]:
        """Idle nodes take what waits elsewhere, if the policy lets them."""
        effects: list[Effect] = []
        while (claim := self._ledger.claims(now_ns, self._chooser.policy)) is not None:
            request, source = claim
            life = self.requests[request]
            if not life.movable:
                break
            copy = self._ledger.copy(now_ns, request, self._ledger.sources.index(source))
            event = Claimed(request, life.attempt, source.cluster, source.link, not source.home, copy)
            effects += self._step(now_ns, life, event)
        return effects

    def _lost(self, now_ns: int, event: DecodeLost) -> list[Effect]:
        if event.until_ns is None:
            self.view.decoders.pop(event.node, None)
        effects: list[Effect] = []
        for life in list(self.requests.values()):
            if life.given_to(event.node, event.until_ns):
                effects += self._step(now_ns, life, NodeLost(life.request, life.attempt, event.detail))
        return effects

    def _step(self, now_ns: int, life: RequestLife, event: RequestEvent) -> list[Effect]:
        node, source = life.place.node if life.place and life.state is not Life.NEW else None, life.source
        effects = life.handle(now_ns, event)
        _count(self.view.assigned, node, life.place.node if life.place and life.state is not Life.ENDED else None)
        _count(self.view.sent, source, life.source)
        self._ledger.follow(now_ns, life.request, life.stage)
        if any(isinstance(effect, Ended) for effect in effects):
            self._ledger.forget(now_ns, life.request)
            del self.requests[event.request]
        return effects

    def validate(self) -> None:
        """Raises InvariantError when a request's state, or the count of what nodes and sources were given, is wrong."""
        counts: dict[NodeName, int] = {}
        sent: dict[ClusterName, int] = {}
        for life in self.requests.values():
            life.validate()
            if life.place is not None:
                counts[life.place.node] = counts.get(life.place.node, 0) + 1
            if life.source is not None:
                sent[life.source] = sent.get(life.source, 0) + 1
        if counts != self.view.assigned or sent != self.view.sent:
            raise InvariantError(
                f"assigned {self.view.assigned}, sent {self.view.sent}; requests say {counts} and {sent}"
            )
        self._ledger.validate({request: life.stage for request, life in self.requests.items()})

    def _plan(self, now_ns: int, request: RequestId, tokens: int, cached: Cached, tried: Tried) -> Place | NoPlace:
        holder = self._holder(tokens, cached, tried)
        if holder is not None:
            held = min(cached.decoders[holder], tokens - 1)
            return Place(holder, None, LinkName(""), False, "held", cached=held)
        node = choose_decoder(self.view, tokens, tried.nodes, cached.rows)
        if node is None:
            return self._no_decoder(tokens, tried)
        choice = self._chooser.choose(
            now_ns, request, tokens, self.view, tried.clusters, tried.stays, tried.why, cached
        )
        if choice.source is None:
            if tokens > self._policy.whole_limit:
                if tried.stays == "echo":  # asked for: no other try can help
                    limit = self._policy.whole_limit
                    said = f"echo: a decode node computes at most {limit} tokens by itself, the prompt has {tokens}"
                    return NoPlace(413, "context_length_exceeded", said)
                message = (
                    f"no prefill node can take {tokens} tokens now, and a decode node computes at most"
                    f" {self._policy.whole_limit} by itself"
                )
                message += f"; the last failure: {tried.last}" if tried.last else ""
                return NoPlace(503, "no_prefill_node", message)
            node = choose_decoder(self.view, tokens, tried.nodes, cached.decoders) or node  # it computes, nothing lands
            held = min(cached.decoders.get(node, 0), tokens - 1)
            return Place(node, None, LinkName(""), False, choice.reason, choice.unknown, cached=held)
        source, held = choice.source, cached.at(choice.source.cluster, tokens)
        return Place(
            node,
            source.cluster,
            source.link,
            not source.home,
            choice.reason,
            choice.unknown,
            choice.scores,
            held,
            choice.copy,
        )

    def _holder(self, tokens: int, cached: Cached, tried: Tried) -> NodeName | None:
        """A node that computes it whole because it holds most of it. What it holds may be gone when it begins: so it is
        never given more than it may compute without."""
        policy = self._policy
        if not (policy.remainder and cached.decoders) or tried.stays or tokens > policy.whole_limit:
            return None
        return choose_holder(self.view, tokens, policy.remainder, cached, tried.clusters, tried.nodes)

    def _no_decoder(self, tokens: int, tried: Tried) -> NoPlace:
        ready = [d for d in self.view.decoders.values() if d.ready]
        if ready and all(tokens > d.max_tokens for d in ready):
            longest = max(d.max_tokens for d in ready)
            return NoPlace(413, "context_length_exceeded", f"{tokens} tokens; the longest that is served is {longest}")
        what = f"no decode node is left; the last failure: {tried.last}" if tried.nodes else "no decode node is ready"
        return NoPlace(503, "no_decode_node", what)


Name = TypeVar("Name", NodeName, ClusterName)


def _count(counts: dict[Name, int], before: Name | None, after: Name | None) -> None:
    """A request moved. They come and go; only those with work are remembered."""
    if before == after:
        return
    if before is not None:
        counts[before] -= 1
        if not counts[before]:
            del counts[before]
    if after is not None:
        counts[after] = counts.get(after, 0) + 1
