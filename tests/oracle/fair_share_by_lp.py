"""Max-min fair rates from their definition: the lexicographic maximum of the sorted rates, by linear programs.

No filling of links: a program knows only that no link may carry more than it can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ortools.linear_solver import pywraplp

#: A message that can be this much faster, as a part of its rate, is not held at it.
FASTER = 1e-6
#: Rounding that a floor under a rate allows for.
ROUNDING = 1e-12

Route = Mapping[int, float]


class _Program:
    """Rates of messages and the least of those that are not known, within what links can carry."""

    def __init__(self, bytes_per_s: Sequence[float], routes: Sequence[Route]) -> None:
        self.solver = pywraplp.Solver.CreateSolver("GLOP")
        assert self.solver is not None
        self.solver.SetSolverSpecificParametersAsString(
            "primal_feasibility_tolerance: 1e-11, dual_feasibility_tolerance: 1e-11"
        )
        infinite = self.solver.infinity()
        self.least = self.solver.NumVar(0.0, infinite, "least")
        self.rates = [self.solver.NumVar(0.0, infinite, f"rate {i}") for i in range(len(routes))]
        self.above = [self.solver.Add(rate >= self.least) for rate in self.rates]
        for link, most in enumerate(bytes_per_s):
            used = [route[link] * rate for route, rate in zip(routes, self.rates, strict=True) if link in route]
            if used:
                self.solver.Add(sum(used) <= most)

    def most(self, variable: pywraplp.Variable) -> list[float]:
        """All rates where this one variable is largest."""
        self.solver.Maximize(variable)
        status = self.solver.Solve()
        assert status == pywraplp.Solver.OPTIMAL, status
        return [rate.solution_value() for rate in self.rates]


def fair_rates_by_lp(bytes_per_s: Sequence[float], routes: Sequence[Route]) -> list[float]:
    """Raises the least rate as far as it goes; who cannot be above it has it; then the same for all others."""
    if not routes:
        return []
    # programs are solved to absolute tolerances
    scale = max(bytes_per_s)
    program = _Program([each / scale for each in bytes_per_s], routes)
    free = set(range(len(routes)))
    while free:
        program.least.SetBounds(0.0, program.solver.infinity())
        program.most(program.least)
        least = program.least.solution_value()
        program.least.SetBounds(least * (1.0 - ROUNDING), least * (1.0 - ROUNDING))
        can_be_faster: set[int] = set()
        for message in sorted(free):
            if message not in can_be_faster:
                rates = program.most(program.rates[message])
                can_be_faster |= {other for other in free if rates[other] > least * (1.0 + FASTER)}
        held = free - can_be_faster
        assert held, "the least rate could be more"
        for message in held:
            program.rates[message].SetBounds(least * (1.0 - ROUNDING), least)
            program.above[message].SetBounds(-program.solver.infinity(), program.solver.infinity())
        free -= held
    return [rate.Ub() * scale for rate in program.rates]


def faults(
    bytes_per_s: Sequence[float], routes: Sequence[Route], rates: Sequence[float], tolerance: float = 1e-9
) -> list[str]:
    """What is not max-min fair: links that carry too much, messages that no full link holds at their rate.

    Rates are fair if and only if every message has a full link on which no other message is faster (Bertsekas and
    Gallager, Data Networks, section 6.5.2).
    """
    found: list[str] = []
    full: dict[int, float] = {}
    for link, most in enumerate(bytes_per_s):
        crossing = [(route[link], rate) for route, rate in zip(routes, rates, strict=True) if link in route]
        used = sum(part * rate for part, rate in crossing)
        if used > most * (1.0 + tolerance):
            found.append(f"link {link} carries {used} of {most}")
        if crossing and used >= most * (1.0 - tolerance):
            full[link] = max(rate for _, rate in crossing)
    for message, (route, rate) in enumerate(zip(routes, rates, strict=True)):
        if not any(link in full and rate >= full[link] * (1.0 - tolerance) for link in route):
            found.append(f"message {message} could be faster than {rate}")
    return found
