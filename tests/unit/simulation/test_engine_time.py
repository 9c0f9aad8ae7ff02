"""The engine plays a million events in seconds, and ten times the tasks in about ten times the time."""

from __future__ import annotations

from functools import partial

import numpy as np

from dovetail.simulation.network import Routes
from dovetail.simulation.task_graph import TaskGraph, run
from timing import least_cpu_seconds

STREAMS = 32
#: CPU seconds of a million events; ten times the tasks may take so many times the seconds, for memory is slower too.
MOST_S, MOST_TIMES = 5.0, 20.0


def chains(count: int) -> TaskGraph:
    """One chain of tasks per stream; 3 of 10 send over two links, which the neighbours on both sides use too."""
    draw = np.random.default_rng(0)
    routes = Routes()
    stream = np.arange(count) % STREAMS
    for each in range(STREAMS):
        assert routes.add({each: 1.0, (each + 1) % STREAMS: 1.0}) == each
    sends = draw.random(count) < 0.3
    return TaskGraph(
        draw.uniform(0.1, 1.0, count),
        np.where(sends, draw.uniform(0.1, 1.0, count), 0.0),
        np.where(sends, stream, -1),
        np.arange(count - STREAMS),
        np.arange(STREAMS, count),
        routes.network([1.0] * STREAMS),
    )


def test_time_grows_with_the_number_of_tasks():
    few, many = chains(60_000), chains(600_000)
    few_s = least_cpu_seconds(partial(run, few), MOST_S / 10)
    most_s = min(MOST_S, MOST_TIMES * few_s)
    assert least_cpu_seconds(partial(run, many), most_s) < most_s
    assert run(many).events > 1_000_000
