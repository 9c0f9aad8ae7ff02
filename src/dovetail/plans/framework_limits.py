"""Whether a framework can run a plan, and the reason when it cannot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dovetail.errors import InputError
from dovetail.frameworks import Framework
from dovetail.plans.partitions import runs_partition
from dovetail.plans.pipeline_schedule import PipelineSchedule
from dovetail.plans.plan import Plan
from dovetail.profile.modules import MODULES

#: The field, what is wrong with it, and what would be right.
Obstacle = tuple[str, str, str]


def check_runnable(plan: Plan, framework: Framework, precision: str) -> None:
    """Refuses a plan the framework cannot run: an answer that cannot be run is no answer."""
    precisions = [name for name, _ in framework.states]
    if precision not in precisions:
        what = f"is {precision}, which {framework.name} ({framework.version}) does not run"
        raise InputError("job: precision", what, _one_of(precisions))
    for check in (_pipeline, _sharding, _recompute, expert_obstacles):
        for field, what, fix in check(plan, framework):
            raise InputError(
                f"plan: {field}", f"{what}, which {framework.name} ({framework.version}) does not run", fix
            )


def _pipeline(plan: Plan, framework: Framework) -> Iterator[Obstacle]:
    p, m = plan.pipeline_parallel, plan.num_microbatches
    if p > 1 and plan.pipeline_schedule not in framework.pipeline_schedules:
        schedules = [schedule for schedule in PipelineSchedule if schedule in framework.pipeline_schedules]
        yield "pipeline_schedule", f"is {plan.pipeline_schedule}", _one_of(schedules)
    if plan.pipeline_schedule == "interleaved" and not framework.can_interleave(m, p):
        fix = "choose a micro_batch whose number of micro-batches is a multiple of the stages"
        yield "micro_batch", f"makes {m} micro-batches for {p} interleaved stages", fix
    if plan.axis_order not in framework.axis_orders:
        yield "axis_order", f"is {plan.axis_order}", _one_of(framework.axis_orders)
    if not runs_partition(plan.layers_per_stage, framework.uneven_stages):
        if framework.uneven_stages == "ends":
            yield "layers_per_stage", "are uneven between the ends", "let only the first and last stage differ"
        else:
            yield "layers_per_stage", "are uneven", "use a number of stages that divides the layers"


def _sharding(plan: Plan, framework: Framework) -> Iterator[Obstacle]:
    if plan.layouts is not None and not framework.layouts:
        yield "layouts", "shard operators one by one", "leave them out, or use the framework wafer or ideal"
    staged = plan.pipeline_parallel > 1
    stages = framework.zero_stages_with_pipeline if staged else framework.zero_stages
    if plan.zero_stage not in stages:
        yield "zero_stage", f"is {plan.zero_stage}{' with a pipeline' if staged else ''}", _one_of(map(str, stages))
    if plan.zero_stage and not framework.zero_group and plan.zero_group < plan.data_parallel * plan.context_parallel:
        yield "zero_group", f"is {plan.zero_group}", "leave it out: state is sharded over all data-parallel chips"
    if plan.sequence_parallel and framework.sequence_parallel == "never":
        yield "sequence_parallel", "is true", "set it to false"
    if plan.context_parallel > 1:
        if not framework.context_parallel:
            yield "context_parallel", f"is {plan.context_parallel}", "set it to 1"
        elif plan.context_kind not in framework.context_parallel:
            yield "context_kind", f"is {plan.context_kind}", _one_of(framework.context_parallel)


def _recompute(plan: Plan, framework: Framework) -> Iterator[Obstacle]:
    field = "recompute" if plan.recompute_by_block is None else "recompute_by_block"
    modules = [name for name in framework.recompute_modules if name in MODULES]
    menu = f"name modules ({', '.join(modules)})" if modules else "name none, selective or full"
    for choice in plan.recompute_choices:
        if isinstance(choice, str):
            if choice not in framework.recompute:
                yield field, f"is {choice}", _one_of(framework.recompute)
        elif "operators" not in framework.recompute:
            for name in choice:
                if name not in modules:
                    yield field, f"lists {name}", f"{menu}, or use the framework ideal"
    if plan.recompute_share < 1 and not framework.recompute_some_layers:
        yield "recompute_share", f"is {plan.recompute_share:g}", "recompute all blocks or none"
    if plan.recompute_by_block is not None and "operators" not in framework.recompute:
        yield field, "tells blocks apart", "give recompute, and recompute_share for a part of the blocks"


def expert_obstacles(plan: Plan, framework: Framework) -> Iterator[Obstacle]:
    """What of a plan's experts the framework does not run."""
    t, c, e = plan.tensor_parallel, plan.context_parallel, plan.expert_parallel
    inner = plan.expert_tensor_parallel
    if not framework.expert_tensor_parallel and inner not in (1, t):
        yield "expert_tensor_parallel", f"is {inner}", "it should be 1 or left out"
    if e == 1:
        return
    if not framework.expert_parallel:
        yield "expert_parallel", f"is {e}", "set it to 1"
    if framework.experts_along_sequence and t > 1 and not plan.sequence_parallel:
        yield "sequence_parallel", "is false with experts and tensor parallelism", "set it to true"
    # neighbouring chips are tensor, then context, then data parallel; experts start where an expert's chips end
    spans = {"tensor": (1, t), "context": (t, t * c), "data": (t * c, t * c * plan.data_parallel)}
    for axis, (start, end) in spans.items():
        if max(start, inner) < min(end, inner * e) and axis not in framework.expert_parallel:
            fix = f"spread experts over {' and '.join(framework.expert_parallel)}-parallel chips alone"
            yield "expert_parallel", f"spreads experts over {axis}-parallel chips", fix


def _one_of(names: Iterable[str]) -> str:
    return f"it should be one of {', '.join(names) or 'none'}"
