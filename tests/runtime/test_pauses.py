"""A program that serves lets its loop go on soon, and keeps the collector from what it will keep anyway."""

from __future__ import annotations

import gc
import sys

import pytest

from prfaas.runtime.pauses import SWITCH_S, keep_pauses_short


@pytest.mark.slow
def test_threads_give_way_soon_and_what_is_kept_is_not_gone_through() -> None:
    before_s = sys.getswitchinterval()
    try:
        keep_pauses_short()
        assert abs(sys.getswitchinterval() - SWITCH_S) < 1e-5
        assert gc.get_freeze_count() > len(gc.get_objects())
    finally:
        gc.unfreeze()
        sys.setswitchinterval(before_s)
