"""Random networks and task graphs for the event engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dovetail.simulation.network import Network, Routes
from dovetail.simulation.task_graph import TaskGraph

NO_LINKS = Routes().network([])


def task_graph(
    tasks: Sequence[tuple[float, float, int]], needs: Sequence[tuple[int, int]] = (), network: Network = NO_LINKS
) -> TaskGraph:
    """Tasks of (seconds, bytes, route), and the pairs of a task and one that needs it."""
    table = np.array(tasks, np.float64).reshape(-1, 3)
    edges = np.array(needs, np.int64).reshape(-1, 2)
    return TaskGraph(
        table[:, 0].copy(), table[:, 1].copy(), table[:, 2].astype(np.int64),
        edges[:, 0].copy(), edges[:, 1].copy(), network,
    )  # fmt: skip


def random_parts(draw: np.random.Generator, num_links: int, part: Callable[[], float]) -> dict[int, float]:
    """Parts of some links, the largest of them 1."""
    links = [int(link) for link in draw.permutation(num_links)[: draw.integers(1, num_links + 1)]]
    return {link: part() if position else 1.0 for position, link in enumerate(links)}


def random_edges(draw: np.random.Generator, count: int, most_needs: int) -> list[tuple[int, int]]:
    """Needs among tasks in a random order, none in a circle; some are named twice."""
    order = draw.permutation(count)
    return [
        (int(order[draw.integers(max(0, position - 12), position)]), int(order[position]))
        for position in range(1, count)
        for _ in range(draw.integers(0, most_needs + 1))
    ]


def random_graph(
    draw: np.random.Generator,
    most_tasks: int,
    *,
    second: Callable[[], float],
    byte: Callable[[], float],
    rate: Callable[[], float],
    part: Callable[[], float],
) -> TaskGraph:
    """Tasks of which some take no seconds, some send nothing and some do neither."""
    num_links, routes = int(draw.integers(1, 7)), Routes()
    numbers = [routes.add(random_parts(draw, num_links, part)) for _ in range(draw.integers(1, 9))]
    network = routes.network([rate() for _ in range(num_links)])
    tasks: list[tuple[float, float, int]] = []
    for _ in range(draw.integers(1, most_tasks + 1)):
        seconds = second() if draw.random() < 0.6 else 0.0
        sends = draw.random() < 0.6
        # a route without bytes is no message either
        route = int(draw.choice(numbers)) if sends or draw.random() < 0.2 else -1
        tasks.append((seconds, byte() if sends else 0.0, route))
    return task_graph(tasks, random_edges(draw, len(tasks), int(draw.integers(1, 4))), network)


def round_graph(seed: int, most_tasks: int = 40) -> TaskGraph:
    """Few different small numbers: much happens at exactly the same moment."""
    draw = np.random.default_rng(seed)
    return random_graph(
        draw, most_tasks,
        second=lambda: int(draw.integers(1, 5)) / 4, byte=lambda: float(draw.integers(1, 5)),
        rate=lambda: float(draw.integers(1, 5)), part=lambda: int(draw.integers(1, 5)) / 4,
    )  # fmt: skip


def real_graph(seed: int, most_tasks: int = 40) -> TaskGraph:
    """Sizes, rates and times of chips, over several orders of magnitude."""
    draw = np.random.default_rng(seed)
    return random_graph(
        draw, most_tasks,
        second=lambda: float(10 ** draw.uniform(-6, -3)), byte=lambda: float(10 ** draw.uniform(4, 9)),
        rate=lambda: float(10 ** draw.uniform(10, 12)), part=lambda: float(draw.uniform(0.01, 1)),
    )  # fmt: skip


def tied_graph(seed: int, streams: int = 12, steps: int = 20, kinds: int = 3) -> TaskGraph:
    """Chips of a few kinds in turn on a ring of equal links: what one does, all of its kind do at the same moment."""
    draw = np.random.default_rng(seed)
    routes = Routes()
    hops = [
        [routes.add({(chip + hop) % streams: 1.0 for hop in range(length)}) for length in range(1, 4)]
        for chip in range(streams)
    ]
    tasks: list[tuple[float, float, int]] = []
    needs: list[tuple[int, int]] = []
    for step in range(steps):
        seconds, sizes = draw.choice([0.0, 0.1, 0.3], kinds), draw.choice([0.0, 1.0, 1.0, 0.7], kinds)
        lengths, follows, all_wait = draw.integers(0, 3, kinds), draw.random(kinds) < 0.2, draw.random() < 0.1
        for chip in range(streams):
            kind = chip % kinds
            tasks.append((float(seconds[kind]), float(sizes[kind]), hops[chip][lengths[kind]] if sizes[kind] else -1))
            before = range(streams) if all_wait else [chip, *([(chip + 1) % streams] if follows[kind] else [])]
            needs += [((step - 1) * streams + other, step * streams + chip) for other in before if step]
    return task_graph(tasks, needs, routes.network([3.0] * streams))


def renumbered(graph: TaskGraph, numbers: np.ndarray) -> TaskGraph:
    """The same tasks: task i is numbers[i] now."""
    back = np.argsort(numbers)
    return TaskGraph(
        graph.seconds[back], graph.bytes[back], graph.route[back],
        numbers[graph.before], numbers[graph.after], graph.network,
    )  # fmt: skip
