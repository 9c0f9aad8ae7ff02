"""CPU time of a warm call, measured so that other work on the machine does not fail a test."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

TRIES = 20


def least_cpu_seconds(call: Callable[[], object], most: float) -> float:
    """The least of several warm runs, tried again while over `most`: other work on the machine only adds."""
    call()
    spent: list[float] = []
    # what tests before this one left in memory is none of its time
    gc.freeze()
    while not spent or (min(spent) >= most and len(spent) < TRIES):
        before = time.process_time()
        call()
        spent.append(time.process_time() - before)
    gc.unfreeze()
    return min(spent)
