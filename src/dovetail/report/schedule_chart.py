"""A schedule of operators on cores as a chart: bars for a terminal, and a trace for Chrome and Perfetto."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dovetail.frozen import frozen
from dovetail.schedule.problem import RESOURCES, ModePhase, Problem, Schedule

#: How full a resource is, from empty to full.
_LEVELS = " ▁▂▃▄▅▆▇█"

#: Processes of a trace: phases on tensor cores (with vector cores or without), and on vector cores alone.
_PROCESSES = ("tensor cores", "vector cores")


@frozen
class Piece:
    """A phase of a task as it is scheduled."""

    task: str
    start: int
    phase: ModePhase

    @property
    def end(self) -> int:
        """When it ends."""
        return self.start + self.phase.cycles


def pieces(problem: Problem, schedule: Schedule) -> list[Piece]:
    """All phases in the order of their start."""
    scheduled: list[Piece] = []
    for task, start, mode in zip(problem.tasks, schedule.starts, schedule.modes, strict=True):
        at = start
        for phase in task.modes[mode].phases:
            scheduled.append(Piece(task.name, at, phase))
            at += phase.cycles
    return sorted(scheduled, key=lambda piece: (piece.start, piece.end, piece.task))


def chart(problem: Problem, schedule: Schedule, width: int = 60) -> list[str]:
    """Lines for a terminal: a bar for every phase, then how full each resource is."""
    scheduled, makespan = pieces(problem, schedule), max(schedule.makespan(problem), 1)
    names = max(len(piece.task) for piece in scheduled)
    lines: list[str] = []
    for piece in scheduled:
        first = piece.start * width // makespan
        last = max(-(-piece.end * width // makespan), first + 1)
        bar = " " * first + "█" * (last - first)
        lines.append(f"{piece.task:<{names}}  {_cores_text(piece.phase):>11}  |{bar:<{width}}|")
    for number, (name, most) in enumerate(zip(RESOURCES, problem.capacities, strict=True)):
        if most:
            level = "".join(_LEVELS[round(8 * share)] for share in _filled(scheduled, number, most, makespan, width))
            lines.append(f"{name.replace('_', ' '):<{names}}  {'of ' + str(most):>11}  |{level}|")
    return lines


def _cores_text(phase: ModePhase) -> str:
    """Cores of a phase in short: 4T for tensor cores, 2V for vector cores."""
    kinds = ((phase.tensor_cores, "T"), (phase.vector_cores, "V"))
    return " ".join(f"{cores}{letter}" for cores, letter in kinds if cores) or "no core"


def _filled(scheduled: list[Piece], resource: int, most: int, makespan: int, width: int) -> Iterator[float]:
    """The part of a resource in use, on average over each column."""
    for column in range(width):
        low, high = column * makespan / width, (column + 1) * makespan / width
        used = sum(
            max(min(piece.end, high) - max(piece.start, low), 0.0) * piece.phase.uses[resource] for piece in scheduled
        )
        yield min(used / (most * (high - low)), 1.0)


def trace(problem: Problem, schedule: Schedule, clock_hz: float) -> dict[str, Any]:
    """The schedule in Chrome's Trace Event Format, which Perfetto reads: slices, and counters of what is in use."""
    scheduled = pieces(problem, schedule)
    scale = 1e6 / clock_hz
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        for pid, name in enumerate(_PROCESSES)
    ]
    free: tuple[list[int], list[int]] = ([], [])
    for piece in scheduled:
        pid = 0 if piece.phase.tensor_cores else 1
        events.append(
            {
                "ph": "X", "name": piece.task, "cat": "operator", "pid": pid, "tid": _lane(free[pid], piece),
                "ts": piece.start * scale, "dur": piece.phase.cycles * scale,
                "args": {"cycles": piece.phase.cycles, **dict(zip(RESOURCES, piece.phase.uses, strict=True))},
            }
        )  # fmt: skip
    for time in sorted({at for piece in scheduled for at in (piece.start, piece.end)}):
        running = [piece.phase.uses for piece in scheduled if piece.start <= time < piece.end]
        for number, (name, most) in enumerate(zip(RESOURCES, problem.capacities, strict=True)):
            if most:
                used = sum(uses[number] for uses in running)
                events.append(
                    {"ph": "C", "name": name, "pid": 2, "tid": 0, "ts": time * scale, "args": {"in use": used}}
                )
    return {"displayTimeUnit": "ns", "traceEvents": events}


def _lane(ends: list[int], piece: Piece) -> int:
    """The first row of a process that is free; a new one where none is."""
    for row, end in enumerate(ends):
        if end <= piece.start:
            ends[row] = piece.end
            return row
    ends.append(piece.end)
    return len(ends) - 1
