"""Who comes when, with how long a prompt: streams of `Arrival`, from seeded chance that is handed in.

It knows times, lengths and blocks; it does not know clusters. Times never go back. Each stream is endless or as long
as its trace; whoever reads it stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from math import pi, sin
from random import Random
from typing import NamedTuple

from prfaas.core.throughput.lengths import Lengths

SECOND_NS = 10**9


class Arrival(NamedTuple):
    """`blocks`: ids of the full blocks of the prompt, for prefix caches; empty where none is shared. `session`: number
    of the user who waits for the answer, or -1."""

    at_ns: int
    tokens: int
    output: int
    blocks: tuple[int, ...] = ()
    session: int = -1


Draw = Callable[[], tuple[int, int]]
"""Tokens of the next prompt and of its answer."""


def lognormal_draw(chance: Random, mu: float, sigma: float, least: int, most: int, output: int) -> Draw:
    """Log-normal prompts, cut to [least, most]."""

    def draw() -> tuple[int, int]:
        while True:
            tokens = round(chance.lognormvariate(mu, sigma))
            if least <= tokens <= most:
                return tokens, output

    return draw


def spread_draw(lengths: Lengths, output: int) -> Draw:
    """The lengths as evenly mixed as can be: quantiles in the order of the golden ratio, so without variance."""
    sums = lengths.running()
    step = 0.6180339887498949
    place = count()

    def draw() -> tuple[int, int]:
        share = (next(place) * step + 0.5) % 1.0 * sums[-1]
        low, high = 0, len(lengths) - 1
        while low < high:
            middle = (low + high) // 2
            if sums[middle + 1] > share:
                high = middle
            else:
                low = middle + 1
        return max(1, round(lengths.tokens[low])), output

    return draw


def even(rate: float, draw: Draw) -> Iterator[Arrival]:
    """`rate` a second, at equal distances."""
    for number in count():
        yield Arrival(round(number * SECOND_NS / rate), *draw())


def poisson(rate: float, draw: Draw, chance: Random) -> Iterator[Arrival]:
    """`rate` a second, independent of each other."""
    at = 0.0
    while True:
        at += chance.expovariate(rate)
        yield Arrival(round(at * SECOND_NS), *draw())


def changing(rate_at: Callable[[float], float], most: float, draw: Draw, chance: Random) -> Iterator[Arrival]:
    """Independent of each other at a rate that changes with time (seconds), never above `most`: thinned."""
    at = 0.0
    while True:
        at += chance.expovariate(most)
        if chance.random() * most < rate_at(at):
            yield Arrival(round(at * SECOND_NS), *draw())


def bursts(
    rate: float, factor: float, length_s: float, every_s: float, draw: Draw, chance: Random
) -> Iterator[Arrival]:
    """`rate` on average; for `length_s` of each `every_s`, after half of the rest, `factor` times what it is else."""
    low = rate * every_s / (every_s + (factor - 1) * length_s)
    begins = (every_s - length_s) / 2

    def rate_at(at: float) -> float:
        return low * factor if begins <= at % every_s < begins + length_s else low

    return changing(rate_at, low * factor, draw, chance)


def mmpp(rate: float, factor: float, burst_s: float, calm_s: float, draw: Draw, chance: Random) -> Iterator[Arrival]:
    """`rate` on average, in turn calm and `factor` times that, for exponential times with these means."""
    low = rate * (burst_s + calm_s) / (calm_s + factor * burst_s)
    at, high = 0.0, False
    until = chance.expovariate(1 / calm_s)
    while True:
        step = chance.expovariate(low * factor if high else low)
        if at + step < until:
            at += step
            yield Arrival(round(at * SECOND_NS), *draw())
        else:
            at, high = until, not high
            until = at + chance.expovariate(1 / (burst_s if high else calm_s))


def diurnal(rate: float, swing: float, period_s: float, draw: Draw, chance: Random) -> Iterator[Arrival]:
    """`rate` on average, up and down by the share `swing` over `period_s`."""

    def rate_at(at: float) -> float:
        return rate * (1 + swing * sin(2 * pi * at / period_s))

    return changing(rate_at, rate * (1 + swing), draw, chance)


def replayed(rows: Iterable[Arrival], stretch: float = 1.0) -> Iterator[Arrival]:
    """Recorded ones, with `stretch` times the time between them."""
    for row in rows:
        yield Arrival(round(row.at_ns * stretch), row.tokens, row.output, row.blocks)
