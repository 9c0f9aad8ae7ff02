"""The least busy collectives of a mesh by linear programs that know no trees: flows of one unit to every die."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ortools.linear_solver import pywraplp

Die = tuple[int, int]
Edge = tuple[Die, Die]


def grid_edges(rows: int, cols: int) -> list[Edge]:
    right = [((r, c), (r, c + 1)) for r in range(rows) for c in range(cols - 1)]
    return right + [((r, c), (r + 1, c)) for r in range(rows - 1) for c in range(cols)]


def _solved(solver: pywraplp.Solver, objective: pywraplp.Variable) -> float:
    solver.Minimize(objective)
    assert solver.Solve() == pywraplp.Solver.OPTIMAL
    return objective.solution_value()


def _program() -> pywraplp.Solver:
    solver = pywraplp.Solver.CreateSolver("GLOP")
    assert solver is not None
    solver.SetSolverSpecificParametersAsString("primal_feasibility_tolerance: 1e-10")
    return solver


def _unit_flow(solver, arcs: Sequence[Edge], dies: Iterable[Die], source: Die, target: Die) -> dict[Edge, object]:
    """Flow variables of one unit from a die to another."""
    flow = {arc: solver.NumVar(0.0, 1.0, "") for arc in arcs}
    for die in dies:
        if die != source:
            entering = [flow[arc] for arc in arcs if arc[1] == die]
            leaving = [flow[arc] for arc in arcs if arc[0] == die]
            solver.Add(solver.Sum(entering) - solver.Sum(leaving) == (1.0 if die == target else 0.0))
    return flow


def packed_trees_by_lp(dies: Sequence[Die], edges: Sequence[Edge]) -> float:
    """The least busiest edge of a mix of spanning trees.

    A point of the spanning tree polytope is one of arcs, N − 1 in all, that carry one unit from a root to every die
    (Martin 1991); a mix of trees is any such point.
    """
    solver = _program()
    arcs = [arc for a, b in edges for arc in ((a, b), (b, a))]
    used = {arc: solver.NumVar(0.0, 1.0, "") for arc in arcs}
    solver.Add(solver.Sum(list(used.values())) == len(dies) - 1.0)
    for target in dies[1:]:
        flow = _unit_flow(solver, arcs, dies, dies[0], target)
        for arc in arcs:
            solver.Add(flow[arc] <= used[arc])
    busiest = solver.NumVar(0.0, 1.0, "busiest")
    for a, b in edges:
        solver.Add(used[a, b] + used[b, a] <= busiest)
    return _solved(solver, busiest)


def broadcasts_by_lp(dies: Sequence[Die], edges: Sequence[Edge], shares: Mapping[Die, float]) -> float:
    """The least busiest link when all dies receive everything: for each die a flow of what others have to it.

    That a capacity lets everything flow to each die alone is enough for all together (Edmonds 1973).
    """
    arcs = [arc for a, b in edges for arc in ((a, b), (b, a))]
    worst = 0.0
    for target in dies:
        solver = _program()
        busiest = solver.NumVar(0.0, 1.0, "busiest")
        flow = {arc: solver.NumVar(0.0, 1.0, "") for arc in arcs}
        for die in dies:
            if die != target:
                leaving = [flow[arc] for arc in arcs if arc[0] == die]
                entering = [flow[arc] for arc in arcs if arc[1] == die]
                solver.Add(solver.Sum(leaving) - solver.Sum(entering) == shares.get(die, 0.0))
        for arc in arcs:
            solver.Add(flow[arc] <= busiest)
        worst = max(worst, _solved(solver, busiest))
    return worst


def exchange_by_lp(dies: Sequence[Die], edges: Sequence[Edge]) -> float:
    """The least busiest link when every die sends 1/N to every other: one flow for each source."""
    arcs = [arc for a, b in edges for arc in ((a, b), (b, a))]
    solver = _program()
    busiest = solver.NumVar(0.0, solver.infinity(), "busiest")
    flows: list[dict[Edge, pywraplp.Variable]] = []
    for source in dies:
        flow = {arc: solver.NumVar(0.0, solver.infinity(), "") for arc in arcs}
        for die in dies:
            if die != source:
                entering = [flow[arc] for arc in arcs if arc[1] == die]
                leaving = [flow[arc] for arc in arcs if arc[0] == die]
                solver.Add(solver.Sum(entering) - solver.Sum(leaving) == 1 / len(dies))
        flows.append(flow)
    for arc in arcs:
        solver.Add(solver.Sum([flow[arc] for flow in flows]) <= busiest)
    return _solved(solver, busiest)


def partitions(items: Sequence[Die]) -> Iterator[list[list[Die]]]:
    """Every way to cut dies into parts."""
    if not items:
        yield []
        return
    first, *rest = items
    for smaller in partitions(rest):
        for i, part in enumerate(smaller):
            yield [*smaller[:i], [first, *part], *smaller[i + 1 :]]
        yield [[first], *smaller]


def largest_partition_ratio(dies: Sequence[Die], edges: Sequence[Edge]) -> float:
    """Parts less one over edges between parts, the largest of all ways to cut: what an all-reduce cannot beat."""
    best = 0.0
    for parts in partitions(dies):
        if len(parts) > 1:
            of = {die: i for i, part in enumerate(parts) for die in part}
            best = max(best, (len(parts) - 1) / sum(of[a] != of[b] for a, b in edges))
    return best
