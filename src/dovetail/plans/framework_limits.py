"""What a framework runs, as its catalogue entry describes it: a table of rules."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from dovetail.frameworks import Framework
from dovetail.models import Job
from dovetail.plans.derive import even_layers
from dovetail.plans.partitions import runs_partition
from dovetail.plans.pipeline_schedule import PipelineSchedule
from dovetail.plans.plan import Plan
from dovetail.plans.rules import Obstacle, PlanRule, one_of_names


def _schedule(plan: Plan, _: Job, framework: Framework) -> Iterator[Obstacle]:
    if plan.pipeline_parallel == 1:
        return
    schedules = [schedule for schedule in PipelineSchedule if schedule in framework.pipeline_schedules]
    if not schedules:
        yield "pipeline_parallel", f"is {plan.pipeline_parallel}", "set it to 1"
    elif plan.pipeline_schedule not in schedules:
        yield "pipeline_schedule", f"is {plan.pipeline_schedule}", one_of_names(schedules)


def _rounds(plan: Plan, _: Job, framework: Framework) -> Iterator[Obstacle]:
    p, m = plan.pipeline_parallel, plan.num_microbatches
    if p > 1 and plan.pipeline_schedule == "interleaved" and not framework.can_interleave(m, p):
        fix = "choose a micro_batch whose number of micro-batches is a multiple of the stages"
        yield "micro_batch", f"makes {m} micro-batches for {p} interleaved stages", fix


def _rank_order(plan: Plan, _: Job, framework: Framework) -> Iterator[Obstacle]:
    if plan.axis_order not in framework.axis_orders:
        yield "axis_order", f"is {plan.axis_order}", one_of_names(framework.axis_orders)


def _partition(plan: Plan, _: Job, framework: Framework) -> Iterator[Obstacle]:
    layers = plan.layers_per_stage
    if plan.pipeline_schedule == PipelineSchedule.DUAL_PIPE and layers != even_layers(len(layers), sum(layers)):
        yield "layers_per_stage", "are uneven with dualpipe", "leave them out"
    if runs_partition(layers, framework.uneven_stages):
        return
    if framework.uneven_stages == "ends":
        yield "layers_per_stage", "are uneven between the ends", "let only the first and last stage differ"
    else:
        yield "layers_per_stage", "are uneven", "use a number of stages that divides the layers"


def _layouts(plan: Plan, _: Job, framework: Framework) -> Iterator[Obstacle]:
    if plan.layouts is not None and not framework.layouts:
        yield "layouts", "shard operators one by one", "leave them out, or use the framework wafer or ideal"


def _zero_stage(plan: Plan, _: Job, framework: Framework) -> Iterator[Obstacle]:
    staged = plan.pipeline_parallel > 1
    stages = framework.zero_stages_with_pipeline if staged else framework.zero_stages
    if plan.zero_stage not in stages:
        yield (
            "zero_stage",
            f"is {plan.zero_stage}{' with a pipeline' if staged else ''}",
            one_of_names(map(str, stages)),
        )


def _zero_group(plan: Plan, _: Job, framework: Framework) -> Iterator[Obstacle]:
    if plan.zero_stage and not framework.zero_group and plan.zero_group < plan.data_parallel * plan.context_parallel:
        yield "zero_group", f"is {plan.zero_group}", "leave it out: state is sharded over all data-parallel chips"


def _shards(plan: Plan, _: Job, framework: Framework) -> Iterator[Obstacle]:
    del framework
    # layouts shard state over the dies of a stage
    if plan.zero_stage > 1 and plan.zero_group == 1 and plan.layouts is None:
        yield "zero_stage", f"is {plan.zero_stage} where no chip shares its state", "set it to 0"


def _sequence(plan: Plan, _: Job, framework: Framework) -> Iterator[Obstacle]:
    if plan.sequence_parallel and framework.sequence_parallel == "never":
        yield "sequence_parallel", "is true", "set it to false"


def _context(plan: Plan, _: Job, framework: Framework) -> Iterator[Obstacle]:
    if plan.context_parallel == 1:
        return
    if not framework.context_parallel:
        yield "context_parallel", f"is {plan.context_parallel}", "set it to 1"
    elif plan.context_kind not in framework.context_parallel:
        yield "context_kind", f"is {plan.context_kind}", one_of_names(framework.context_parallel)


def _menu(plan: Plan, _: Job, framework: Framework) -> Iterator[Obstacle]:
    field = "recompute" if plan.recompute_by_block is None else "recompute_by_block"
    words = [word for word in framework.recompute if word != "operators"]
    names = (*framework.recompute_policies, *framework.recompute_modules)
    offered = ", ".join((*words, *names))
    names += (framework.selective,) if "selective" in words else ()
    for choice in plan.recompute_choices:
        if isinstance(choice, str):
            if choice not in framework.recompute:
                yield field, f"is {choice}", f"it should be one of {offered}"
        elif not choice and "none" not in framework.recompute:
            yield field, "is empty", f"it should be one of {offered}"
        elif "operators" not in framework.recompute:
            for name in choice:
                if name not in names:
                    yield field, f"lists {name}", f"name one of {offered}, or use the framework ideal"
            if len(choice) > 1 and any(name in framework.recompute_policies for name in choice):
                yield field, f"has {len(choice)} policies at once", "name one of them"
    if plan.recompute_by_block is not None and "operators" not in framework.recompute:
        yield field, "tells blocks apart", "give recompute, and recompute_share for a part of the blocks"


def _whole_layers(plan: Plan, _: Job, framework: Framework) -> Iterator[Obstacle]:
    """Full recompute of a share is of a whole number of blocks of each stage, or virtual stage."""
    share, sizes = plan.recompute_share, set(plan.layers_per_stage)
    if share == 1:
        return
    if not framework.recompute_some_layers:
        yield "recompute_share", f"is {share:g}", "recompute all blocks or none"
    elif plan.recompute != "full":
        yield "recompute_share", f"is {share:g} of recompute {plan.recompute}", "leave it out, or use full"
    elif len(sizes) > 1:
        fix = "recompute all blocks or none, or partition the model evenly"
        yield "recompute_share", f"is {share:g} of uneven stages", fix
    else:
        size = max(sizes)
        if float(recomputed_blocks(plan) / size) != share or recomputed_blocks(plan) % 1:
            below = max(int(share * size), 1)
            fix = f"set it to {below / size:.17g}" + (f" or {(below + 1) / size:.17g}" if below < size else "")
            yield "recompute_share", f"is {share:g} of the {size} blocks of a stage", fix


def recomputed_blocks(plan: Plan) -> Fraction:
    """Blocks of each stage (or virtual stage) that full recompute of a share is for."""
    size = max(plan.layers_per_stage)
    return Fraction(plan.recompute_share).limit_denominator(size) * size


def _experts(plan: Plan, _: Job, framework: Framework) -> Iterator[Obstacle]:
    t, c, e = plan.tensor_parallel, plan.context_parallel, plan.expert_parallel
    inner = plan.expert_tensor_parallel
    if not framework.expert_tensor_parallel and inner not in (1, t):
        yield "expert_tensor_parallel", f"is {inner}", "it should be 1 or left out"
    if t % inner:
        yield "expert_tensor_parallel", f"is {inner} with tensor_parallel {t}", "it should divide that"
    if e == 1:
        return
    if not framework.expert_parallel:
        yield "expert_parallel", f"is {e}", "set it to 1"
    if framework.experts_along_sequence and t > 1 and not plan.sequence_parallel:
        yield "sequence_parallel", "is false with experts and tensor parallelism", "set it to true"
    # neighbouring chips are tensor, then context, then data parallel; experts start where an expert's chips end
    spans = {"tensor": (1, t), "context": (t, t * c), "data": (t * c, inner * e)}
    for axis, (start, end) in spans.items():
        if max(start, inner) < min(end, inner * e) and axis not in framework.expert_parallel:
            fix = f"spread experts over {' and '.join(framework.expert_parallel)}-parallel chips alone"
            yield "expert_parallel", f"spreads experts over {axis}-parallel chips", fix


#: What every framework's entry is asked, in the order in which reasons are given.
FRAMEWORK_RULES = (
    PlanRule("schedule", "pipeline", "the framework has the pipeline schedule", _schedule),
    PlanRule("rounds", "pipeline", "the interleaved schedule takes that number of micro-batches", _rounds),
    PlanRule("rank-order", "plan", "the framework has the rank order", _rank_order),
    PlanRule("partition", "plan", "the framework deals layers to stages this way", _partition),
    PlanRule("layouts", "plan", "only some frameworks shard every operator its own way", _layouts),
    PlanRule("zero-stage", "sharding", "the framework has the ZeRO stage, alone or with a pipeline", _zero_stage),
    PlanRule("zero-group", "sharding", "without groups, state is sharded over all replicas", _zero_group),
    PlanRule("shards", "sharding", "ZeRO 2 and 3 shard over two chips or more", _shards),
    PlanRule("sequence", "degrees", "the framework has sequence parallelism", _sequence),
    PlanRule("context", "degrees", "the framework has this kind of context parallelism", _context),
    PlanRule("menu", "plan", "the framework has the recompute policy", _menu),
    PlanRule("whole-layers", "plan", "shares of layers are whole numbers in equal stages", _whole_layers),
    PlanRule("experts", "degrees", "the framework spreads experts over these chips", _experts),
)
