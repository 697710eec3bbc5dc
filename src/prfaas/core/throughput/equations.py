"""Equations 1 to 8 of the paper (arXiv 2604.15039, section 3), as functions of plain numbers.

They know seconds, bytes, bits a second and counts of nodes; they do not know where the numbers come from. What has no
load is never the limit: a share of zero gives `inf`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

BITS = 8


def kv_throughput_bps(kv_bytes: float, prefill_s: float) -> float:
    """Eq. 1, phi_kv: bits of KV that one node makes in a second of prefill."""
    return kv_bytes * BITS / prefill_s


def egress_bps(nodes: float, mean_kv_bytes: float, mean_prefill_s: float) -> float:
    """Eq. 2, B_out: what `nodes` busy nodes send, over the uncached lengths of what is offloaded."""
    return nodes * kv_throughput_bps(mean_kv_bytes, mean_prefill_s)


def theta_prfaas(nodes: float, prefill_s: float, bandwidth_bps: float, kv_bytes: float) -> float:
    """Eq. 3: long requests a second that a PrfaaS cluster and its link sustain."""
    return min(nodes / prefill_s, bandwidth_bps / (kv_bytes * BITS))


def theta_pd_p(nodes: float, prefill_s: float) -> float:
    """Eq. 4: short requests a second that the PD cluster's own prefill nodes sustain."""
    return nodes / prefill_s


def decode_rate(batch: int, step_s: float, output_tokens: float) -> float:
    """Requests a second that one decode node ends: `batch` at a time, a token of each every `step_s`."""
    return batch / (step_s * output_tokens)


def theta_pd_d(nodes: float, rate_per_node: float) -> float:
    """Eq. 5, with BS_max / (T_decode * L_out) from `decode_rate`."""
    return nodes * rate_per_node


def lambda_max(offloaded: float, prfaas: float, pd_p: float, pd_d: float) -> float:
    """Eq. 6: requests a second of all lengths, of which the share `offloaded` is long."""
    return min(per_share(prfaas, offloaded), per_share(pd_p, 1 - offloaded), pd_d)


def per_share(theta: float, share: float) -> float:
    """The rate of all requests at which a class with this `share` of them comes at the rate `theta`."""
    return theta / share if share > 0 else inf


def balanced_threshold(count: int, remote: Callable[[int], float], local: Callable[[int], float]) -> int:
    """Eq. 7 over the candidates 0 .. count-1: where `remote`, which never falls, and `local`, which never rises, meet.

    Both are rates of all requests. The candidate with the larger of the two minima beside the crossing is taken.
    """
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) // 2
        if remote(middle) >= local(middle):
            high = middle
        else:
            low = middle + 1
    before = max(low - 1, 0)
    return max((low, before), key=lambda at: min(remote(at), local(at)))


def prefill_nodes(nodes: int, prefill_rate: float, decode_rate: float) -> int:
    """Eq. 8 in whole nodes: how many of `nodes` should prefill, when each does `prefill_rate` of all requests a second,
    or decodes `decode_rate`. At least one decodes; `prefill_rate` inf: none need prefill.

    min(n * prefill_rate, (nodes - n) * decode_rate) rises, then falls, so one of the two beside the crossing is best.
    """
    if prefill_rate == inf:
        return 0
    crossing = int(nodes * decode_rate / (prefill_rate + decode_rate))
    beside = [n for n in (crossing, crossing + 1) if 0 <= n < nodes] or [nodes - 1]
    return max(beside, key=lambda n: (min(n * prefill_rate, (nodes - n) * decode_rate), -n))
