"""Which communication of a plan overlaps with computation, and what refuses it: one definition for all who ask.

A plan that does not say has the fastest its framework permits: what the framework always overlaps, and what it can
where the other fields allow it. What a plan says holds; `OVERLAP_RULES` has what cannot run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dovetail.arrays import Bools, Ints
from dovetail.frameworks import Availability, Framework
from dovetail.frozen import frozen
from dovetail.graph import OPTIMIZERS
from dovetail.models import Job
from dovetail.plans.domains import CUDA_GRAPHS, FP8_RECIPES
from dovetail.plans.file_types import Dispatcher
from dovetail.plans.plan import Plan
from dovetail.plans.rules import Obstacle, PlanRule

#: What blocks recompute where their activations go to the host: Transformer Engine sends what all operators save,
#: DeepSpeed the inputs of checkpointed blocks.
OFFLOADED_WITH = {"megatron": "none", "deepspeed": "full"}

#: Of one plan, or of many.
Switch = bool | Bools


@frozen
class OverlapSwitches:
    """What overlaps with computation, and how tokens go to experts."""

    tensor_parallel: Switch
    expert_parallel: Switch
    gradients: bool
    parameters: bool
    dispatcher: Dispatcher


def overlaps_of(plan: Plan, framework: Framework, job: Job) -> OverlapSwitches:
    """The switches of a plan as the framework runs it."""
    own = framework.overlaps
    gradients = _on(plan.overlap_gradients, gradient_overlap(framework, plan.pipeline_parallel))
    sharded = plan.zero_stage > 0 and gradients
    expert = expert_overlap_allowed(plan, framework, job) and pipeline_allows(
        framework, job, plan.pipeline_parallel, plan.virtual_stages, plan.num_microbatches
    )
    recomputed = all(recompute_allows(framework, choice) for choice in plan.recompute_choices)
    return OverlapSwitches(
        tensor_parallel=_on(plan.overlap_tensor_parallel, own.tensor_parallel, allowed=plan.sequence_parallel),
        expert_parallel=_given(plan.overlap_expert_parallel, otherwise=bool(expert) and recomputed),
        gradients=gradients,
        parameters=_on(plan.overlap_parameters, own.weight_gather, allowed=sharded),
        dispatcher=plan.dispatcher or ("deepep" if framework.one_copy_per_node else "alltoall"),
    )


def settled(plan: Plan, framework: Framework, job: Job) -> Plan:
    """The plan with all its switches said, as the framework runs it."""
    on = overlaps_of(plan, framework, job)
    return replace(
        plan,
        overlap_tensor_parallel=bool(on.tensor_parallel),
        overlap_expert_parallel=bool(on.expert_parallel),
        overlap_gradients=on.gradients,
        overlap_parameters=on.parameters,
        dispatcher=on.dispatcher,
    )


def framework_overlaps(framework: Framework, stages: int = 1) -> OverlapSwitches:
    """What a framework overlaps whatever the degrees of a plan are."""
    own = framework.overlaps
    return OverlapSwitches(
        tensor_parallel=own.tensor_parallel == "always",
        expert_parallel=own.expert_parallel == "always",
        gradients=gradient_overlap(framework, stages) != "never",
        parameters=own.weight_gather != "never",
        dispatcher="deepep" if framework.one_copy_per_node else "alltoall",
    )


def gradient_overlap(framework: Framework, stages: int) -> Availability:
    """Whether gradients can be reduced during the backward."""
    own = framework.overlaps
    return own.gradient_reduction if stages == 1 else own.gradient_reduction_with_pipeline


def expert_overlap_allowed(plan: Plan, framework: Framework, job: Job) -> bool:
    """Whether stage degrees let tokens to experts overlap, where the plan does not say that they do not."""
    availability = framework.overlaps.expert_parallel
    if plan.overlap_expert_parallel is False:
        return False
    return availability == "always" or (availability == "optional" and not any(_spread_obstacles(plan, job)))


def pipeline_allows(
    framework: Framework, job: Job, stages: Ints | int, chunks: Ints | int, microbatches: Ints | int
) -> Switch:
    """Whether there is another micro-batch to overlap tokens to experts with, in one pipeline or in each of many."""
    alone = (stages == 1) & (microbatches > 1) & (job.model.multi_token_prediction is None)
    return alone | (chunks > 1) | (framework.overlaps.expert_parallel == "always")


def recompute_allows(framework: Framework, choice: str | tuple[str, ...]) -> bool:
    """Whether blocks that recompute this let tokens to experts overlap."""
    always = framework.overlaps.expert_parallel == "always"
    return always or (choice != "full" and (isinstance(choice, str) or "moe" not in choice))


def _pipeline_obstacles(plan: Plan, job: Job, framework: Framework) -> Iterator[Obstacle]:
    """What the pipeline and what blocks recompute decide."""
    availability = gradient_overlap(framework, plan.pipeline_parallel)
    yield from _unavailable("overlap_gradients", plan.overlap_gradients, availability)
    if not plan.overlap_expert_parallel or framework.overlaps.expert_parallel != "optional":
        return
    field, p, m = "overlap_expert_parallel", plan.pipeline_parallel, plan.num_microbatches
    if not pipeline_allows(framework, job, p, plan.virtual_stages, m):
        if p > 1:
            yield field, f"is true with {p} stages that hold one part each", "use virtual stages, or set it to false"
        elif m == 1:
            yield field, "is true with one micro-batch", "use a smaller micro_batch, or set it to false"
        else:
            yield field, "is true with further predicted tokens on one stage", "use virtual stages, or set it to false"
    for choice in plan.recompute_choices:
        if not recompute_allows(framework, choice):
            what = f"is true with recompute of {choice if isinstance(choice, str) else 'moe'}"
            yield field, what, "recompute something else, or set it to false"


def _degree_obstacles(plan: Plan, job: Job, framework: Framework) -> Iterator[Obstacle]:
    """What degrees inside a stage decide."""
    own = framework.overlaps
    yield from _unavailable("overlap_tensor_parallel", plan.overlap_tensor_parallel, own.tensor_parallel)
    yield from _unavailable("overlap_expert_parallel", plan.overlap_expert_parallel, own.expert_parallel)
    if plan.overlap_tensor_parallel and own.tensor_parallel == "optional" and not plan.sequence_parallel:
        yield "overlap_tensor_parallel", "is true without sequence parallelism", "set sequence_parallel to true"
    if plan.overlap_expert_parallel and own.expert_parallel == "optional":
        yield from _spread_obstacles(plan, job)
    if plan.dispatcher == "deepep" and not framework.one_copy_per_node:
        yield "dispatcher", "is deepep", "it should be alltoall"


def _spread_obstacles(plan: Plan, job: Job) -> Iterator[Obstacle]:
    field, further = "overlap_expert_parallel", job.model.multi_token_prediction
    if plan.expert_parallel == 1:
        yield field, "is true with expert_parallel 1", "set it to false"
    if job.precision == "fp32":
        yield field, "is true in fp32", "set it to false"
    if further is not None and further.modules > 1:
        yield field, f"is true with {further.modules} further predicted tokens", "set it to false"


def _state_obstacles(plan: Plan, _: Job, framework: Framework) -> Iterator[Obstacle]:
    """What the ZeRO stage decides."""
    own, zero_stage = framework.overlaps, plan.zero_stage
    yield from _unavailable("overlap_parameters", plan.overlap_parameters, own.weight_gather)
    if plan.overlap_parameters and own.weight_gather == "optional":
        if not zero_stage:
            yield "overlap_parameters", "is true with zero_stage 0", "set it to false, or zero_stage to 1 or more"
        if plan.overlap_gradients is False:
            yield "overlap_parameters", "is true where overlap_gradients is false", "set both to the same"
    if plan.overlap_gradients is False and zero_stage > 1 and framework.launch == "megatron":
        # Megatron-FSDP switches it on itself where gradients are sharded
        yield "overlap_gradients", f"is false with zero_stage {zero_stage}", "leave it out"


def _option_obstacles(plan: Plan, job: Job, framework: Framework) -> Iterator[Obstacle]:
    """What hosts hold, CUDA graphs and scales of fp8 that there is no option for, or not with these degrees."""
    launch = framework.launch
    yield from offload_obstacles(plan.offload, plan.zero_stage, plan.pipeline_parallel > 1, job, framework)
    if launch is None:
        return
    if plan.fp8_recipe is not None:
        if job.precision != "fp8":
            yield "fp8_recipe", f"is {plan.fp8_recipe} for a job in {job.precision}", "leave it out"
        if launch not in FP8_RECIPES:
            yield "fp8_recipe", f"is {plan.fp8_recipe}", "leave it out"
    if plan.cuda_graphs is not None and launch not in CUDA_GRAPHS:
        yield "cuda_graphs", f"is {str(plan.cuda_graphs).lower()}", "leave it out"
    if plan.cuda_graphs and launch == "torchtitan" and (plan.pipeline_parallel > 1 or plan.expert_parallel > 1):
        yield "cuda_graphs", "is true with stages or spread experts", "set it to false"


def offload_obstacles(
    offload: Sequence[str], zero_stage: int, staged: bool, job: Job, framework: Framework
) -> Iterator[Obstacle]:
    """What hosts cannot hold with this optimizer, ZeRO stage or pipeline."""
    lacking = [part for part in offload if part not in framework.offload]
    if lacking:
        yield "offload", f"has {' and '.join(lacking)}", "leave it out"
        return
    stages = framework.offload_zero_stages
    if "optimizer" in offload:
        if OPTIMIZERS[job.optimizer].others or (framework.launch is not None and job.optimizer != "adamw"):
            yield "offload", f"has the state of {job.optimizer}", "leave it out, or set the job's optimizer to adamw"
        if zero_stage not in stages:
            fix = f"set zero_stage to {' or '.join(map(str, stages))}"
            yield "offload", f"has the optimizer's state with zero_stage {zero_stage}", fix
        if framework.gradients_to_host and staged:
            yield "offload", "has the optimizer's state with a pipeline", "set pipeline_parallel to 1"
    if "activations" in offload and framework.launch == "megatron" and staged:
        yield "offload", "has activations with a pipeline", "set pipeline_parallel to 1"


def _recompute_obstacles(plan: Plan, _: Job, framework: Framework) -> Iterator[Obstacle]:
    """What is not recomputed with activations on the host, with CUDA graphs, or with scales of fp8 of earlier steps."""
    if "activations" in plan.offload and framework.launch in OFFLOADED_WITH:
        needed = OFFLOADED_WITH[framework.launch]
        if set(plan.recompute_choices) - {needed}:
            yield "offload", f"has activations without recompute {needed}", f"set recompute to {needed}"
    if framework.launch != "megatron":
        return
    modules = {name for choice in plan.recompute_choices if not isinstance(choice, str) for name in choice}
    if plan.fp8_recipe == "delayed" and modules & {"layernorm", "moe_act"}:
        yield "fp8_recipe", "is delayed with recompute of norms or activations", "it should be tensorwise"
    if plan.cuda_graphs and "full" in plan.recompute_choices:
        yield "cuda_graphs", "is true with full recompute", "set it to false"


def _unavailable(field: str, given: bool | None, availability: Availability) -> Iterator[Obstacle]:
    if given is not None and availability == ("never" if given else "always"):
        yield field, f"is {str(given).lower()}", "leave it out"


def _on(given: bool | None, availability: Availability, *, allowed: bool = True) -> bool:
    return _given(given, otherwise=availability == "always" or (availability == "optional" and allowed))


def _given(given: bool | None, *, otherwise: bool) -> bool:
    return otherwise if given is None else given


OVERLAP_RULES = (
    PlanRule("overlap-degrees", "degrees", "overlaps that are said suit the degrees", _degree_obstacles),
    PlanRule("overlap-state", "sharding", "overlaps that are said suit the ZeRO stage", _state_obstacles),
    PlanRule("overlap-pipeline", "plan", "overlaps that are said suit pipeline and recompute", _pipeline_obstacles),
    PlanRule("launch-options", "sharding", "the launch format has options for what a plan says", _option_obstacles),
    PlanRule("launch-recompute", "recompute", "options that are said suit what is recomputed", _recompute_obstacles),
)
