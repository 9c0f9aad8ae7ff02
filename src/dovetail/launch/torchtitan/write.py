"""A plan as torchtitan's flags: one flag a line, for `torchrun ... -m torchtitan.train`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from dovetail.launch.launch_file import Launch, launched_overlaps
from dovetail.plans.flags import flags_of, further_flags
from dovetail.plans.launch_limits import LAUNCHES, TORCHTITAN_SCHEDULES, recipe_of
from dovetail.plans.launch_models.torchtitan import Recipe
from dovetail.plans.plan import Plan
from dovetail.plans.plan_file import Task
from dovetail.plans.runs import check_runs, launched_by

VERSION = LAUNCHES["torchtitan"].version
#: Options that have just the value of a field.
FLAGS = flags_of("torchtitan")


def export(task: Task) -> Launch:
    """The flags that make torchtitan run a plan; a plan it cannot run is refused."""
    check_runs(task.plan, task.job, task.cluster, launched_by("torchtitan", task.framework))
    chips = task.cluster.chips
    notes = [
        f"written for {VERSION}; start it with torchrun on {chips} chips: -m torchtitan.train and these flags",
        "hf_assets_path, the dataset, checkpoints and the learning rate are the recipe's",
    ]
    return Launch("torchtitan.flags", "\n".join(_flags(task, recipe_of(task.job))) + "\n", tuple(notes))


def _shards(plan: Plan) -> int:
    """Data-parallel chips that share one copy of the weights: dp_shard, context-parallel ones aside."""
    return plan.zero_group // plan.context_parallel if plan.zero_stage else 1


def _flags(task: Task, recipe: Recipe) -> Iterator[str]:
    plan, job = task.plan, task.job
    staged = plan.pipeline_parallel > 1
    yield f"--module {recipe.module}"
    yield f"--config {recipe.config}"
    yield f"--training.seq_len {job.seq_len}"
    # stages take a step's microbatches at once; without stages each is a step of gradient accumulation
    yield f"--training.local_batch_size {plan.micro_batch * (plan.num_microbatches if staged else 1)}"
    yield f"--training.global_batch_size {job.global_batch}"
    yield "--training.dtype float32"
    yield f"--training.mixed_precision_param {'float32' if job.precision == 'fp32' else 'bfloat16'}"
    if staged or plan.expert_parallel > 1 or plan.cuda_graphs is False:
        yield "--training.disable_cuda_graphs"
    yield f"--parallelism.data_parallel_replicate_degree {plan.data_parallel // _shards(plan)}"
    yield f"--parallelism.data_parallel_shard_degree {_shards(plan)}"
    yield f"--parallelism.fsdp_reshard_after_forward {('default', '', 'never', 'always')[plan.zero_stage]}"
    yield f"--{FLAGS['tensor_parallel']} {plan.tensor_parallel}"
    yield f"--parallelism.{'' if plan.sequence_parallel else 'no_'}enable_sequence_parallel"
    yield f"--{FLAGS['context_parallel']} {plan.context_parallel}"
    if plan.context_parallel > 1:
        # the balancer for FlexAttention; the default is for another kind of attention
        yield "--parallelism.context_parallel_load_balancer ptrr"
    yield f"--{FLAGS['expert_parallel']} {plan.expert_parallel}"
    yield from _pipeline_flags(plan)
    if task.framework.name == "fsdp":
        yield "--compile.no_enable"
    else:
        yield "--compile.enable"
        yield "--compile.components model,loss"
        if launched_overlaps(task, "torchtitan").tensor_parallel and plan.tensor_parallel > 1:
            yield f"--{FLAGS['overlap_tensor_parallel']}"
    yield from (f"--{option} {value}" for option, value in further_flags("torchtitan", plan))
    # a subcommand of the parser, so it comes last
    yield f"activation_checkpoint:{_recompute(plan)}"


def _recompute(plan: Plan) -> str:
    """The one list it has is what selective recompute is."""
    if isinstance(plan.recompute, str):
        return plan.recompute
    return "selective" if plan.recompute else "none"


def _pipeline_flags(plan: Plan) -> Iterator[str]:
    yield f"--{FLAGS['pipeline_parallel']} {plan.pipeline_parallel}"
    yield f"--parallelism.pipeline_parallel_schedule {TORCHTITAN_SCHEDULES.get(plan.pipeline_schedule, '1F1B')}"
    if plan.pipeline_parallel == 1:
        return
    yield f"--parallelism.pipeline_parallel_microbatch_size {plan.micro_batch}"
    ends = list(accumulate(plan.layers_per_stage))
    parts = [
        [f"layers.{layer}" for layer in range(end - size, end)]
        for size, end in zip(plan.layers_per_stage, ends, strict=True)
    ]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    yield "--parallelism.module_fqns_per_model_part " + " ".join(",".join(part) for part in parts)
