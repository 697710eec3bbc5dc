"""The paper's two clusters in simpy, a process a request: a floor that `benchmarks.simulate` shows beside ours.

The same arrivals, lengths, times, threshold, nodes and slots. The shared link is a container of bits a second: a
prefill far away holds what its KV fills of it while it lasts, and a round trip follows. It leaves out: the decode step
that runs when a sequence comes (ours waits for its end), a link that is too narrow (here the prefill would wait, in
ours KV drains behind it), every policy but the threshold, caches, faults, moves from queue to queue, time series, and
books of bytes. simpy is of this benchmark only.
"""

from __future__ import annotations

from random import Random
from typing import Any

import simpy

from prfaas.sim.fromplan import Planned
from prfaas.sim.run import WARM_UP
from prfaas.sim.stats import Histogram


def simulated(case: Planned, rate: float, duration_s: float, seed: int = 1) -> Histogram:
    """Times to the first token, ns, of those that came after the warm-up, at `rate` a second until `duration_s`."""
    env = simpy.Environment()
    (home, far), link = case.setup.clusters, case.setup.links[0]
    nodes = simpy.Resource(env, home.prefill), simpy.Resource(env, far.prefill)
    slots = simpy.Resource(env, home.decode * home.batch)
    line = simpy.Container(env, init=link.bps)  # without a capacity: sums of floats may exceed it by a little
    costs, kv_bytes = (home.prefill_ns, far.prefill_ns), case.setup.kv_bytes
    step_s, rtt_s = (home.flat_step_ns or 0) / 1e9, link.rtt_ns / 1e9
    warm_s = duration_s * WARM_UP
    found = Histogram()

    def request(tokens: int, output: int) -> Any:
        came = env.now
        at = int(tokens > case.threshold)
        takes_s = costs[at](tokens, tokens) / 1e9
        with nodes[at].request() as node:
            yield node
            if at:
                share = kv_bytes(tokens) * 8 / takes_s
                yield line.get(share)
                yield env.timeout(takes_s)
                yield line.put(share)
            else:
                yield env.timeout(takes_s)
        if at:
            yield env.timeout(rtt_s)
        with slots.request() as slot:
            yield slot
            if came >= warm_s:
                found.add(round((env.now + step_s - came) * 1e9))
            yield env.timeout(output * step_s)

    def arrive() -> Any:
        draw, chance = case.draw(Random(f"lengths {seed}")), Random(f"times {seed}")
        while True:
            yield env.timeout(chance.expovariate(rate))
            if env.now >= duration_s:
                return
            env.process(request(*draw()))

    env.process(arrive())
    env.run()
    return found
