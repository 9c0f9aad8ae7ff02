"""CPU time as on a quiet machine, so that other work on it does not fail a test."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

TRIES = 20
#: CPU seconds of `reference` where nothing else runs; a shared machine takes up to three times as long for minutes
QUIET_REFERENCE_S = 0.0026


def reference() -> int:
    """Work of a known size, to see how slow the machine is at this moment."""
    table: dict[int, int] = {}
    for n in range(20_000):
        table[n % 97] = table.get(n % 89, 0) + n
    return len(table)


def slowdown(runs: int = 1) -> float:
    """How many times longer than on a quiet machine work takes now."""
    return max(1.0, median(cpu_seconds(reference) for _ in range(runs)) / QUIET_REFERENCE_S)


@contextmanager
def within(most: float) -> Iterator[None]:
    """Fails where what is inside takes more CPU seconds than `most` would be on a quiet machine."""
    # what tests before this one left in memory is none of its time
    gc.freeze()
    before = time.process_time()
    try:
        yield
    finally:
        spent = time.process_time() - before
        gc.unfreeze()
        if spent >= most:
            quiet = spent / slowdown(runs=9)
            assert quiet < most, f"{spent:.2f} CPU seconds, {quiet:.2f} on a quiet machine"


def least_cpu_seconds(call: Callable[[], object], most: float) -> float:
    """The least of several warm runs, as on a quiet machine; tried again while over `most`."""
    call()
    spent: list[float] = []
    gc.freeze()
    while not spent or (min(spent) >= most and len(spent) < TRIES):
        slower = slowdown()
        spent.append(cpu_seconds(call) / slower)
    gc.unfreeze()
    return min(spent)


def cpu_seconds(call: Callable[[], object]) -> float:
    """CPU time of one call."""
    before = time.process_time()
    call()
    return time.process_time() - before
