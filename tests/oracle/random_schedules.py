"""Random schedule problems, small enough to try everything."""

from __future__ import annotations

import random

from dovetail.schedule.problem import Mode, ModePhase, Problem, ScheduleTask


def random_problem(seed: int, most_tasks: int = 7) -> Problem:
    """Tasks on cores of either kind, on both, or on one after the other, with and without bandwidth."""
    draw = random.Random(seed)  # noqa: S311 - a graph is no secret
    cores, bandwidth = draw.choice([1, 2, 4]), draw.choice([0, 3, 5])
    density = draw.choice([0.1, 0.3, 0.5])
    tasks: list[ScheduleTask] = []
    for position in range(draw.randint(1, most_tasks)):
        after = tuple(need for need in range(position) if draw.random() < density)
        kind, work = draw.choice(["tensor", "vector", "both"]), draw.randint(1, 5)
        parts = [part for part in (1, 2, 4) if part <= cores]
        modes = [mode for part in parts for mode in _modes(draw, kind, work, part, bandwidth)]
        tasks.append(
            ScheduleTask(f"task {position}", tuple(draw.sample(modes, draw.randint(1, min(3, len(modes))))), after)
        )
    return Problem(tuple(tasks), cores, cores, bandwidth)


def _modes(draw: random.Random, kind: str, work: int, part: int, bandwidth: int) -> list[Mode]:
    cycles = -(-work // part) + draw.randint(0, 1)
    moved = draw.randint(0, bandwidth)
    if kind == "tensor":
        return [Mode((ModePhase(cycles, part, 0, moved),))]
    if kind == "vector":
        return [Mode((ModePhase(cycles, 0, part, moved),))]
    apart = (ModePhase(cycles, part, 0, moved), ModePhase(draw.randint(1, 3), 0, part, draw.randint(0, bandwidth)))
    return [Mode((ModePhase(cycles + 1, part, part, moved),)), Mode(apart if draw.random() < 0.8 else apart[::-1])]
