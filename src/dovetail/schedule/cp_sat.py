"""The constraint model of one segment for CP-SAT: the only module that uses the solver."""
# the solver's types are partly unknown
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from ortools.sat.python import cp_model

from dovetail.frozen import frozen
from dovetail.schedule.problem import Problem, Schedule, Solution

SEED = 1


@frozen
class _Window:
    """Lower bounds of the cycles before and after a task."""

    head: int
    tail: int


def improved(problem: Problem, incumbent: Solution, deterministic_limit: float) -> Solution:
    """The incumbent, or a better solution: searches only shorter schedules, until none is left or the limit."""
    horizon = incumbent.makespan - 1
    built = _Model(problem, incumbent, horizon)
    if built.impossible:
        return Solution(incumbent.schedule, incumbent.makespan, incumbent.makespan, "optimal")
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    # one worker, one seed and a deterministic limit: the same answer on every machine
    parameters.num_workers = 1
    parameters.random_seed = SEED
    parameters.max_deterministic_time = deterministic_limit
    # measured (benchmarks/scheduling.py): a linear relaxation costs more than it prunes, overload checks pay
    parameters.linearization_level = 0
    parameters.use_overload_checker_in_cumulative = True
    status = solver.solve(built.model)
    if status == cp_model.INFEASIBLE:
        return Solution(incumbent.schedule, incumbent.makespan, incumbent.makespan, "optimal")
    bound = incumbent.bound
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        schedule = built.schedule(solver)
        makespan = schedule.makespan(problem)
        bound = makespan if status == cp_model.OPTIMAL else max(bound, _as_int(solver.best_objective_bound))
        return Solution(schedule, makespan, bound, "optimal" if bound == makespan else "feasible")
    # the limit stopped the search: its bound is valid up to the horizon
    bound = max(bound, min(_as_int(solver.best_objective_bound), horizon))
    return Solution(incumbent.schedule, incumbent.makespan, bound, "feasible")


def _as_int(bound: float) -> int:
    """The solver's bound, an integer given as a float."""
    return round(bound)


class _Model:
    """Schedules that end within a horizon; an optional interval per mode and phase."""

    def __init__(self, problem: Problem, incumbent: Solution, horizon: int) -> None:
        self.model = cp_model.CpModel()
        self._problem, self._horizon = problem, horizon
        self._windows = _windows(problem)
        self._makespan = self.model.new_int_var(incumbent.bound, horizon, "makespan")
        self._starts: list[cp_model.IntVar] = []
        self._ends: list[cp_model.IntVar] = []
        #: by task: numbers of the modes that fit the horizon, and the literal of each
        self._taken: list[list[tuple[int, cp_model.IntVar]]] = []
        #: by resource: interval, use, and work (literal × use × cycles)
        self._used: list[list[tuple[cp_model.IntervalVar, int, cp_model.LinearExpr]]] = [[], [], []]
        shortest = [min(mode.cycles for mode in task.modes) for task in problem.tasks]
        paths = [w.head + cycles + w.tail for w, cycles in zip(self._windows, shortest, strict=True)]
        self.impossible = max(paths) > horizon
        if self.impossible:
            return
        for position in range(len(problem.tasks)):
            self._add_task(position)
        for resource, capacity in enumerate(problem.capacities):
            self._add_resource(resource, capacity)
        self._order_twins()
        self.model.minimize(self._makespan)

    def _add_task(self, position: int) -> None:
        task, window, model = self._problem.tasks[position], self._windows[position], self.model
        shortest, latest = min(mode.cycles for mode in task.modes), self._horizon - window.tail
        start = model.new_int_var(window.head, latest - shortest, f"start {position}")
        end = model.new_int_var(window.head + shortest, latest, f"end {position}")
        self._starts.append(start)
        self._ends.append(end)
        taken: list[tuple[int, cp_model.IntVar]] = []
        for number, mode in enumerate(task.modes):
            if window.head + mode.cycles > latest:
                continue
            literal = model.new_bool_var(f"mode {position} {number}")
            taken.append((number, literal))
            at = start
            for k, phase in enumerate(mode.phases):
                last = k == len(mode.phases) - 1
                until = end if last else model.new_int_var(window.head, latest, f"turn {position} {number}")
                interval = model.new_optional_interval_var(
                    at, phase.cycles, until, literal, f"run {position} {number} {k}"
                )
                for resource, use in enumerate(phase.uses):
                    if use:
                        self._used[resource].append((interval, use, use * phase.cycles * literal))
                at = until
        model.add_exactly_one(literal for _, literal in taken)
        self._taken.append(taken)
        for need in task.after:
            model.add(start >= self._ends[need])
        model.add(self._makespan >= end + window.tail)

    def _add_resource(self, resource: int, capacity: int) -> None:
        used = self._used[resource]
        if used:
            self.model.add_cumulative([interval for interval, _, _ in used], [use for _, use, _ in used], capacity)
            # implied: no more work than fits the makespan
            self.model.add(sum(work for _, _, work in used) <= capacity * self._makespan)

    def _order_twins(self) -> None:
        """Breaks symmetry: interchangeable tasks start in the given order."""
        followers: list[list[int]] = [[] for _ in self._problem.tasks]
        for position, task in enumerate(self._problem.tasks):
            for need in task.after:
                followers[need].append(position)
        last: dict[tuple[object, ...], int] = {}
        for position, task in enumerate(self._problem.tasks):
            kind = (task.modes, task.after, tuple(followers[position]))
            if kind in last:
                self.model.add(self._starts[last[kind]] <= self._starts[position])
            last[kind] = position

    def schedule(self, solver: cp_model.CpSolver) -> Schedule:
        """The schedule the solver found."""
        starts = tuple(solver.value(start) for start in self._starts)
        modes = tuple(next(number for number, there in taken if solver.value(there)) for taken in self._taken)
        return Schedule(starts, modes)


def _windows(problem: Problem) -> list[_Window]:
    """The longest paths of shortest modes before and after every task."""
    shortest = [min(mode.cycles for mode in task.modes) for task in problem.tasks]
    heads, tails = [0] * len(shortest), [0] * len(shortest)
    for position, task in enumerate(problem.tasks):
        heads[position] = max((heads[need] + shortest[need] for need in task.after), default=0)
    for position in range(len(shortest) - 1, -1, -1):
        for need in problem.tasks[position].after:
            tails[need] = max(tails[need], tails[position] + shortest[position])
    return [_Window(head, tail) for head, tail in zip(heads, tails, strict=True)]
