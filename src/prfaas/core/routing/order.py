"""Who is before whom in a prefill queue: the one rule, for backlogs as policies see them and for the queues of heads.

It knows times; it does not know queues.
"""

from __future__ import annotations


def key_ns(order: float, arrival_ns: int, prefill_ns: int) -> int:
    """What a queue sorts by: arrival + `order` * prefill time. 0 is first come, first served.

    Nobody waits for ever: who comes later by `order` times one's own prefill time is behind, however short it is.
    """
    return arrival_ns + int(order * prefill_ns) if order else arrival_ns
