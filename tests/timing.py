"""CPU time of a warm call, measured so that other work on the machine does not fail a test."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

TRIES = 20
#: CPU seconds of `reference` where nothing else runs; a shared machine takes up to three times as long for minutes
QUIET_REFERENCE_S = 0.0026


def reference() -> int:
    """Work of a known size, to see how slow the machine is at this moment."""
    table: dict[int, int] = {}
    for n in range(20_000):
        table[n % 97] = table.get(n % 89, 0) + n
    return len(table)


def least_cpu_seconds(call: Callable[[], object], most: float) -> float:
    """The least of several warm runs, as on a quiet machine; tried again while over `most`."""
    call()
    spent: list[float] = []
    # what tests before this one left in memory is none of its time
    gc.freeze()
    while not spent or (min(spent) >= most and len(spent) < TRIES):
        slowdown = max(1.0, cpu_seconds(reference) / QUIET_REFERENCE_S)
        spent.append(cpu_seconds(call) / slowdown)
    gc.unfreeze()
    return min(spent)


def cpu_seconds(call: Callable[[], object]) -> float:
    """CPU time of one call."""
    before = time.process_time()
    call()
    return time.process_time() - before
