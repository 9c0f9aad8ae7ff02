"""What of a plan a launch format has no words for, or its framework's code refuses beyond its catalogue entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from dovetail.models import Job, Model
from dovetail.models.block import Block
from dovetail.plans.framework_limits import Obstacle
from dovetail.plans.plan import Plan

#: What torchtitan calls the schedules a plan can have; it reads them in any case of letters.
TORCHTITAN_SCHEDULES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B"}
#: MaxText's remat_policy for what a plan recomputes; `minimal` saves what projections write.
MAXTEXT_POLICIES = {"selective": "minimal", "full": "full"}


@dataclass(frozen=True, slots=True)
class LaunchLimits:
    """A launch format: whose it is, and what it refuses."""

    title: str
    version: str
    obstacles: Callable[[Plan, Job], Iterator[Obstacle]]
    #: the framework of the catalogue whose limits hold too
    framework: str | None = None
    #: where there is no key for stages: the rest of the sentence about them
    no_stages: str = ""

    def first(self, plan: Plan) -> Iterator[Obstacle]:
        """What is said before the framework is asked: whole sentences."""
        if self.no_stages and plan.pipeline_parallel > 1:
            what, _, fix = self.no_stages.partition("; ")
            yield "pipeline_parallel", f"is {plan.pipeline_parallel}, which {what}", fix


def blocks_of(model: Model) -> list[Block]:
    """The blocks of a model from embedding to head."""
    return [model.blocks[name] for part in model.layers for name in part.blocks * part.repeat]


def state_replicas(plan: Plan) -> int:
    """Replicas of the sharded state."""
    return plan.data_parallel * plan.context_parallel // plan.zero_group


def _megatron(plan: Plan, job: Job) -> Iterator[Obstacle]:
    c, p = plan.context_parallel, plan.pipeline_parallel
    if plan.pipeline_schedule not in ("1f1b", "interleaved"):
        yield "pipeline_schedule", f"is {plan.pipeline_schedule}", "set it to 1f1b or interleaved"
    if plan.pipeline_schedule == "interleaved" and plan.virtual_stages == 1:
        yield "virtual_stages", "is 1 with the interleaved schedule", "use more, or set 1f1b"
    if c > 1 and job.seq_len % (2 * c):
        fix = f"it should divide {job.seq_len} / 2: each chip has one part of either half of a sequence"
        yield "context_parallel", f"is {c} for sequences of {job.seq_len}", fix
    if c > 1 and not job.fused_attention:
        yield "context_parallel", f"is {c} with unfused attention", "set the job's attention to fused"
    if plan.zero_stage > 1 and p > 1:
        yield "zero_stage", f"is {plan.zero_stage} with a pipeline", "use 1, or one stage"
    yield from _megatron_experts(plan, job)
    chips = plan.tensor_parallel * c
    if plan.tensor_parallel > 1 and plan.context_kind == "ulysses" and c > 1:
        heads = min(_heads(job))
        if heads % chips:
            yield "context_kind", f"is ulysses for {heads} heads on {chips} chips", "use ring or all_gather"
    yield from _megatron_recompute(plan)


def _heads(job: Job) -> Iterator[int]:
    for block in blocks_of(job.model):
        heads = getattr(block.mixer, "kv_heads", None) or getattr(block.mixer, "heads", None)
        if isinstance(heads, int):
            yield heads


def _megatron_experts(plan: Plan, job: Job) -> Iterator[Obstacle]:
    mixtures = [block.feed_forward for block in blocks_of(job.model) if hasattr(block.feed_forward, "experts")]
    if not mixtures:
        return
    t, inner = plan.tensor_parallel, plan.expert_tensor_parallel
    if t > 1 and not plan.sequence_parallel:
        yield "sequence_parallel", "is false with experts and tensor parallelism", "set it to true"
    if inner > 1 and getattr(mixtures[0], "bias", False):
        yield "expert_tensor_parallel", f"is {inner} for experts with biases", "set it to 1"
    replicas = t * plan.context_parallel * plan.data_parallel // (inner * plan.expert_parallel)
    if replicas % state_replicas(plan):
        fix = f"leave it out, or let its {state_replicas(plan)} groups divide the {replicas} replicas of each expert"
        yield "zero_group", f"is {plan.zero_group}", fix


def _megatron_recompute(plan: Plan) -> Iterator[Obstacle]:
    """Full recompute of a share has to make a whole number of blocks of each stage, or virtual stage."""
    choice, share = plan.recompute, plan.recompute_share
    if plan.recompute_by_block is not None:
        yield "recompute_by_block", "tells blocks apart", "give recompute, and a share where some save everything"
    elif choice not in ("none", (), "full") and share < 1:
        yield "recompute_share", f"is {share:g} of selective recomputation", "leave it out, or use full"
    elif choice == "full" and share < 1:
        sizes = {size for size in plan.layers_per_stage if size}
        size = max(sizes)
        if len(sizes) > 1:
            fix = "recompute all blocks or none, or partition the model evenly"
            yield "recompute_share", f"is {share:g} of uneven stages", fix
        elif float(recomputed_blocks(plan) / size) != share or recomputed_blocks(plan) % 1:
            below = max(int(share * size), 1)
            fix = f"set it to {below / size:.17g}" + (f" or {(below + 1) / size:.17g}" if below < size else "")
            yield "recompute_share", f"is {share:g} of the {size} blocks of a stage", fix


def recomputed_blocks(plan: Plan) -> Fraction:
    """Blocks of each stage (or virtual stage) that full recompute of a share is for."""
    size = max(plan.layers_per_stage)
    return Fraction(plan.recompute_share).limit_denominator(size) * size


def _torchtitan(plan: Plan, job: Job) -> Iterator[Obstacle]:
    t, c, e = plan.tensor_parallel, plan.context_parallel, plan.expert_parallel
    for block in job.model.blocks.values():
        heads = getattr(block.mixer, "kv_heads", None) or getattr(block.mixer, "heads", t)
        if heads % t:
            yield "tensor_parallel", f"is {t} over {heads} key heads", "choose a degree that divides them"
    if job.model.head.tied and plan.pipeline_parallel > 1:
        yield "pipeline_parallel", f"is {plan.pipeline_parallel} with tied embeddings", "set it to 1"
    if c > 1 and plan.context_kind != "all_gather":
        yield "context_kind", f"is {plan.context_kind}", "it should be all_gather"
    parts = (t if plan.sequence_parallel else 1) * (2 * c if c > 1 else 1)
    if job.seq_len % parts:
        field = "context_parallel" if c > 1 else "sequence_parallel"
        yield field, f"splits {job.seq_len} tokens into {parts} parts", "choose degrees that divide them"
    if not plan.zero_stage and c > 1:
        yield "zero_stage", "is 0 with context parallelism, whose chips always shard the weights", "set it to 2 or 3"
    elif plan.zero_stage and plan.zero_group % c:
        yield "zero_group", f"is {plan.zero_group} with {c} context-parallel chips", "it should be a multiple of them"
    yield from _experts_whole(plan)
    chips = (plan.zero_group // c if plan.zero_stage else 1) * c * t
    if e > 1 and chips % e:
        what = f"is {e} over {chips} chips that share one copy"
        yield "expert_parallel", what, "it should divide tensor_parallel × zero_group"
    if not isinstance(plan.recompute, str) or plan.recompute_by_block is not None:
        field = "recompute" if plan.recompute_by_block is None else "recompute_by_block"
        yield field, "lists operators, which is code and no flag", "name none, selective or full"
    if plan.pipeline_parallel > 1 and plan.pipeline_schedule not in TORCHTITAN_SCHEDULES:
        fix = f"it should be one of {', '.join(TORCHTITAN_SCHEDULES)}"
        yield "pipeline_schedule", f"is {plan.pipeline_schedule}", fix


def _experts_whole(plan: Plan) -> Iterator[Obstacle]:
    """Spread experts are whole, and others are sharded like the layers around them."""
    e, inner = plan.expert_parallel, plan.expert_tensor_parallel
    if e == 1 and inner != plan.tensor_parallel:
        yield "expert_tensor_parallel", "is 1 where experts are not spread", "leave it out, or spread the experts"
    if e > 1 and inner != 1:
        yield "expert_tensor_parallel", f"is {inner} where experts are spread", "set it to 1"


def _deepspeed(plan: Plan, job: Job) -> Iterator[Obstacle]:
    del job
    t, c = plan.tensor_parallel, plan.context_parallel
    if plan.sequence_parallel:
        yield "sequence_parallel", "cannot be combined with AutoTP", "set it to false"
    if t > 1 and c > 1:
        yield "context_parallel", f"is {c} with tensor_parallel {t}", "use one of the two"
    if plan.zero_stage and plan.zero_group < plan.data_parallel * c:
        # MiCS is gone, and hpZ has a second replica of the weights without making the group smaller
        yield "zero_group", f"is {plan.zero_group} of {plan.data_parallel * c} chips", "leave it out"
    yield from _experts_whole(plan)
    if plan.recompute_share < 1:
        yield "recompute_share", f"is {plan.recompute_share:g}, which is code without a pipeline", "set it to 1"


def _accelerate(plan: Plan, job: Job) -> Iterator[Obstacle]:
    del job
    t, c = plan.tensor_parallel, plan.context_parallel
    if not plan.zero_stage:
        yield "zero_stage", "is 0", "set it to 2 or 3"
    if plan.zero_group % c:
        yield "zero_group", f"is {plan.zero_group} with {c} context-parallel chips", "it should be a multiple of them"
    if plan.zero_group == 1:
        yield "zero_group", "is 1, which leaves nothing to shard", "shard over 2 chips or more"
    if t * c > 1 and plan.zero_group == c and plan.data_parallel > 1:
        what = f"is {c}, which leaves replicas next to tensor or context parallelism"
        yield "zero_group", what, "shard over some of the data-parallel chips"
    if plan.sequence_parallel:
        yield "sequence_parallel", "is true", "set it to false"
    yield from _experts_alike(plan)
    if plan.recompute_by_block is not None or plan.recompute not in ("none", "full"):
        choice = plan.recompute if isinstance(plan.recompute, str) else "a list"
        yield "recompute", f"is {choice}", "it should be none or full"
    if plan.recompute_share < 1:
        yield "recompute_share", f"is {plan.recompute_share:g}", "recompute all blocks or none"


def _experts_alike(plan: Plan) -> Iterator[Obstacle]:
    if plan.expert_tensor_parallel != plan.tensor_parallel:
        yield "expert_tensor_parallel", f"is {plan.expert_tensor_parallel}", "leave it out"


def _maxtext(plan: Plan, job: Job) -> Iterator[Obstacle]:
    del job
    c, e = plan.context_parallel, plan.expert_parallel
    if plan.zero_stage < 3 and c * e > 1:
        # the rules of base.yml always shard weights along the context and expert axes
        axis = "context" if c > 1 else "expert"
        yield "zero_stage", f"is {plan.zero_stage} with {axis} parallelism, which shards the weights", "set it to 3"
    if plan.zero_stage == 1 and plan.zero_group < plan.data_parallel:
        yield "zero_group", f"is {plan.zero_group} with zero_stage 1", "leave it out"
    if plan.zero_stage == 3 and plan.zero_group % (c * e):
        what = f"is {plan.zero_group} with {c * e} chips along the context and expert axes"
        yield "zero_group", what, "it should be a multiple of them"
    yield from _experts_alike(plan)
    policy = plan.recompute if isinstance(plan.recompute, str) else ""
    if plan.recompute_by_block is not None or policy not in MAXTEXT_POLICIES:
        field = "recompute" if plan.recompute_by_block is None else "recompute_by_block"
        yield field, "names operators, where policies name tensors", f"it should be {' or '.join(MAXTEXT_POLICIES)}"
    p, m = plan.pipeline_parallel, plan.num_microbatches
    if p > 1 and m % p:
        what = f"makes {m} micro-batches for {p} stages"
        yield "micro_batch", what, "choose one whose number of micro-batches is a multiple of the stages"


LAUNCHES = {
    "megatron": LaunchLimits("Megatron-LM", "core 0.16.1", _megatron),
    "torchtitan": LaunchLimits("torchtitan", "torchtitan 0.3.0", _torchtitan, "torchtitan"),
    "deepspeed": LaunchLimits(
        "DeepSpeed",
        "DeepSpeed 0.19.8",
        _deepspeed,
        "deepspeed",
        "DeepSpeed 0.19.8 has no key for: PipelineModule makes stages in code; set it to 1, or choose another target",
    ),
    "accelerate": LaunchLimits(
        "FSDP2", "accelerate 1.15.0", _accelerate, "fsdp", "FSDP2 (accelerate 1.15.0) does not run; set it to 1"
    ),
    "maxtext": LaunchLimits("MaxText", "MaxText of August 2026", _maxtext, "maxtext"),
}
