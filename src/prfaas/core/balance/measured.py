"""What a cluster's traffic and links were lately: counted as it happens, read by whoever decides.

It knows requests, answers and links by number; it does not know nodes or what work costs. `arrived` and `ended` are on
every request's way, so they are plain calls that cost about a microsecond.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from prfaas.core.balance.smooth import Smooth
from prfaas.core.balance.window import Window
from prfaas.core.throughput.lengths import Lengths

MINUTE_NS = 60_000_000_000


@dataclass(frozen=True, slots=True)
class Span:
    """How far back to look: `slots` parts of `slot_ns`. `tau_ns`: over how long a link's rate is smoothed. `bins`: of
    length, at most, in what is read: fewer where each costs a linear program (several PrfaaS clusters)."""

    slot_ns: int = MINUTE_NS
    slots: int = 15
    tau_ns: int = 10 * MINUTE_NS
    bins: int = 1024


@dataclass(frozen=True, slots=True)
class Traffic:
    """`context[i]`: mean prompt tokens of bin `i` of `lengths`, cached ones included. `requests` were seen, at
    `arrivals_rps`. `output`: mean tokens of an answer; `output_error`: its relative standard error. `links_bps`: from
    each remote."""

    lengths: Lengths
    context: tuple[float, ...]
    requests: int
    arrivals_rps: float
    output: float
    output_error: float
    links_bps: tuple[float, ...]


class Measured:
    """`nominal_bps`: of the link from each remote, until it is measured. `output`: tokens of an answer, until one has
    ended."""

    __slots__ = ("_began_ns", "_links", "arrived", "ended", "output", "span", "window")

    def __init__(self, nominal_bps: tuple[float, ...], output: float, span: Span | None = None, now_ns: int = 0):
        self.span = span or Span()
        self.output = output
        self.window = Window(self.span.slot_ns, self.span.slots)
        self.arrived = self.window.arrived
        self.ended = self.window.ended
        self._began_ns = now_ns
        self._links = [Smooth(self.span.tau_ns, bps, now_ns) for bps in nominal_bps]

    def carried(self, now_ns: int, remote: int, bps: float) -> None:
        """The link from `remote` (its number) can carry `bps`: measured while it was busy, or 0 while it is down."""
        self._links[remote].add(now_ns, bps)

    def traffic(self, now_ns: int) -> Traffic | None:
        """What was seen, or None when no request was."""
        self.window.advance(now_ns)
        found = self.window.lengths(self.span.bins)
        if found is None:
            return None
        lengths, context = found
        requests = self.window.requests
        ended, tokens, squares = self.window.outputs()
        output = tokens / ended if tokens else self.output
        spread = squares / ended / (output * output) - 1 if tokens else 1.0
        span_ns = self.span.slots * self.span.slot_ns + now_ns % self.span.slot_ns
        span_ns = max(1, min(span_ns, now_ns - self._began_ns))
        return Traffic(
            lengths,
            context,
            requests,
            requests * 1e9 / span_ns,
            output,
            sqrt(max(spread, 0.0) / max(ended, 1)),
            tuple(link.value or 0.0 for link in self._links),
        )
