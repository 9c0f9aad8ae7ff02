"""Memory that stages lend each other: who stores how many bytes for whom, with the fewest bytes × hops."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dovetail.arrays import ROUNDING, TOLERANCE
from dovetail.errors import InputError

#: A stage, its helper, and how many bytes the helper stores for it.
Lent = tuple[int, int, float]


def helpers(
    need_bytes: Sequence[float],
    spare_bytes: Sequence[float],
    distance: Sequence[Sequence[float]],
    *,
    one_helper: bool = False,
) -> list[Lent] | None:
    """Which stages store what does not fit on others, at the lowest sum of bytes × hops; None if memory is too small.

    `distance` is hops between stages, infinite if there is no way. A stage never helps itself. With `one_helper`, all
    that does not fit on a stage goes to one other stage, which may help several.
    """
    _check(need_bytes, spare_bytes, distance)
    needs = {stage: float(need) for stage, need in enumerate(need_bytes) if need > 0}
    spares = {stage: float(spare) for stage, spare in enumerate(spare_bytes) if spare > 0}
    cost = {
        (stage, helper): float(distance[stage][helper])
        for stage in needs
        for helper in spares
        if helper != stage and math.isfinite(distance[stage][helper])
    }
    if one_helper:
        return _Assignment(needs, spares, cost).best()
    flow = _cheapest_flow(needs, spares, cost)
    return None if flow is None else [(a, b, lent) for (a, b), lent in sorted(flow.items())]


def _cheapest_flow(
    needs: dict[int, float], spares: dict[int, float], cost: dict[tuple[int, int], float]
) -> dict[tuple[int, int], float] | None:
    """Bytes by stage and helper: while memory is missing, sends more along the cheapest augmenting path."""
    lacking, left = dict(needs), dict(spares)
    flow: dict[tuple[int, int], float] = {}
    rounding = ROUNDING * sum(needs.values())
    while any(lack > rounding for lack in lacking.values()):
        path = _cheapest_path([s for s, lack in lacking.items() if lack > rounding], left, cost, flow)
        if path is None:
            return None
        # stages and helpers alternate along the path; a step back to a stage undoes what was lent before
        there = list(zip(path[::2], path[1::2], strict=True))
        back = list(zip(path[2::2], path[1::2], strict=False))
        more = min(lacking[path[0]], left[path[-1]], *(flow[pair] for pair in back))
        for pair in there:
            flow[pair] = flow.get(pair, 0.0) + more
        for pair in back:
            flow[pair] -= more
            if flow[pair] <= rounding:
                del flow[pair]
        lacking[path[0]] -= more
        left[path[-1]] -= more
    return flow


def _cheapest_path(
    starts: Sequence[int],
    left: dict[int, float],
    cost: dict[tuple[int, int], float],
    flow: dict[tuple[int, int], float],
) -> list[int] | None:
    """From a stage that needs memory to a helper with some left; steps back undo what was lent (Bellman-Ford)."""
    length: dict[tuple[bool, int], float] = {(False, stage): 0.0 for stage in starts}
    before: dict[tuple[bool, int], tuple[bool, int]] = {}
    arcs = [((False, a), (True, b), hops) for (a, b), hops in sorted(cost.items())]
    arcs += [((True, b), (False, a), -cost[a, b]) for a, b in sorted(flow)]
    for _ in range(len(left) + len({a for a, _ in cost}) + 1):
        changed = False
        for source, target, hops in arcs:
            if source in length and length[source] + hops < length.get(target, math.inf) - TOLERANCE * abs(hops):
                length[target], before[target] = length[source] + hops, source
                changed = True
        if not changed:
            break
    ends = [helper for helper, spare in left.items() if spare > 0 and (True, helper) in length]
    if not ends:
        return None
    node = (True, min(ends, key=lambda helper: (length[True, helper], helper)))
    path = [node[1]]
    while node in before:
        node = before[node]
        path.append(node[1])
    return path[::-1]


class _Assignment:
    """One helper for every stage that needs memory: branch and bound, the largest need first."""

    def __init__(self, needs: dict[int, float], spares: dict[int, float], cost: dict[tuple[int, int], float]) -> None:
        self.needs, self.cost, self.left = needs, cost, dict(spares)
        self.order = sorted(needs, key=lambda stage: (-needs[stage], stage))
        self.total, self.best_helpers = math.inf, list[Lent]()
        self.assigned: list[int] = []
        self.seen: dict[tuple[int, tuple[float, ...]], float] = {}

    def best(self) -> list[Lent] | None:
        """The cheapest assignment, or None if the needs do not fit."""
        self._place(0.0)
        return sorted(self.best_helpers) if math.isfinite(self.total) else None

    def _place(self, spent: float) -> None:
        depth = len(self.assigned)
        if depth == len(self.order) and spent < self.total:
            self.total = spent
            pairs = zip(self.order, self.assigned, strict=True)
            self.best_helpers = [(stage, helper, self.needs[stage]) for stage, helper in pairs]
        if depth == len(self.order):
            return
        state = depth, tuple(self.left.values())
        most = self.total * (1 - ROUNDING) - spent
        if self.seen.get(state, math.inf) <= spent or self._lower_bound(depth, most) >= most:
            return
        self.seen[state] = spent
        stage = self.order[depth]
        need = self.needs[stage]
        for hops, helper in self._open_helpers(stage):
            before = self.left[helper]
            self.left[helper] = max(before - need, 0.0)
            self.assigned.append(helper)
            self._place(spent + need * hops)
            self.assigned.pop()
            self.left[helper] = before

    def _open_helpers(self, stage: int) -> list[tuple[float, int]]:
        """Helpers with enough memory for a stage, nearest first."""
        need = self.needs[stage] * (1 - ROUNDING)
        return sorted((self.cost[stage, b], b) for b in self.left if (stage, b) in self.cost and self.left[b] >= need)

    def _lower_bound(self, depth: int, most: float) -> float:
        """A lower bound of the remaining stages: each by itself and, if below `most`, as if needs could be divided."""
        ahead, alone = self.order[depth:], 0.0
        cost: dict[tuple[int, int], float] = {}
        for stage in ahead:
            open_helpers = self._open_helpers(stage)
            if not open_helpers:
                return math.inf
            cost |= {(stage, helper): hops for hops, helper in open_helpers}
            alone += self.needs[stage] * open_helpers[0][0]
        if alone >= most:
            return alone
        flow = _cheapest_flow({stage: self.needs[stage] for stage in ahead}, self.left, cost)
        return math.inf if flow is None else max(alone, sum(lent * cost[pair] for pair, lent in flow.items()))


def _check(need: Sequence[float], spare: Sequence[float], distance: Sequence[Sequence[float]]) -> None:
    stages = len(need)
    if len(spare) != stages or len(distance) != stages or any(len(row) != stages for row in distance):
        raise InputError("spare_bytes, distance", "differ in length from need_bytes", f"there are {stages} stages")
    if any(not 0 <= value < math.inf for value in (*need, *spare)):
        raise InputError("need_bytes, spare_bytes", "have a negative or infinite value", "they should be finite bytes")
    if any(not hops >= 0 for row in distance for hops in row):
        raise InputError("distance", "has a negative value", "it should be hops")
