"""CPU time of exact schedules: ours against plain CP-SAT and a big-M integer program in HiGHS, on hard random graphs.

One run does it all: `python benchmarks/scheduling.py`, or some of it: `--only ours,plain`, `--graphs 5`.
HiGHS needs highspy 1.15.1, which nothing but this benchmark does.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

from dovetail.schedule.problem import Mode, ModePhase, Problem, ScheduleTask, faults, problem_document, problem_from
from dovetail.schedule.solve import forget, solve

LIMIT_S = 60.0
CORES, BANDWIDTH, PARTS = 4, 16, (1, 2, 4)


@dataclass
class Run:
    """What a solver spent and found; no optimum where it proved none."""

    seconds: float
    optimum: int | None


def hard_graph(seed: int, cycles: int = 20) -> Problem:
    """30-40 operators in layers of about four; work over one decade, 5-30% lost per doubling of cores."""
    draw = random.Random(seed)  # noqa: S311 - a graph is no secret
    n = draw.randint(30, 40)
    layers = sorted(draw.randrange(n // 4) for _ in range(n))
    tasks: list[ScheduleTask] = []
    for position in range(n):
        near = [other for other in range(position) if layers[other] == layers[position] - 1]
        far = [other for other in range(position) if layers[other] < layers[position] - 1]
        after = {other for other in near if draw.random() < 0.3}
        if far and draw.random() < 0.2:
            after.add(draw.choice(far))
        if near and not after:
            after = {draw.choice(near)}
        on_tensor, work = draw.random() < 0.5, round(cycles * 10 ** draw.random())
        loss, moved = draw.uniform(0.05, 0.3), draw.choice([0, 1, 2, 3])
        modes: list[Mode] = []
        for doublings, part in enumerate(PARTS):
            length = math.ceil(work / part * (1 + loss) ** doublings)
            cores = (part, 0) if on_tensor else (0, part)
            modes.append(Mode((ModePhase(length, *cores, min(BANDWIDTH, moved * part)),)))
        tasks.append(ScheduleTask(f"operator {position}", tuple(modes), tuple(sorted(after))))
    return Problem(tuple(tasks), CORES, CORES, BANDWIDTH)


def ours(problem: Problem) -> Run:
    """The package's solver, its memory empty."""
    forget()
    before = time.process_time()
    solution = solve(problem, deterministic_limit=20.0)
    spent = time.process_time() - before
    assert faults(problem, solution.schedule) == []
    # its own limit counts steps, not seconds: what it proves after the limit does not count
    proven = solution.status == "optimal" and spent <= LIMIT_S
    return Run(spent if proven else LIMIT_S, solution.makespan if proven else None)


def plain(problem: Problem) -> Run:
    """Optional intervals and cumulatives, nothing else; default parameters but one worker."""
    from ortools.sat.python import cp_model

    before = time.process_time()
    model = cp_model.CpModel()
    horizon = sum(max(mode.cycles for mode in task.modes) for task in problem.tasks)
    makespan = model.new_int_var(0, horizon, "makespan")
    ends: list[cp_model.IntVar] = []
    used: tuple[list, list, list] = ([], [], [])
    for task in problem.tasks:
        start, end = model.new_int_var(0, horizon, ""), model.new_int_var(0, horizon, "")
        literals = [model.new_bool_var("") for _ in task.modes]
        for mode, literal in zip(task.modes, literals, strict=True):
            (phase,) = mode.phases
            interval = model.new_optional_interval_var(start, phase.cycles, end, literal, "")
            for uses, use in zip(used, phase.uses, strict=True):
                uses.append((interval, use))
        model.add_exactly_one(literals)
        for need in task.after:
            model.add(start >= ends[need])
        model.add(makespan >= end)
        ends.append(end)
    for uses, capacity in zip(used, problem.capacities, strict=True):
        present = [(interval, use) for interval, use in uses if use]
        if present:
            model.add_cumulative([interval for interval, _ in present], [use for _, use in present], capacity)
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = LIMIT_S
    proven = solver.solve(model) == cp_model.OPTIMAL
    spent = time.process_time() - before
    return Run(spent if proven else LIMIT_S, round(solver.objective_value) if proven else None)


def highs(problem: Problem) -> Run:
    """The integer program in a process of its own: OR-Tools and highspy bring different HiGHS under the same name."""
    command = [sys.executable, __file__, "--highs-alone"]
    done = subprocess.run(command, input=json.dumps(problem_document(problem)), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return Run(**json.loads(done.stdout))


def highs_alone(problem: Problem) -> Run:
    """Orders as binaries and big-M rows, flows of resources between tasks (Artigues, Michelon and Reusser 2003)."""
    try:
        import highspy
    except ImportError as error:
        fix = "pip install highspy==1.15.1, or pass --only ours,plain"
        raise SystemExit(f"HiGHS cannot be loaded ({error}): {fix}") from error
    before = time.process_time()
    solver = highspy.Highs()
    solver.silent()
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("time_limit", LIMIT_S)
    makespan = _flow_program(solver, problem)
    solver.minimize(makespan)
    spent = time.process_time() - before
    proven = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return Run(min(spent, LIMIT_S) if proven else LIMIT_S, round(solver.getObjectiveValue()) if proven else None)


def _flow_program(solver, problem: Problem):
    """Whatever a task uses it gets from tasks that ended before it, or from the start."""
    n = len(problem.tasks)
    horizon = sum(min(mode.cycles for mode in task.modes) for task in problem.tasks)
    makespan = solver.addVariable(0, horizon)
    starts = [solver.addVariable(0, horizon) for _ in range(n)]
    taken = [[solver.addBinary() for _ in task.modes] for task in problem.tasks]
    cycles = [
        sum(mode.cycles * b for mode, b in zip(t.modes, bs, strict=True))
        for t, bs in zip(problem.tasks, taken, strict=True)
    ]
    order = {(i, j): solver.addBinary() for i in range(n) for j in range(n) if i != j}
    for i, task in enumerate(problem.tasks):
        solver.addConstr(sum(taken[i]) == 1)
        solver.addConstr(makespan >= starts[i] + cycles[i])
        for need in task.after:
            solver.addConstr(order[need, i] == 1)
        for j in range(n):
            if i != j:
                solver.addConstr(starts[j] >= starts[i] + cycles[i] - horizon * (1 - order[i, j]))
                if i < j:
                    solver.addConstr(order[i, j] + order[j, i] <= 1)
    for resource, capacity in enumerate(problem.capacities):
        amounts = [[mode.phases[0].uses[resource] for mode in task.modes] for task in problem.tasks]
        users = [i for i in range(n) if max(amounts[i])]
        use = {i: sum(a * b for a, b in zip(amounts[i], taken[i], strict=True) if a) for i in users}
        given = {i: solver.addVariable(0, capacity) for i in users}
        flow = {(i, j): solver.addVariable(0, max(amounts[i])) for i in users for j in users if i != j}
        for (i, j), amount in flow.items():
            solver.addConstr(amount <= max(amounts[i]) * order[i, j])
        for i in users:
            solver.addConstr(given[i] + sum(flow[j, i] for j in users if j != i) == use[i])
            solver.addConstr(sum(flow[i, j] for j in users if j != i) <= use[i])
        if users:
            solver.addConstr(sum(given.values()) <= capacity)
    return makespan


SOLVERS = {"ours": ours, "plain": plain, "highs": highs}


def main() -> None:
    """One line per graph, then the geometric means of the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="ours,plain,highs")
    parser.add_argument("--graphs", type=int, default=20)
    parser.add_argument("--highs-alone", action="store_true", help="solve the problem on stdin, print the run")
    arguments = parser.parse_args()
    if arguments.highs_alone:
        print(json.dumps(asdict(highs_alone(problem_from(json.load(sys.stdin), "stdin")))))
        return
    names = [name for name in SOLVERS if name in arguments.only.split(",")]
    # compiled and loaded before anything is measured
    ours(hard_graph(1))
    print("CPU seconds; a run stopped at the limit counts as the limit")
    print(f"{'graph':>5}{'operators':>10}{'optimum':>9}" + "".join(f"{name:>9}" for name in names))
    runs: dict[str, list[Run]] = {name: [] for name in names}
    for seed in range(arguments.graphs):
        problem = hard_graph(seed)
        for name in names:
            runs[name].append(SOLVERS[name](problem))
        optima = {found[-1].optimum for found in runs.values()} - {None}
        assert len(optima) <= 1, f"graph {seed}: {optima}"
        row = "".join(
            f"{runs[name][-1].seconds:8.2f}{' ' if runs[name][-1].optimum is not None else '*'}" for name in names
        )
        print(f"{seed:>5}{len(problem.tasks):>10}{next(iter(optima), '-'):>9}{row}", flush=True)
    for name in names[1:]:
        ratios = [other.seconds / own.seconds for other, own in zip(runs[name], runs[names[0]], strict=True)]
        mean, least = statistics.geometric_mean(ratios), min(ratios)
        print(f"{name} / {names[0]}: geometric mean {mean:.1f}, from {least:.1f} to {max(ratios):.1f}")
    print("* stopped at the limit")


if __name__ == "__main__":
    main()
