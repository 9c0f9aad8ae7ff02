"""Plan searches that begin with plans that are known: what takes longer than these need not be looked at."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.arrays import TOLERANCE
from dovetail.exploration.best_plans import PlanSearch, named_search
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.plan import Plan
from dovetail.search.answer import Answer
from dovetail.step.evaluate import evaluate


def seeded_search(plans: Mapping[str, Plan]) -> PlanSearch:
    """The search of named strategies for designs near one whose best plan of each job is known."""

    def search(study: ResolvedStudy, job: Job, cluster: Cluster, below_s: float) -> tuple[Answer, float]:
        name = next(each.name for each in study.jobs if each.job is job)
        plan = plans.get(name)
        # a wafer's plan says which dies have what, and another grid has others
        if plan is not None and plan.chips == cluster.chips and plan.wafer is None:
            seed = evaluate(plan, job, cluster, study.framework, energy=False)
            seed_s = seed.step_time_s * (1 + TOLERANCE)
            if seed.fits and seed_s < below_s:
                answer, bound = named_search(study, job, cluster, seed_s)
                # a plan that fits may yet need more memory than plans of a search may take
                if answer.evaluation is not None:
                    return answer, bound
        return named_search(study, job, cluster, below_s)

    return search
