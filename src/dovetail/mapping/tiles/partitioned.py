"""Plans of one layout on given tiles: layers and recompute by the placement solver, then what lending memory adds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import permutations, product

from dovetail.cost.calibration import calibration
from dovetail.frozen import frozen
from dovetail.layout.encoding import TileLayouts
from dovetail.mapping.tiles.tile_layers import TileLayers
from dovetail.mapping.tilings import helpers
from dovetail.mapping.tilings.lent_memory import Lent
from dovetail.partition.partition_plan import least_partition_s, partition_profiled
from dovetail.plans.plan import Plan
from dovetail.plans.stage_tiles import handover
from dovetail.plans.wafer_part import Loan, StageTile, WaferPart
from dovetail.step.capacity import memory_limit
from dovetail.step.evaluate import ProfiledJob, evaluation_of, profiled_job, step_from
from dovetail.step.evaluation import Evaluation

#: What all blocks recompute where memory is lent, or activations are in a store.
POLICIES = ("none", "selective", "full")

#: Layers that can be dealt to stages in at most so many ways are dealt in each of them.
FEW_PARTITIONS = 16

#: At most so many pairs of a stage that lacks memory and one that may lend it are filled in every order.
FEW_PAIRS = 3


@frozen
class Partitions:
    """Plans of one layout that fit, and what none of its plans falls below: infinite where none fits."""

    plans: tuple[Evaluation, ...]
    lower_bound_s: float


def partitioned(
    layers: TileLayers,
    layouts: TileLayouts,
    tiles: tuple[StageTile, ...],
    *,
    by_block: bool = True,
    lends: bool = False,
    below_s: float = float("inf"),
    poll: Callable[[], None] = lambda: None,
) -> Partitions:
    """The best partition with recompute by block, and with `lends` plans whose stages lend memory.

    Where a store has the activations, and where stages lend, all blocks recompute the same. If there are few ways to
    deal layers to stages and nothing is recomputed we try all of them, so the bound is the best plan; if there are many
    the former two have them dealt evenly. Plans that take `below_s` or more are not lent memory: that adds seconds.
    """
    job, cluster = layers.job, layers.cluster
    plan = layers.plan_of(layouts, tiles)
    calibrated = calibration(cluster.chip, job.precision)
    limit = memory_limit(cluster.chip, layers.framework)
    profiled = profiled_job(plan, job, cluster, layers.facts, calibrated.efficiencies)
    judge = _Judge(layers, profiled, str(calibrated), limit)
    policies = POLICIES if by_block else ("none",)
    few = every_partition(plan.pipeline_parallel, job.model.num_layers)
    dealt = [replace(plan, layers_per_stage=each) for each in few or (plan.layers_per_stage,)]
    uniform = [replace(each, recompute=policy) for each, policy in product(dealt, policies)]
    stored = "activations" in layers.skeleton.store
    lends = lends and not stored and plan.pipeline_parallel > 1
    exact = few is not None and not by_block
    evaluations = [judge.evaluated(each) for each in uniform] if stored or lends or exact else []
    found = [each for each in evaluations if judge.fits(each)] if stored or exact else []
    slow = [each.step_time_s for each in evaluations if lends and each.step_time_s >= below_s]
    if lends:
        fast = [each for each in evaluations if each.step_time_s < below_s]
        lending = (judge.evaluated(plan) for each in fast for plan in judge.lending(each))
        found += [each for each in lending if judge.fits(each)]
    if exact:
        return Partitions(tuple(found), min([each.step_time_s for each in found] + slow, default=float("inf")))
    if not stored:
        placed = partition_profiled(plan, job, profiled, str(calibrated), limit, by_block=by_block, poll=poll)
        if placed is not None and placed.evaluation.fits:
            found.append(placed.evaluation)
        if placed is not None and not lends:
            return Partitions(tuple(found), placed.lower_bound_s)
    limit = float("inf") if lends or stored else limit
    return Partitions(tuple(found), least_partition_s(plan, profiled, limit, by_block=by_block, poll=poll))


def every_partition(stages: int, layers: int) -> tuple[tuple[int, ...], ...] | None:
    """Every way to deal layers to stages, of which only the first and the last may have none; None if many."""
    if math.comb(layers + 1, stages - 1) > FEW_PARTITIONS:
        return None
    if stages == 1:
        return ((layers,),)
    inner = [range(1, layers + 1)] * (stages - 2)
    numbers = product(range(layers + 1), *inner, range(layers + 1))
    return tuple(each for each in numbers if sum(each) == layers)


@frozen
class _Judge:
    """Evaluates plans of one layout on given tiles."""

    layers: TileLayers
    profiled: ProfiledJob
    basis: str
    limit: float

    def evaluated(self, plan: Plan) -> Evaluation:
        """What a plan takes."""
        layers = self.layers
        return evaluation_of(step_from(plan, self.profiled), plan, layers.job, layers.cluster, layers.facts, self.basis)

    def fits(self, evaluation: Evaluation) -> bool:
        """Whether a plan fits."""
        return evaluation.fits and evaluation.peak_bytes <= self.limit

    def lending(self, evaluation: Evaluation) -> Iterator[Plan]:
        """The plan with what its full stages lack lent by others; nothing where all fit or memory is too small.

        If few stages lack memory or can lend it, their pairs are filled in every order; otherwise the fewest bytes take
        the fewest links.
        """
        plan, peaks = evaluation.plan, [sum(parts.values()) for parts in evaluation.memory_by_stage]
        # activations grow by what the allocator adds to them
        growth = 1 + self.layers.facts.allocator_overhead
        # a hair more, so that rounding leaves nothing over
        needs = [max(peak - self.limit, 0.0) / growth * (1 + 1e-9) for peak in peaks]
        spares = [max(self.limit - peak, 0.0) / growth for peak in peaks]
        if not any(needs):
            return
        stages = range(plan.pipeline_parallel)
        pairs = [(a, b) for a, b in product(stages, stages) if needs[a] and spares[b]]
        if len(pairs) <= FEW_PAIRS:
            ways = sorted({_filled(order, needs, spares) for order in permutations(pairs)})
        else:
            hops = [[self._hops(plan, a, b) for b in stages] for a in stages]
            ways = [tuple(sorted(helpers(needs, spares, hops) or ()))]
        for way in filter(None, ways):
            part = replace(plan.wafer or WaferPart(), loans=tuple(Loan(*each) for each in way))
            yield replace(plan, wafer=part)

    def _hops(self, plan: Plan, stage: int, lender: int) -> float:
        hops = 0 if stage == lender else handover(plan, self.layers.cluster, stage, lender).hops
        return float(hops or "inf")


def _filled(order: Sequence[tuple[int, int]], needs: Sequence[float], spares: Sequence[float]) -> tuple[Lent, ...]:
    """What stages borrow of lenders if pair after pair takes as much as it can; nothing if that is too little."""
    lacking, left, lent = list(needs), list(spares), list[Lent]()
    for stage, lender in order:
        amount = min(lacking[stage], left[lender])
        lacking[stage] -= amount
        left[lender] -= amount
        lent += [(stage, lender, amount)] if amount else []
    return () if any(lacking) else tuple(sorted(lent))
