"""The best plan by simulation: leading plans are replayed in the order of their lower bounds."""

from __future__ import annotations

from dovetail.arrays import TOLERANCE
from dovetail.bounds.hardware_bound import hardware_bound
from dovetail.frameworks import Framework
from dovetail.frozen import frozen
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.plan import Plan
from dovetail.plans.plan_batch import PlanBatch
from dovetail.plans.space import BY_BLOCK, Space
from dovetail.plans.stated_space import stated
from dovetail.search.answer import Certificate, SimulatedPlan
from dovetail.search.best_first import BestFirst
from dovetail.search.certificate import Counts, certificate
from dovetail.search.progress import Reporter, TimedPlan, simplicity
from dovetail.search.time_limit import TimeLimit
from dovetail.simulation import simulate
from dovetail.step.layer_tables import Setting

#: More are not simulated.
MOST = 1000


@frozen
class SimulatedPlans:
    """Leading plans replayed, the best first, and its certificate in simulated time."""

    plans: tuple[SimulatedPlan, ...]
    certificate: Certificate


def simulated_plans(
    job: Job,
    cluster: Cluster,
    framework: Framework,
    space: Space,
    top: int,
    time_limit: TimeLimit | None = None,
    reporter: Reporter | None = None,
    memory_limit_bytes: float | None = None,
) -> SimulatedPlans | None:
    """Replays up to `top` plans until none that is left can be faster; None where none fits or was found in time.

    Everything not replayed takes at least as long as the last of the leading plans, by the bound they are ordered by.
    Of a plan with several partitions the one with the lowest bound is replayed; for the others its bound stays.
    """
    whole = space.resolve(job, cluster, framework)
    limit = memory_limit_bytes
    setting = Setting.of_space(job, cluster, framework, whole, at_least=True, memory_limit_bytes=limit)
    progress = BestFirst(setting, whole, time_limit, top=max(top, 2), reporter=reporter).run()
    candidates = [TimedPlan(_lower_bound_s(each, job, cluster), each.plan) for each in progress.leading]
    if not candidates:
        return None
    candidates.sort(key=lambda each: (each.seconds, simplicity(each.plan)))
    left = [each.seconds for each in candidates]
    # all other plans take at least as long as the last leading one
    beyond_s = progress.leading[-1].seconds if len(progress.leading) == progress.top else float("inf")
    beyond_s = min(beyond_s, progress.left_s)
    replays: list[SimulatedPlan] = []
    for number, candidate in enumerate(candidates[:top]):
        best_s = min((plan.step_time_s for plan in replays), default=float("inf"))
        if best_s <= candidate.seconds:
            break
        replayed = simulate(candidate.plan, job, cluster, framework)
        replays.append(
            SimulatedPlan(candidate.plan, candidate.seconds, replayed.model_step_time_s, replayed.step_time_s)
        )
        if not _has_variants(candidate.plan, whole):
            left[number] = float("inf")
        stopped = reporter is not None and reporter.report(progress)
        if stopped or (time_limit is not None and time_limit.over):
            break
    replays.sort(key=lambda plan: (plan.step_time_s, simplicity(plan.plan)))
    best_s = replays[0].step_time_s
    counts = Counts(progress.counts.counted, progress.counts.infeasible, len(replays))
    if beyond_s < best_s * (1 - TOLERANCE):
        counts.open = counts.pruned
    else:
        counts.open = sum(each.seconds < best_s * (1 - TOLERANCE) for each in candidates[len(replays) :])
    open_s = min(*left, beyond_s)
    proven = certificate(
        best_s,
        open_s,
        stated(whole, space, framework, setting.capacity_bytes),
        counts,
        time="simulated",
        memory_limit_bytes=setting.capacity_bytes,
    )
    return SimulatedPlans(tuple(replays), proven)


def _has_variants(plan: Plan, whole: Space) -> bool:
    """Whether the space also has the plan with other partitions or policies of single blocks."""
    return BY_BLOCK in whole.recompute or (plan.pipeline_parallel > 1 and whole.partition != "even")


def _lower_bound_s(timed: TimedPlan, job: Job, cluster: Cluster) -> float:
    """The larger of what layers and what the network need."""
    physical = float(hardware_bound(job, cluster, PlanBatch.of([timed.plan]))[0])
    return max(timed.seconds, physical)
