"""`free_plan`: the best plan of a job if every operator may be sharded in its own way, with a certificate."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from dovetail import frameworks
from dovetail.arrays import TOLERANCE
from dovetail.errors import InputError
from dovetail.frameworks import Framework
from dovetail.frozen import frozen
from dovetail.hardware import Cluster
from dovetail.mapping.tiles.free_search import SCHEDULES, FreeSearch
from dovetail.mapping.tiles.skeletons import TileSkeleton
from dovetail.mapping.tiles.work_bounds import ZERO_STAGES
from dovetail.models import Job
from dovetail.plans.space import Space
from dovetail.search.answer import Alternative, Answer, SimulatedPlan
from dovetail.search.certificate import Counts, certificate, proof
from dovetail.search.plan import plan as named_plan
from dovetail.search.progress import REPORT_EVERY_S, Listener, SearchProgress
from dovetail.simulation import simulate
from dovetail.step.evaluate import evaluate
from dovetail.step.evaluate import least_step_s as least_simulated_s
from dovetail.step.evaluation import Evaluation

__all__ = ["SCHEDULES", "ZERO_STAGES", "FreeLimits", "FreeSearch", "free_plan"]

#: Seconds the search of named strategies may take first, and its share of a time limit.
NAMED_S, NAMED_SHARE = 10.0, 0.25

#: Plans of other skeletons an answer lists.
ALTERNATIVES = 5


@frozen
class FreeLimits:
    """Where a search of free plans may end."""

    time_limit_s: float | None = None
    #: what takes as long is of no interest; an answer without a plan then says what is proven
    below_s: float = float("inf")
    #: how close to the best an answer has to be, as a part of it
    gap: float = 0.0
    #: most skeletons that are looked into
    work_limit: int | None = None
    #: seconds that named strategies are searched first
    named_s: float = NAMED_S


#: Where plans stand that are known before the search.
NO_SKELETON = TileSkeleton(0, 0, 0, 0)

#: To the end, but for named strategies.
NO_LIMITS = FreeLimits()


def free_plan(
    job: Job,
    cluster: Cluster,
    framework: Framework | str = "wafer",
    limits: FreeLimits = NO_LIMITS,
    *,
    simulate_top: int = 0,
    lends: bool = False,
    start: Evaluation | None = None,
    on_progress: Listener | None = None,
) -> Answer:
    """The fastest plan found with operators sharded freely on the tiles of stages, and a bound for all of them.

    We search named strategies first, so the answer is never slower than the best of them found.
    Skeletons (tile, stages, sequences of a micro-batch, store) follow in the order of their lower bounds, which get
    tighter step by step; the layouts that are cheapest at the prices of memory of a bound are placed on stages, with
    what every block recomputes. With `lends` stages may hold activations for each other.

    The answer is never slower than `start`, a plan that is known to fit.

    With `simulate_top` we simulate that many of the best plans and answer with the fastest. `on_progress` is told how
    far the search is; where it returns True the search ends.
    """
    framework = frameworks.load(framework) if isinstance(framework, str) else framework
    if not framework.layouts:
        raise InputError("framework", f"{framework.name} runs only named strategies", "use wafer or ideal")
    stages = tuple(stage for stage in ZERO_STAGES if stage in framework.zero_stages_with_pipeline)
    if not stages:
        raise InputError("framework", f"{framework.name} shards no state", "use one with ZeRO 1 or 3")
    began, cpu = time.monotonic(), time.process_time()
    search = FreeSearch(
        job,
        cluster,
        framework,
        deadline=float("inf") if limits.time_limit_s is None else began + limits.time_limit_s,
        zero_stages=stages,
        below_s=limits.below_s,
        gap=limits.gap,
        lends=lends,
        work_limit=limits.work_limit,
    )
    if start is not None:
        search.offer(NO_SKELETON, start)
    report = _Report(search, on_progress)
    search.stop = report.is_told_to_end
    named_s = limits.named_s
    if limits.time_limit_s is not None:
        named_s = min(named_s, NAMED_SHARE * limits.time_limit_s)
    if named_s > 0 and not cluster.defects:
        _search_named(search, report, named_s)
    search.run()
    timing = {"seconds": time.monotonic() - began, "cpu_s": time.process_time() - cpu}
    return _answer(search, simulate_top, timing)


def _search_named(search: FreeSearch, report: _Report, seconds: float) -> None:
    """Offers the best named strategy that is found in so many seconds."""
    space = Space(partition="ends")
    named = named_plan(
        search.job,
        search.cluster,
        search.framework,
        space=space,
        below_s=search.below_s,
        time_limit_s=seconds,
        on_progress=report.named,
    )
    if named.evaluation is not None:
        search.offer(NO_SKELETON, named.evaluation)


class _Report:
    """Tells a listener how far a search is, a few times a second, and remembers whether it shall end."""

    def __init__(self, search: FreeSearch, listener: Listener | None) -> None:
        self._search, self._listener = search, listener
        self._last_s, self._ended = -float("inf"), False

    def is_told_to_end(self) -> bool:
        """Whether the search shall end; tells the listener first."""
        if self._listener is not None and time.monotonic() - self._last_s >= REPORT_EVERY_S:
            self._last_s = time.monotonic()
            self._ended = bool(self._listener(_so_far(self._search))) or self._ended
        return self._ended

    def named(self, progress: SearchProgress) -> bool:
        """Tells it how far the search of named strategies is: what that proves is not of free plans."""
        if self._listener is None:
            return False
        told = SearchProgress(progress.plan, progress.step_time_s, 0.0, None, 0, 0, 0, 0, 0)
        self._ended = bool(self._listener(told)) or self._ended
        return self._ended


def _so_far(search: FreeSearch) -> SearchProgress:
    best = min(search.best_of.values(), key=lambda each: each.step_time_s, default=None)
    best_s = None if best is None else best.step_time_s
    proven, counts = proof(best_s, search.bound_s), _counts(search)
    return SearchProgress(
        plan=None if best is None else best.plan,
        step_time_s=best_s,
        lower_bound_s=proven.lower_bound_s or 0.0,
        gap=proven.gap,
        counted=counts.counted,
        pruned=counts.pruned,
        infeasible=counts.infeasible,
        evaluated=counts.evaluated,
        open=counts.open,
        counts="skeletons",
    )


def _counts(search: FreeSearch) -> Counts:
    """Skeletons by what became of them."""
    limit_s, bounds = search.best_s * (1 - TOLERANCE), search.bounds
    unfit = len(search.skeletons) - len(bounds)
    unseen = sum(bound < limit_s for each, bound in bounds.items() if each not in search.seen)
    return Counts(len(search.skeletons), unfit, len(search.seen & bounds.keys()), unseen)


def _description(search: FreeSearch) -> tuple[dict[str, Any], str]:
    """The space as data and as a sentence."""
    sharded = " and ".join(map(str, search.zero_stages))
    freedom = "freely" if search.allowed is None else "as allowed"
    recompute = "recompute by block" if search.recompute else "no recompute"
    fields = {"layouts": freedom, "pipeline_schedule": list(SCHEDULES), "zero_stage": list(search.zero_stages)}
    return fields, (
        f"every operator sharded {freedom} along the axes of a tile, {len(search.skeletons):,} skeletons of tiles, "
        f"stages and micro-batches, schedules {' and '.join(SCHEDULES)}, ZeRO {sharded}, {recompute}"
    )


def _answer(search: FreeSearch, simulate_top: int, timing: dict[str, float]) -> Answer:
    """The best plan, or the best simulated one, and the certificate."""
    job, cluster, framework = search.job, search.cluster, search.framework
    ordered = sorted(search.best_of.items(), key=lambda item: (item[1].step_time_s, item[0]))
    description, counts = _description(search), _counts(search)
    if not ordered:
        proof = certificate(None, search.bound_s, description, counts)
        return Answer(job, cluster, framework, Space(), None, proof, (), timing)
    replayed = tuple(_replayed(search, [e for _, e in ordered[:simulate_top]]))
    best, best_s = ordered[0][1], ordered[0][1].step_time_s
    if replayed:
        best, best_s = evaluate(replayed[0].plan, job, cluster, framework), replayed[0].step_time_s
    proof = certificate(best_s, search.bound_s, description, counts, time="simulated" if replayed else "modelled")
    others = [e for _, e in ordered if e.plan != best.plan][:ALTERNATIVES]
    alternatives = tuple(Alternative(e.plan, e.step_time_s, e.step_time_s / best.step_time_s - 1) for e in others)
    return Answer(job, cluster, framework, Space(), best, proof, alternatives, timing, replayed)


def _replayed(search: FreeSearch, best: list[Evaluation]) -> Iterator[SimulatedPlan]:
    replayed: list[SimulatedPlan] = []
    for each in best:
        lower_bound_s = least_simulated_s(each.plan, search.job, search.cluster, search.framework)
        step = simulate(each.plan, search.job, search.cluster, search.framework)
        replayed.append(SimulatedPlan(each.plan, lower_bound_s, step.model_step_time_s, step.step_time_s))
    yield from sorted(replayed, key=lambda plan: plan.step_time_s)
