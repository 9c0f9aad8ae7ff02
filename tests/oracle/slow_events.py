"""Task graphs played by the definition alone: no queue, no compiled code, all rates anew at every moment.

With fractions nothing is rounded, so what happens at the same moment does so exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

from dovetail.simulation.network import Network
from dovetail.simulation.task_graph import TaskGraph

#: Fraction or float: numbers of one kind throughout.
Number = Any


def routes_of(network: Network) -> list[dict[int, float]]:
    """Parts by link of every route."""
    bounds = [int(start) for start in network.starts]
    return [
        {int(network.link[entry]): float(network.part[entry]) for entry in range(low, high)}
        for low, high in pairwise(bounds)
    ]


def filled(bytes_per_s: Sequence[Number], routes: Sequence[Mapping[int, Number]]) -> list[Number]:
    """All rates grow together; those over a link that is full stay as they are."""
    rates: list[Number | None] = [None] * len(routes)
    while None in rates:
        levels: dict[int, Number] = {}
        for link, most in enumerate(bytes_per_s):
            crossing = [(route[link], rate) for route, rate in zip(routes, rates, strict=True) if link in route]
            known = sum(part * rate for part, rate in crossing if rate is not None)
            growing = sum(part for part, rate in crossing if rate is None)
            if growing > 0:
                levels[link] = (most - known) / growing
        level = min(levels.values())
        full = {link for link in levels if levels[link] == level}
        for message, route in enumerate(routes):
            if rates[message] is None and full & route.keys():
                rates[message] = level
    return rates


def slow_run(graph: TaskGraph, number: Callable[[float], Number] = Fraction) -> tuple[list[float], list[float]]:
    """Start and end of every task."""
    tasks = range(len(graph))
    needs: list[set[int]] = [set() for _ in tasks]
    for before, after in zip(graph.before, graph.after, strict=True):
        needs[int(after)].add(int(before))
    bytes_per_s = [number(float(each)) for each in graph.network.bytes_per_s]
    routes = [{link: number(part) for link, part in route.items()} for route in routes_of(graph.network)]
    wait = [number(float(each)) for each in graph.seconds]
    left = [number(float(each)) for each in graph.bytes]
    start: dict[int, Number] = {}
    end: dict[int, Number] = {}
    now = number(0.0)
    while True:
        _all_that_takes_no_time(now, needs, wait, left, start, end)
        waiting = [task for task in tasks if task in start and task not in end and wait[task] > 0]
        sending = [task for task in tasks if task in start and task not in end and wait[task] == 0]
        if not waiting and not sending:
            break
        rates = filled(bytes_per_s, [routes[graph.route[task]] for task in sending])
        ahead = {task: wait[task] for task in waiting}
        ahead |= {task: left[task] / rate for task, rate in zip(sending, rates, strict=True)}
        step = min(ahead.values())
        now += step
        for task in waiting:
            wait[task] = wait[task] - step if ahead[task] > step else number(0.0)
        for task, rate in zip(sending, rates, strict=True):
            left[task] = left[task] - rate * step if ahead[task] > step else number(0.0)
    assert len(end) == len(graph), "tasks wait for each other"
    return [float(start[task]) for task in tasks], [float(end[task]) for task in tasks]


def _all_that_takes_no_time(
    now: Number, needs: Sequence[set[int]], wait: Sequence[Number], left: Sequence[Number],
    start: dict[int, Number], end: dict[int, Number],
) -> None:  # fmt: skip
    """Begins and ends tasks until nothing more happens at this moment."""
    happened = True
    while happened:
        happened = False
        for task, need in enumerate(needs):
            if task not in start and need <= end.keys():
                start[task] = now
                happened = True
            if task in start and task not in end and wait[task] == 0 and left[task] == 0:
                end[task] = now
                happened = True
