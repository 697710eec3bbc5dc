"""A child program ends when its parent is gone, however the parent ended.

The parent keeps the writing end of a pipe, the child is handed the reading end. When the parent dies, even by SIGKILL,
the kernel closes its end and the child reads end-of-file. It knows pipes and signals, not what the program does.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, MutableMapping

VARIABLE = "PRFAAS_LIFELINE_FD"
WITH_PARENT = "PRFAAS_END_WITH_PARENT"
GRACE_S = 5.0
ORPHANED = 70
_held = -1


def watch(environ: MutableMapping[str, str], orphaned: Callable[[], None] | None = None) -> threading.Thread | None:
    """Watch the lifeline that `environ` names, on a daemon thread; None when it names none.

    Call before anything slow is imported. The variable is taken out, so that it does not reach grandchildren.
    `orphaned` runs when the parent is gone; by default the process asks itself to end, and does so after `GRACE_S`
    seconds at the latest.
    """
    text = environ.pop(VARIABLE, "")
    if not text.isdigit():
        return None
    global _held
    _held = descriptor = int(text)
    os.set_inheritable(descriptor, False)
    thread = threading.Thread(target=_watch, args=(descriptor, orphaned or _end), name="lifeline", daemon=True)
    thread.start()
    return thread


def hand_on(environ: MutableMapping[str, str]) -> None:
    """Let the program that takes this one's place (`exec`) hold the lifeline: it is to `watch` it in turn."""
    if _held >= 0:
        os.set_inheritable(_held, True)
        environ[VARIABLE] = str(_held)


def end_with_parent_if_asked(environ: MutableMapping[str, str]) -> None:
    """End in good order when the process that started this one is gone, if `environ` asks for it: for a program that a
    terminal may also leave running."""
    if environ.pop(WITH_PARENT, ""):
        end_with_parent(_end)


def end_with_parent(orphaned: Callable[[], None] = lambda: os._exit(ORPHANED), poll_s: float = 0.5) -> threading.Thread:
    """End, at once or as `orphaned` does, when the process that started this one is gone: for children that were given
    no lifeline."""
    parent = os.getppid()

    def watch_parent() -> None:
        while os.getppid() == parent:
            time.sleep(poll_s)
        orphaned()

    thread = threading.Thread(target=watch_parent, name="parent", daemon=True)
    thread.start()
    return thread


def _watch(descriptor: int, orphaned: Callable[[], None]) -> None:
    while True:
        try:
            if os.read(descriptor, 1) == b"":
                break
        except InterruptedError:
            continue
        except OSError:
            break
    orphaned()


def _end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(GRACE_S)
    os._exit(ORPHANED)
