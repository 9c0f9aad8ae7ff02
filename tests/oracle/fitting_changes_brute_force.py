"""Changes that make a plan fit by plain loops: every value of one and of two things, each plan evaluated.

What is changed of a plan here says all that follows from it; whether a plan runs is asked of `check_runs` alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

from plan_brute_force import cuts_alike_inside, even_cut, every_cut

from dovetail.errors import InputError
from dovetail.plans.pipeline_schedule import Pipeline, PipelineSchedule
from dovetail.plans.plan import Plan
from dovetail.plans.plan_file import Task
from dovetail.plans.runs import check_runs
from dovetail.profile.modules import MODULES
from dovetail.step.evaluate import evaluate

#: What is changed, in this order.
THINGS = (
    "micro_batch", "recompute", "zero_stage", "offload", "sequence_parallel", "context_parallel", "tensor_parallel",
    "expert_parallel", "pipeline_parallel", "layers_per_stage",
)  # fmt: skip

Fields = dict[str, Any]


@dataclass(frozen=True)
class Taken:
    """What a plan takes: the bytes that 98 in 100 runs stay within, the predicted ones, and seconds."""

    surely: float
    predicted: float
    seconds: float


class Measure:
    """Evaluates plans once, whatever memory chips have."""

    def __init__(self) -> None:
        self.taken: dict[Any, Taken] = {}

    def of(self, plan: Plan, task: Task) -> Taken:
        key = (plan, id(task.job), task.framework.name)
        if key not in self.taken:
            answer = evaluate(plan, task.job, task.cluster, task.framework, energy=False)
            parts = answer.memory_by_stage[answer.fullest_stage]
            inside = answer.peak_bytes - parts["context"] - parts["workspaces"]
            error = task.framework.memory_error.value * math.log(0.98 / 0.02)
            lacking = math.inf if answer.host_bytes > answer.host_limit_bytes else 0.0
            predicted = answer.peak_bytes + lacking
            self.taken[key] = Taken(predicted + inside * error, predicted, answer.step_time_s)
        return self.taken[key]


def fastest_changes(task: Task, measure: Measure) -> dict[tuple[str, ...], float]:
    """The seconds of the fastest plan that fits, of each set of one or two things changed."""
    usable = task.cluster.chip.usable_bytes
    for surely in (True, False):
        found: dict[tuple[str, ...], float] = {}
        enough: set[tuple[str, str]] = set()
        for changes, plan in _changed_plans(task):
            taken = measure.of(plan, task)
            if (taken.surely if surely else taken.predicted) > usable:
                continue
            names = tuple(name for name, _ in changes)
            said = {(name, repr(values)) for name, values in changes}
            if len(said) == 1:
                enough |= said
            if len(said) == 1 or not said & enough:
                found[names] = min(found.get(names, math.inf), taken.seconds)
        if found:
            return found
    return {}


def _changed_plans(task: Task) -> Iterator[tuple[list[tuple[str, Fields]], Plan]]:
    """Single changes, then pairs, that run."""
    sets = [(thing,) for thing in THINGS] + list(combinations(THINGS, 2))
    for things in sets:
        for values in product(*(_values(thing, task, alone=len(things) == 1) for thing in things)):
            changes = list(zip(things, values, strict=True))
            plan = _plan(task, {name: value for fields in values for name, value in fields.items()})
            if plan is not None:
                yield changes, plan


def _values(thing: str, task: Task, *, alone: bool) -> list[Fields]:
    base, framework, chips = task.plan, task.framework, task.cluster.chips
    degrees = [n for n in range(1, chips + 1) if chips % n == 0]
    match thing:
        case "micro_batch":
            return [{thing: n} for n in range(1, base.micro_batch) if task.job.global_batch % n == 0]
        case "recompute":
            return list(_policies(task))
        case "zero_stage":
            return [{thing: n} for n in framework.zero_stages if n > base.zero_stage]
        case "offload":
            parts = [p for p in framework.offload if p not in base.offload]
            return [{thing: t} for n in range(1, len(parts) + 1) for t in combinations(parts, n)]
        case "sequence_parallel":
            on = base.tensor_parallel > 1 and not base.sequence_parallel and framework.sequence_parallel != "never"
            return [{thing: True}] if on else []
        case "context_parallel":
            kinds = [k for k in framework.context_parallel if base.context_parallel == 1 or k == base.context_kind]
            return [{thing: n, "context_kind": k} for n in degrees for k in kinds if n > base.context_parallel]
        case "tensor_parallel":
            along = [{"sequence_parallel": s} for s in (False, True)] if base.tensor_parallel == 1 else [{}]
            return [{thing: n, **also} for n in degrees for also in along if n > base.tensor_parallel]
        case "expert_parallel":
            return [{thing: n} for n in degrees if n > base.expert_parallel]
        case "pipeline_parallel":
            schedules = [s for s in framework.pipeline_schedules if s != "interleaved"]
            schedules = schedules if base.pipeline_parallel == 1 else [base.pipeline_schedule]
            return [
                {thing: n, "pipeline_schedule": s} for n in degrees for s in schedules if n > base.pipeline_parallel
            ]
        case _:
            return [{thing: cut} for cut in _cuts(task, alone=alone)]


def _policies(task: Task) -> Iterator[Fields]:
    base, framework = task.plan, task.framework
    blocks, layers = task.job.model.num_layers, task.job.graph().layers.values()
    modules = [m for m in framework.recompute_modules if any(any(MODULES[m].operators(layer)) for layer in layers)]
    sets = [(m,) for m in framework.recompute_policies]
    sets += [t for n in range(1, len(modules) + 1) for t in combinations(modules, n) if t != (framework.selective,)]
    words: list[Any] = [word for word in framework.recompute if word != "operators"]
    for choice in (*words, *([] if "operators" in framework.recompute else sets)):
        parts = range(1, blocks + 1) if choice == "full" and framework.recompute_some_layers else (blocks,)
        for part in parts:
            if (choice, part / blocks) != (base.recompute, base.recompute_share):
                yield {"recompute": choice, "recompute_share": part / blocks}


def _cuts(task: Task, *, alone: bool) -> list[tuple[int, ...]]:
    """Cuts into any number of stages: those that do not suit the plan's are left out later."""
    base, blocks, uneven = task.plan, task.job.model.num_layers, task.framework.uneven_stages
    cuts: list[tuple[int, ...]] = []
    for stages in range(2, min(task.cluster.chips, blocks + 2) + 1):
        if uneven == "never":
            cuts.append(even_cut(stages, base.virtual_stages, blocks))
        elif alone and uneven == "any" and base.virtual_stages == 1 and base.pipeline_schedule != "dualpipe":
            cuts += every_cut(stages, blocks)
        else:
            cuts += cuts_alike_inside(stages, base.virtual_stages, blocks)
    return [cut for cut in dict.fromkeys(cuts) if cut != base.layers_per_stage]


def _plan(task: Task, fields: Fields) -> Plan | None:
    """The plan with changed fields and all that follows from them; None where it does not run or is no change."""
    base, chips, batch = task.plan, task.cluster.chips, task.job.global_batch
    plan = replace(base, **fields)
    inner = plan.tensor_parallel * plan.context_parallel * plan.pipeline_parallel
    if chips % inner or batch % (plan.micro_batch * (chips // inner)):
        return None
    d = chips // inner
    plan = replace(plan, data_parallel=d, num_microbatches=batch // (plan.micro_batch * d))
    plan = replace(plan, zero_group=d * plan.context_parallel)
    if base.expert_tensor_parallel == base.tensor_parallel:
        plan = replace(plan, expert_tensor_parallel=plan.tensor_parallel)
    parts, blocks = plan.pipeline_parallel * plan.virtual_stages, task.job.model.num_layers
    if parts > blocks + 2:
        return None
    even = even_cut(plan.pipeline_parallel, plan.virtual_stages, blocks)
    if "layers_per_stage" not in fields:
        plan = replace(plan, layers_per_stage=even) if "pipeline_parallel" in fields else plan
    elif len(plan.layers_per_stage) != parts or ("pipeline_parallel" in fields and plan.layers_per_stage == even):
        return None
    try:
        Pipeline(
            PipelineSchedule(plan.pipeline_schedule), plan.pipeline_parallel, plan.num_microbatches, plan.virtual_stages
        )
        check_runs(plan, task.job, task.cluster, task.framework)
    except InputError:
        return None
    return plan
