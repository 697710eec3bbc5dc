"""Short pauses of the event loop, whatever the threads and the garbage collector do.

It knows the interpreter; it does not know what a program does.
"""

from __future__ import annotations

import gc
import sys

SWITCH_S = 0.0005
"""So long a thread that computes keeps the interpreter when the loop wants it. The loop lets go of it at every turn,
and a request takes several: at Python's own 5 ms, one long prompt in a thread would cost each of them that much."""


def keep_pauses_short() -> None:
    """For the whole process, once it has what it will keep."""
    gc.collect()
    gc.freeze()  # modules and the like: a full collection would go through all of it, 25 ms, and find nothing
    sys.setswitchinterval(SWITCH_S)
