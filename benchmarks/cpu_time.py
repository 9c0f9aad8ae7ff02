"""How benchmarks measure: CPU time, since machines are shared, and the median of several calls."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def cpu_seconds(work: Callable[[], object], repeats: int = 21) -> float:
    """Median CPU time of a warm call."""
    work()
    spent: list[float] = []
    for _ in range(repeats):
        before = time.process_time()
        work()
        spent.append(time.process_time() - before)
    return statistics.median(spent)
