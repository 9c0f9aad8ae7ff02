"""What runs: one question for the search, for estimates and for launch files, and the sentence where the answer is no.

Three tables of rules answer it: of the model (`model_limits`: groups nest, degrees divide what they shard), of the
framework as its catalogue entry describes it (`framework_limits`), and of the launch format that starts it
(`launch_limits`). The search asks the same rules, each as soon as the fields it reads are settled.
"""

from __future__ import annotations

from dovetail import frameworks
from dovetail.errors import InputError
from dovetail.frameworks import Framework
from dovetail.hardware import Cluster
from dovetail.models import Job, described
from dovetail.plans.framework_limits import FRAMEWORK_RULES
from dovetail.plans.launch_limits import LAUNCHES
from dovetail.plans.launch_models.facts import PLAN_AGAIN
from dovetail.plans.model_limits import check_suitable
from dovetail.plans.overlaps import OVERLAP_RULES
from dovetail.plans.plan import Plan
from dovetail.plans.rules import PlanRule


def check_runs(plan: Plan, job: Job, cluster: Cluster, framework: Framework | None = None) -> None:
    """Refuses a plan whose chips could not share the model equally, or which the framework does not run.

    Without a framework the model alone is asked.
    """
    if framework is not None:
        check_job(job, framework)
    if plan.wafer is not None:
        job.check_trains_all("a plan on tiles of a wafer")
    check_suitable(plan, job, cluster)
    if framework is None:
        return
    for rule in rules_of(framework):
        for field, what, fix in rule.check(plan, job, framework):
            raise InputError(
                f"plan: {field}", f"{what}, which {framework.name} ({_version(rule, framework)}) does not run", fix
            )


def check_job(job: Job, framework: Framework) -> None:
    """Refuses a job that no plan makes the framework train: its precision, its optimizer, parts of its model."""
    precisions = [name for name, _ in framework.states]
    if job.precision not in precisions:
        what = f"is {job.precision}, which {framework.name} ({framework.version}) does not run"
        raise InputError("job: precision", what, f"it should be one of {', '.join(precisions)}")
    if framework.launch is not None:
        LAUNCHES[framework.launch].check_job(job)


def why_no_launch_file(job: Job, framework: Framework) -> str | None:
    """Why no plan of a job gives a launch file of the framework, and what to do; None where plans give one."""
    limits = None if framework.launch is None else LAUNCHES[framework.launch]
    if limits is None or not limits.describes or described(job.model) is not None:
        return None
    return f"no launch file: {job.model.name} is traced and has no description for {limits.title}; {PLAN_AGAIN}"


def rules_of(framework: Framework) -> tuple[PlanRule, ...]:
    """All rules for plans of a framework."""
    return FRAMEWORK_RULES + OVERLAP_RULES + _launch_rules(framework)


def launched_by(target: str, framework: Framework) -> Framework:
    """The framework whose plans a launch format starts: the given one where it is its own, or the catalogue's."""
    return framework if framework.launch == target else frameworks.load(LAUNCHES[target].framework)


def _launch_rules(framework: Framework) -> tuple[PlanRule, ...]:
    return () if framework.launch is None else LAUNCHES[framework.launch].rules


def _version(rule: PlanRule, framework: Framework) -> str:
    """The version a reason is about: of the launch format where it is its rule."""
    if framework.launch is not None and rule in LAUNCHES[framework.launch].rules:
        return LAUNCHES[framework.launch].version
    return framework.version
