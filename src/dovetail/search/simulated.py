"""The best plan by simulation: leading plans are replayed in the order of their lower bounds."""

from __future__ import annotations

import time
from dataclasses import dataclass

from dovetail.bounds.hardware_bound import hardware_bound
from dovetail.frameworks import Framework
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.plan import Plan
from dovetail.plans.plan_batch import PlanBatch
from dovetail.plans.space import BY_BLOCK, Space
from dovetail.plans.words import space_sentence
from dovetail.search.answer import Certificate, SimulatedPlan
from dovetail.search.best_first import BestFirst
from dovetail.search.certificate import Counts, certificate
from dovetail.search.progress import TimedPlan, simplicity
from dovetail.simulation import simulate
from dovetail.step.layer_tables import Setting

#: More are not simulated.
MOST = 1000


@dataclass(frozen=True, slots=True)
class SimulatedPlans:
    """Leading plans replayed, the best first, and its certificate in simulated time."""

    plans: tuple[SimulatedPlan, ...]
    certificate: Certificate


def simulated_plans(
    job: Job,
    cluster: Cluster,
    framework: Framework,
    whole: Space,
    top: int,
    deadline: float | None = None,
    memory_limit_bytes: float | None = None,
) -> SimulatedPlans | None:
    """Replays up to `top` plans until none that is left can be faster; None where none fits or was found in time.

    Everything not replayed takes at least as long as the last of the leading plans, by the bound they are ordered by.
    Of a plan with several partitions the one with the lowest bound is replayed; for the others its bound stays.
    """
    setting = Setting.of(job, cluster, framework, at_least=True, memory_limit_bytes=memory_limit_bytes)
    progress = BestFirst(setting, whole, deadline, top=max(top, 2)).run()
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
        if deadline is not None and time.monotonic() > deadline:
            break
    replays.sort(key=lambda plan: (plan.step_time_s, simplicity(plan.plan)))
    counts = Counts(progress.counts.counted, progress.counts.infeasible, len(replays))
    open_s, words = min(*left, beyond_s), space_sentence(whole, framework)
    proven = certificate(
        replays[0].step_time_s, open_s, words, counts, time="simulated", memory_limit_bytes=setting.capacity_bytes
    )
    return SimulatedPlans(tuple(replays), proven)


def _has_variants(plan: Plan, whole: Space) -> bool:
    """Whether the space also has the plan with other partitions or policies of single blocks."""
    return BY_BLOCK in whole.recompute or (plan.pipeline_parallel > 1 and whole.partition != "even")


def _lower_bound_s(timed: TimedPlan, job: Job, cluster: Cluster) -> float:
    """The larger of what layers and what the network need."""
    physical = float(hardware_bound(job, cluster, PlanBatch.of([timed.plan]))[0])
    return max(timed.seconds, physical)
