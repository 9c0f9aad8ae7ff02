"""A plan with some fields changed: what follows from them is derived anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.plans.derive import even_layers
from dovetail.plans.plan import Plan, PlanSpec, resolve_plan
from dovetail.plans.plan_file import Task
from dovetail.plans.write import plan_part


def changed_plan(task: Task, values: Mapping[str, Any]) -> Plan:
    """The task's plan with other values, as a plan file has them; None leaves a field out."""
    ours = task.plan
    written = {name: value for name, value in plan_part(ours).items() if name not in values} | dict(values)
    free = {"data_parallel"}
    if ours.zero_group == ours.data_parallel * ours.context_parallel and "zero_group" not in values:
        free.add("zero_group")
    repartitioned = not {"pipeline_parallel", "virtual_stages"}.isdisjoint(values)
    if "layers_per_stage" not in values and (repartitioned or is_even(ours)):
        free.add("layers_per_stage")
    if written["tensor_parallel"] == 1:
        written["sequence_parallel"] = False
    if ours.expert_tensor_parallel == ours.tensor_parallel and "expert_tensor_parallel" not in values:
        free.add("expert_tensor_parallel")
    if ours.pipeline_schedule in ("1f1b", "interleaved") and "pipeline_schedule" not in values:
        free.add("pipeline_schedule")
    free.update(name for name, value in written.items() if value is None)
    spec = PlanSpec.model_validate({name: value for name, value in written.items() if name not in free})
    return resolve_plan(
        spec,
        chips=task.cluster.chips,
        global_batch=task.job.global_batch,
        num_layers=task.job.model.num_layers,
    )


def is_even(plan: Plan) -> bool:
    """Whether a plan has the partition of one that names none."""
    return plan.layers_per_stage == even_layers(len(plan.layers_per_stage), sum(plan.layers_per_stage))
