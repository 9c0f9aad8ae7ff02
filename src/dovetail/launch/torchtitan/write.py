"""A plan as torchtitan's flags: one flag a line, for `torchrun ... -m torchtitan.train`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from dovetail import frameworks, models
from dovetail.errors import InputError, one_of
from dovetail.evaluation import Task
from dovetail.launch.launch_file import Launch, refuse
from dovetail.launch.torchtitan.model import RECIPES, SCHEDULES, Recipe
from dovetail.placement.plan import Plan
from dovetail.placement.runnable import check_runnable

VERSION = "torchtitan 0.3.0"

#: A field of a plan or job, what is wrong with it for torchtitan, and what would be right.
Obstacle = tuple[str, str, str]


def export(task: Task) -> Launch:
    """The flags that make torchtitan run a plan; a plan it cannot run is refused."""
    check_runnable(task.plan, frameworks.load("torchtitan"), task.job.precision)
    recipe = _recipe(task)
    for check in (_split_obstacles, _state_obstacles, _batch_obstacles):
        for field, what, fix in check(task, recipe):
            raise refuse("torchtitan", VERSION, field, what, fix)
    chips = task.cluster.chips
    notes = [
        f"written for {VERSION}; start it with torchrun on {chips} chips: -m torchtitan.train and these flags",
        "hf_assets_path, the dataset, checkpoints and the learning rate are the recipe's",
    ]
    if task.plan.recompute == "selective":
        notes.append("its selective recompute keeps attention and every other matrix product, whatever the model")
    return Launch("torchtitan.flags", "\n".join(_flags(task, recipe)) + "\n", tuple(notes))


def _recipe(task: Task) -> Recipe:
    """The recipe that trains a job's model in its numbers."""
    job = task.job
    known = {recipe.model: recipe for recipe in RECIPES}
    recipe = known.get(job.model.name)
    if recipe is None or models.load(recipe.model) != job.model:
        what = f"is {job.model.name}, for which {VERSION} ships no recipe"
        raise InputError("job: model", what, one_of(known, job.model.name))
    if job.precision not in (recipe.precision, "fp32") or (job.precision == "fp32" and recipe.precision != "bf16"):
        what = f"is {job.precision}, and {recipe.config} of {VERSION} multiplies in {recipe.precision}"
        raise InputError("job: precision", what, f"it should be {recipe.precision}")
    if job.optimizer != "adamw":
        raise InputError("job: optimizer", f"is {job.optimizer}, and {recipe.config} uses AdamW", "set it to adamw")
    if not job.fused_attention:
        raise InputError("job: attention", f"is unfused, and {VERSION} has fused attention alone", "set it to fused")
    if job.seq_len > recipe.max_seq_len:
        what = f"is {job.seq_len}, and {recipe.config} of {VERSION} ends at {recipe.max_seq_len}"
        raise InputError("job: seq_len", what, "use shorter sequences")
    return recipe


def _split_obstacles(task: Task, recipe: Recipe) -> Iterator[Obstacle]:
    """What of the degrees torchtitan refuses when it starts."""
    plan, model = task.plan, task.job.model
    t, c = plan.tensor_parallel, plan.context_parallel
    for block in model.blocks.values():
        heads = getattr(block.mixer, "kv_heads", None) or getattr(block.mixer, "heads", t)
        if heads % t:
            yield "tensor_parallel", f"is {t} over {heads} key heads", "choose a degree that divides them"
    if model.head.tied and plan.pipeline_parallel > 1:
        yield "pipeline_parallel", f"is {plan.pipeline_parallel} with tied embeddings", "set it to 1"
    if c > 1 and not recipe.context:
        yield "context_parallel", f"is {c} with attention over variable lengths ({recipe.config})", "set it to 1"
    if c > 1 and plan.context_kind != "all_gather":
        yield "context_kind", f"is {plan.context_kind}", "it should be all_gather"
    parts = (t if plan.sequence_parallel else 1) * (2 * c if c > 1 else 1)
    if task.job.seq_len % parts:
        field = "context_parallel" if c > 1 else "sequence_parallel"
        yield field, f"cuts {task.job.seq_len} tokens into {parts} parts", "choose degrees that divide them"


def _state_obstacles(task: Task, recipe: Recipe) -> Iterator[Obstacle]:
    """What of sharding and experts no flags say."""
    del recipe
    plan = task.plan
    t, c, e = plan.tensor_parallel, plan.context_parallel, plan.expert_parallel
    if not plan.zero_stage and c > 1:
        yield "zero_stage", "is 0 beside context parallelism, whose chips always shard the weights", "set it to 2 or 3"
    elif plan.zero_stage and plan.zero_group % c:
        yield "zero_group", f"is {plan.zero_group} with {c} context-parallel chips", "it should be a multiple of them"
    if e == 1 and plan.expert_tensor_parallel != t:
        yield "expert_tensor_parallel", "is 1 where experts are not spread", "leave it out, or spread the experts"
    if e > 1 and plan.expert_tensor_parallel != 1:
        yield "expert_tensor_parallel", f"is {plan.expert_tensor_parallel} where experts are spread", "set it to 1"
    if e > 1 and (_shards(plan) * c * t) % e:
        what = f"is {e} over {_shards(plan) * c * t} chips that share one copy"
        yield "expert_parallel", what, "it should divide tensor_parallel × zero_group"
    if not isinstance(plan.recompute, str) or plan.recompute_by_block is not None:
        field = "recompute" if plan.recompute_by_block is None else "recompute_by_block"
        yield field, "lists operators, which is code and no flag", "name none, selective or full"


def _batch_obstacles(task: Task, recipe: Recipe) -> Iterator[Obstacle]:
    del recipe
    plan = task.plan
    if plan.pipeline_parallel > 1 and plan.pipeline_schedule not in SCHEDULES:
        yield "pipeline_schedule", f"is {plan.pipeline_schedule}", f"it should be one of {', '.join(SCHEDULES)}"


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
    if staged or plan.expert_parallel > 1:
        yield "--training.disable_cuda_graphs"
    yield f"--parallelism.data_parallel_replicate_degree {plan.data_parallel // _shards(plan)}"
    yield f"--parallelism.data_parallel_shard_degree {_shards(plan)}"
    yield f"--parallelism.fsdp_reshard_after_forward {('default', '', 'never', 'always')[plan.zero_stage]}"
    yield f"--parallelism.tensor_parallel_degree {plan.tensor_parallel}"
    yield f"--parallelism.{'' if plan.sequence_parallel else 'no_'}enable_sequence_parallel"
    yield f"--parallelism.context_parallel_degree {plan.context_parallel}"
    if plan.context_parallel > 1:
        # the balancer for FlexAttention; the default is for another kind of attention
        yield "--parallelism.context_parallel_load_balancer ptrr"
    yield f"--parallelism.expert_parallel_degree {plan.expert_parallel}"
    yield from _pipeline_flags(plan)
    if task.framework.name == "fsdp":
        yield "--compile.no_enable"
    else:
        yield "--compile.enable"
        yield "--compile.components model,loss"
    # a subcommand of the parser, so it comes last
    yield f"activation_checkpoint:{plan.recompute}"


def _pipeline_flags(plan: Plan) -> Iterator[str]:
    yield f"--parallelism.pipeline_parallel_degree {plan.pipeline_parallel}"
    yield f"--parallelism.pipeline_parallel_schedule {SCHEDULES.get(plan.pipeline_schedule, '1F1B')}"
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
