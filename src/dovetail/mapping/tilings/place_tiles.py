"""Exact placement of stages on tiles: branch and bound with a snake as warm start and rising cutoffs."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence

import numpy as np

from dovetail.arrays import TOLERANCE
from dovetail.frozen import frozen
from dovetail.layout.encoding.job_encoding import Tile
from dovetail.layout.encoding.wafer_grid import WaferGrid
from dovetail.mapping.tilings.beam import best_of_beam
from dovetail.mapping.tilings.bound_kernels import Instance, Scratch
from dovetail.mapping.tilings.instance import instance_of, scratch_of
from dovetail.mapping.tilings.most_tiles import most_tiles_within
from dovetail.mapping.tilings.packed import ordered_packing
from dovetail.mapping.tilings.problem import Minimise, StageEdge, StageShapes, TileProblem, tile_problem
from dovetail.mapping.tilings.search_kernels import BEST, NODES, SearchMemory, search
from dovetail.mapping.tilings.snakes import best_snake
from dovetail.mapping.tilings.walks import new_memory, new_walk

#: Nodes between two checks of the clock.
BATCH = 500
#: Nodes after the first placement, if no snake fits.
DIVE = 10_000
#: Nodes of the first searches.
FEW = 1_000
#: States of the search for the most tiles that fit.
PACKING_STATES = 200_000
#: Beam widths of the search for a first placement.
BEAMS = (10, 100)
#: How far between the bound and the best placement the first cutoffs are.
STEPS = (*(0.1,) * 5, 0.25, 0.5)


@frozen
class TilePlacement:
    """A placement of stages on tiles and how good it is."""

    #: one per stage; empty if none was found
    tiles: tuple[Tile, ...]
    #: infinite if none was found
    cost: float
    #: no placement costs less; infinite if there is none
    bound: float
    #: no placement is cheaper, or none exists
    proven: bool
    nodes: int

    @property
    def gap(self) -> float:
        """The largest share of its cost a better placement could save."""
        if self.proven or self.cost == 0:
            return 0.0
        return 1.0 if math.isinf(self.cost) else (self.cost - self.bound) / self.cost


def place_tiles(
    grid: WaferGrid,
    stages: Sequence[StageShapes],
    edges: Iterable[StageEdge],
    *,
    minimise: Minimise = "sum",
    node_limit: int | None = None,
    time_limit_s: float | None = None,
) -> TilePlacement:
    """The cheapest disjoint tiles of connected live dies for some stages.

    The cost is the sum (or the largest) of the shapes' costs and of weight × hops of the edges. Hops are the longest of
    the shortest ways between corresponding dies: dies of equal rank in the two tiles, row by row. An answer depends on
    the time only if the time limit ends the search.
    """
    problem = tile_problem(grid, stages, edges, minimise)
    deadline = None if time_limit_s is None else time.monotonic() + time_limit_s
    return _PlacementSearch(problem, node_limit, deadline).run()


class _PlacementSearch:
    """A search within limits: the best placement so far and the proven bound."""

    def __init__(self, problem: TileProblem, node_limit: int | None, deadline: float | None) -> None:
        self.problem, self.node_limit, self.deadline = problem, node_limit, deadline
        self.cost, self.best_numbers = best_snake(problem)
        self.bound, self.nodes = 0.0, 0

    def run(self) -> TilePlacement:
        """Searches with rising cutoffs: each search that completes proves a bound or the optimum."""
        if not np.isfinite(self.problem.costs).any(axis=1).all():
            return TilePlacement((), math.inf, math.inf, True, 0)
        problem = self.problem
        packing = most_tiles_within(problem.grid, problem.shapes(), PACKING_STATES, reaching=problem.connected)
        if packing is not None and len(packing) < self.problem.num_stages:
            return TilePlacement((), math.inf, math.inf, True, 0)
        if math.isinf(self.cost) and packing is not None:
            self._better(ordered_packing(self.problem, packing))
        instance, scratch = instance_of(self.problem), scratch_of(self.problem)
        memory = new_memory(self.problem, instance)
        # with this cutoff only the bounds at the root are computed
        self._round(instance, scratch, memory, 0.0)
        for width in BEAMS:
            if not self._proven() and not self._out_of_time():
                # most small problems end here
                self._round(instance, scratch, memory, self.cost, FEW)
            if not self._proven() and not self._out_of_time():
                tiles_met, looked = best_of_beam(
                    self.problem, instance, scratch, memory, width, self.cost, self._slack()
                )
                self.nodes += looked
                self._better(tiles_met)
        if math.isinf(self.cost):
            self._round(instance, scratch, memory, math.inf)
        steps = iter(STEPS)
        while not self._proven() and not self._out_of_time():
            part = next(steps, 1.0)
            cutoff = self.cost if part == 1.0 else self.bound + part * (self.cost - self.bound)
            if not self._round(instance, scratch, memory, cutoff):
                break
        proven = self._proven()
        tiles = tuple(self.problem.tiles[i] for i in self.best_numbers)
        return TilePlacement(tiles, self.cost, self.cost if proven else self.bound, proven, self.nodes)

    def _slack(self) -> float:
        return TOLERANCE * (self.cost if math.isfinite(self.cost) else 1.0)

    def _proven(self) -> bool:
        return self.bound >= self.cost - self._slack()

    def _out_of_time(self) -> bool:
        late = self.deadline is not None and time.monotonic() >= self.deadline
        return late or (self.node_limit is not None and self.nodes >= self.node_limit)

    def _better(self, numbers: list[int]) -> None:
        """Takes a placement if it is the cheapest so far."""
        cost = self.problem.cost(numbers) if numbers else math.inf
        if cost < self.cost:
            self.cost, self.best_numbers = cost, numbers

    def _round(
        self, instance: Instance, scratch: Scratch, memory: SearchMemory, cutoff: float, most: float = math.inf
    ) -> bool:
        """Searches everything below a cutoff and records the best and the bound; returns whether it completed.

        Without a cutoff it stops some nodes after the first placement: bounds rise faster with one.
        """
        walk = new_walk(self.problem, instance, cutoff)
        done, dive = False, DIVE
        while not done and dive > 0 and walk.counters[NODES] < most and not (self._out_of_time() and cutoff > 0):
            left = BATCH if self.node_limit is None else min(BATCH, self.node_limit - self.nodes)
            before = int(walk.counters[NODES])
            done = bool(search(instance, walk, scratch, memory, max(left, 1), self._slack()))
            self.nodes += int(walk.counters[NODES]) - before
            if walk.values[BEST] < self.cost:
                self._better([int(tile) for tile in walk.best_tiles])
            dive -= BATCH if math.isinf(cutoff) and math.isfinite(self.cost) else 0
        if done:
            self.bound = max(self.bound, float(walk.lowest_unopened[0]))
        return done
