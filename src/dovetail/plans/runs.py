"""What runs: one question for the search, for estimates and for launch files, and the sentence where the answer is no.

Three tables of limits answer it: of the model (`model_limits`: groups nest, degrees divide what they shard), of the
framework as its catalogue entry describes it (`framework_limits`), and of a launch format (`launch_limits`).
"""

from __future__ import annotations

from dovetail import frameworks
from dovetail.errors import InputError
from dovetail.frameworks import Framework
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.framework_limits import check_runnable
from dovetail.plans.launch_limits import LAUNCHES
from dovetail.plans.model_limits import check_suitable
from dovetail.plans.overlaps import check_overlaps
from dovetail.plans.plan import Plan


def check_runs(
    plan: Plan, job: Job, cluster: Cluster, framework: Framework | None = None, *, launch: str | None = None
) -> None:
    """Refuses a plan whose chips could not share the model equally, or which the framework does not run.

    Without a framework the model alone is asked. With the name of a launch format the framework it is for is asked,
    then what the format has no words for or its framework's code refuses.
    """
    if launch is None:
        check_suitable(plan, job, cluster)
    if framework is not None:
        check_runnable(plan, framework, job.precision)
        check_overlaps(plan, job, framework)
    if launch is not None:
        _check_launch(plan, job, launch)


def _check_launch(plan: Plan, job: Job, launch: str) -> None:
    limits = LAUNCHES[launch]
    for field, what, fix in limits.first(plan):
        raise InputError(f"plan: {field}", what, fix)
    if limits.framework is not None:
        check_runnable(plan, frameworks.load(limits.framework), job.precision)
    check_overlaps(plan, job, frameworks.load(limits.framework or launch), launch)
    for field, what, fix in limits.obstacles(plan, job):
        raise InputError(f"plan: {field}", f"{what}, which {limits.title} ({limits.version}) does not run", fix)
