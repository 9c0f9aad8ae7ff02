"""`plan`: the best plan of a job on a cluster under a framework, proven."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Unpack

from dovetail import frameworks
from dovetail.arrays import TOLERANCE
from dovetail.errors import InputError
from dovetail.frameworks import Framework
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.plan import Plan
from dovetail.plans.provenance import question_digests
from dovetail.plans.runs import check_job, check_runs
from dovetail.plans.space import Space
from dovetail.plans.stated_space import stated
from dovetail.search.answer import Alternative, Answer, Certificate
from dovetail.search.best_first import BestFirst
from dovetail.search.certificate import certificate
from dovetail.search.framework_bound import AnyPartition
from dovetail.search.progress import Progress, Reporter, simplicity
from dovetail.search.recommended import Simplest
from dovetail.search.request import SearchKeywords, SearchRequest
from dovetail.search.time_limit import TimeLimit
from dovetail.step.capacity import check_fit_risk, check_memory_limit, memory_limit
from dovetail.step.evaluate import evaluate
from dovetail.step.evaluation import Evaluation
from dovetail.step.layer_tables import Setting

#: Plans with other degrees that an answer lists.
ALTERNATIVES = 5


def plan(
    job: Job,
    cluster: Cluster,
    framework: Framework | str = "megatron",
    *,
    space: Space | None = None,
    **options: Unpack[SearchKeywords],
) -> Answer:
    """The fastest plan that fits, of all that the framework can run, or of those in a narrower space.

    With `simulate_top` the fastest by simulation: at most so many plans are replayed, in the order of their lower
    bounds, and the certificate is about simulated time.

    Plans whose step takes `below_s` or longer are of no interest: where there are no others the answer has none, and
    `below_s` is the bound that is proven.

    The time limit counts from when the tables of the search stand, without the seconds in which kernels are compiled.
    `on_progress` is told a few times a second how far the search is; where it returns True the search ends, as at its
    time limit, with the best plan so far.

    With a `tie_margin` the answer also recommends the simplest plan that takes no longer than the fastest by more than
    this part of it, and its certificate has the bound over everything that the framework runs.

    With `keep_tables` an explanation of the answer costs less: it goes on with the tables of the search.

    Plans may take `memory_limit_bytes` of a chip; left out, so many that a run is out of memory with `fit_risk` alone.

    An answer may be unproven, with a time limit or where the partition of blocks with policies of their own is: then
    its status is `feasible`, and the gap says how far off it can be. Of evaluated plans with equal time the first by
    `simplicity` is taken.
    """
    framework = frameworks.load(framework) if isinstance(framework, str) else framework
    check_job(job, framework)
    asked = _limited(SearchRequest(**options), cluster, framework)
    if asked.simulate_top and asked.below_s < float("inf"):
        raise InputError("below_s", "cannot be combined with simulate_top", "leave one of them out")
    start, cpu = time.monotonic(), time.process_time()
    space = space or Space()
    whole, limit = space.resolve(job, cluster, framework), asked.memory_limit_bytes
    setting = Setting.of_space(job, cluster, framework, whole, memory_limit_bytes=limit)
    answer = _answered(setting, space, asked)
    timing = {"seconds": time.monotonic() - start, "cpu_s": time.process_time() - cpu}
    return replace(answer, timing=timing, memory_limit_bytes=asked.memory_limit_bytes)


def _limited(asked: SearchRequest, cluster: Cluster, framework: Framework) -> SearchRequest:
    """The request with the limit in bytes that a risk asked for comes to."""
    check_memory_limit(cluster.chip, asked.memory_limit_bytes, "memory_limit_bytes")
    check_fit_risk(asked.fit_risk, asked.memory_limit_bytes, "fit_risk")
    if asked.fit_risk is None:
        return asked
    return replace(asked, memory_limit_bytes=memory_limit(cluster.chip, framework, fit_risk=asked.fit_risk))


def _answered(setting: Setting, space: Space, asked: SearchRequest) -> Answer:
    job, cluster, framework = setting.job, setting.cluster, setting.framework
    time_limit = TimeLimit(asked.time_limit_s)
    reporter = None if asked.on_progress is None else Reporter(asked.on_progress)
    if asked.simulate_top:
        replayed = _simulated(setting, space, asked, time_limit, reporter)
        if replayed is not None:
            return replayed
    whole = space.resolve(job, cluster, framework)
    search = BestFirst(setting, whole, time_limit, asked.below_s, reporter=reporter)
    progress = search.run()
    evaluation = None
    if progress.best is not None and progress.best.seconds < asked.below_s:
        best = progress.best.plan
        check_runs(best, job, cluster, framework)
        evaluation = evaluate(best, job, cluster, framework)
        assert evaluation.fits, "the tables say that it fits"
        assert abs(evaluation.step_time_s / progress.best.seconds - 1) < TOLERANCE, "the tables and the model agree"
    proven = certificate(
        evaluation.step_time_s if evaluation else None,
        min(progress.left_s, progress.below_s),
        stated(whole, space, framework, setting.capacity_bytes),
        progress.counts,
        memory_limit_bytes=setting.capacity_bytes,
    )
    recommended = None
    if asked.tie_margin is not None and evaluation is not None:
        fields = {**proven.space, "digests": question_digests(job, cluster, framework)}
        proven = replace(proven, space=fields, lower_bound_framework_s=_framework_bound(search, proven))
        recommended = _recommended(search, evaluation, asked.tie_margin)
    answer = Answer(job, cluster, framework, space, evaluation, proven, _alternatives(progress), {})
    return replace(answer, recommended=recommended, search=search if asked.keep_tables else None)


def _framework_bound(search: BestFirst, proven: Certificate) -> float:
    assert proven.lower_bound_s is not None, "there is a plan"
    relaxed = AnyPartition(search, proven.lower_bound_s)
    return relaxed.bound() if relaxed.needed else proven.lower_bound_s


def _recommended(search: BestFirst, fastest: Evaluation, tie_margin: float) -> Evaluation | None:
    """What the simplest plan within the margin takes; None where that is the fastest."""
    setting = search.setting
    job, cluster, framework = setting.job, setting.cluster, setting.framework
    usable = cluster.chip.usable_bytes
    within_s = fastest.step_time_s * (1 + tie_margin) * (1 + TOLERANCE)
    simplest = Simplest(search, within_s, usable).search(fastest.plan, usable - fastest.peak_bytes)
    if simplest == fastest.plan:
        return None
    check_runs(simplest, job, cluster, framework)
    return evaluate(simplest, job, cluster, framework)


def _simulated(
    setting: Setting, space: Space, asked: SearchRequest, time_limit: TimeLimit, reporter: Reporter | None
) -> Answer | None:
    """The answer by simulation; None where there is no plan to replay."""
    from dovetail.search.simulated import MOST, simulated_plans

    job, cluster, framework, top = setting.job, setting.cluster, setting.framework, asked.simulate_top
    if not 1 <= top <= MOST:
        raise InputError("simulate_top", f"is {top}", f"it should be from 1 to {MOST}")
    simulated = simulated_plans(
        job, cluster, framework, space, top, time_limit, reporter, memory_limit_bytes=asked.memory_limit_bytes
    )
    if simulated is None:
        return None
    best = simulated.plans[0]
    evaluation = evaluate(best.plan, job, cluster, framework)
    others = [plan for plan in simulated.plans if _degrees(plan.plan) != _degrees(best.plan)]
    by_degrees = {_degrees(plan.plan): plan for plan in reversed(others)}
    alternatives = sorted(by_degrees.values(), key=lambda plan: (plan.step_time_s, simplicity(plan.plan)))[
        :ALTERNATIVES
    ]
    return Answer(
        job,
        cluster,
        framework,
        space,
        evaluation,
        simulated.certificate,
        tuple(Alternative(p.plan, p.step_time_s, p.step_time_s / best.step_time_s - 1) for p in alternatives),
        {},
        simulated.plans,
    )


def _alternatives(progress: Progress) -> tuple[Alternative, ...]:
    best = progress.best
    if best is None:
        return ()
    others = [timed for timed in progress.by_degrees.values() if _degrees(timed.plan) != _degrees(best.plan)]
    others.sort(key=lambda timed: (timed.seconds, simplicity(timed.plan)))
    return tuple(
        Alternative(timed.plan, timed.seconds, timed.seconds / best.seconds - 1) for timed in others[:ALTERNATIVES]
    )


def _degrees(plan: Plan) -> tuple[int, ...]:
    return (plan.tensor_parallel, plan.context_parallel, plan.pipeline_parallel, plan.expert_parallel)
