"""What a spread of requests over clusters asks of each part, and how long its prefills take. Integrated over lengths.

It knows a site and shares; it does not know designs or what is best.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from prfaas.core.throughput.equations import BITS
from prfaas.core.throughput.site import Site
from prfaas.core.throughput.spread import Shares


class Loads:
    """What one request a second of the whole mix, spread by `shares`, asks of each part. Integrated over lengths.

    `away`: busy nodes of each remote; `here`: of each home's prefill; `bits` a second over all links, `links` over
    each, home by home.
    """

    def __init__(self, site: Site, shares: Shares) -> None:
        weights = site.lengths.weights
        self.away = [0.0] * len(site.remotes)
        self.here: list[float] = []
        self.links: list[list[float]] = []
        self.offloaded = 0.0
        for home, rows in zip(site.homes, shares, strict=True):
            stays = list(weights)
            self.links.append([])
            for k, (remote, row) in enumerate(zip(site.remotes, rows, strict=True)):
                goes = [w * part for w, part in zip(weights, row, strict=True)]
                stays = [a - b for a, b in zip(stays, goes, strict=True)]
                self.away[k] += home.share * sum(w * s for w, s in zip(goes, remote.prefill_s, strict=True))
                bits = home.share * BITS * sum(w * b for w, b in zip(goes, site.kv_bytes, strict=True))
                self.offloaded += home.share * sum(goes)
                self.links[-1].append(bits)
            self.here.append(home.share * sum(w * s for w, s in zip(stays, home.prefill_s, strict=True)))

    @property
    def bits(self) -> float:
        """Over all links."""
        return sum(map(sum, self.links))


def ttft(site: Site, shares: Shares) -> list[tuple[float, float]]:
    """Prefill seconds and how many requests have them."""
    found: list[tuple[float, float]] = []
    for home, rows in zip(site.homes, shares, strict=True):
        for at, weight in enumerate(site.lengths.weights):
            stays = 1.0
            for remote, row in zip(site.remotes, rows, strict=True):
                if row[at] > 0:
                    found.append((remote.prefill_s[at], home.share * weight * row[at]))
                    stays -= row[at]
            if stays > 1e-9:
                found.append((home.prefill_s[at], home.share * weight * stays))
    return sorted(found)


def quantile(times: Sequence[tuple[float, float]], share: float) -> float:
    """The time that `share` of the requests do not exceed: linear between bins."""
    total = sum(w for _, w in times)
    done = 0.0
    for (seconds, weight), (after, _) in pairwise([*times, times[-1]]):
        if done + weight >= share * total:
            part = (share * total - done) / weight
            return seconds + (after - seconds) * max(0.0, part - 0.5)
        done += weight
    return times[-1][0]
