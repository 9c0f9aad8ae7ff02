"""What of a job and a plan a launch format has no words for, or its framework's code refuses: tables of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from dovetail.errors import InputError
from dovetail.frameworks import Framework
from dovetail.frozen import frozen
from dovetail.models import Job, described
from dovetail.plans.launch_models import maxtext, megatron, torchtitan_shapes
from dovetail.plans.launch_models.facts import experts_have_biases, has_experts, is_tied, key_heads, varies_in_length
from dovetail.plans.launch_models.megatron import check_structure
from dovetail.plans.plan import Plan
from dovetail.plans.rules import Obstacle, PlanRule

#: What torchtitan calls the schedules a plan can have; it reads them in any case of letters.
TORCHTITAN_SCHEDULES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B"}


@frozen
class LaunchLimits:
    """A launch format: whose it is, and what it refuses."""

    title: str
    version: str
    #: the framework of the catalogue it is for
    framework: str
    #: refuses a job that no plan makes the framework train
    check_job: Callable[[Job], None]
    rules: tuple[PlanRule, ...]
    #: whether its files describe the model, which is otherwise the user's code
    describes: bool = True


def state_replicas(plan: Plan) -> int:
    """Replicas of the sharded state."""
    return plan.data_parallel * plan.context_parallel // plan.zero_group


# Megatron-LM.

MEGATRON_OPTIMIZERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "adamw": (("--optimizer", "adam"),),
    "momentum": (("--optimizer", "sgd"), ("--sgd-momentum", "0.9")),
    "sgd": (("--optimizer", "sgd"), ("--sgd-momentum", "0.0")),
    "adamw_bf16": (
        ("--optimizer", "adam"),
        ("--use-precision-aware-optimizer",),
        ("--exp-avg-dtype", "bf16"),
        ("--exp-avg-sq-dtype", "bf16"),
    ),
    "muon": (("--optimizer", "muon"),),
}
#: Optimizers that need the distributed optimizer, and that Megatron-FSDP does not have (arguments.py).
_MEGATRON_STAGES = {"adamw_bf16": (1, 2, 3), "muon": (0, 1)}


def _megatron_job(job: Job) -> None:
    _check_optimizer(job, MEGATRON_OPTIMIZERS, megatron.VERSION)
    if (model := described(job.model)) is not None:
        check_structure(model, job.seq_len)


def _check_optimizer(job: Job, optimizers: Iterable[str], version: str) -> None:
    if job.optimizer not in optimizers:
        what = f"is {job.optimizer}, which {version} does not have"
        raise InputError("job: optimizer", what, f"it should be one of {', '.join(optimizers)}")


def _megatron_context(plan: Plan, job: Job, _: Framework) -> Iterator[Obstacle]:
    c = plan.context_parallel
    if c == 1:
        return
    if job.seq_len % (2 * c):
        fix = f"it should divide {job.seq_len} / 2: each chip has one part of either half of a sequence"
        yield "context_parallel", f"is {c} for sequences of {job.seq_len}", fix
    if not job.fused_attention:
        yield "context_parallel", f"is {c} with unfused attention", "set the job's attention to fused"
    chips, heads = plan.tensor_parallel * c, min(key_heads(job), default=1)
    if plan.tensor_parallel > 1 and plan.context_kind == "ulysses" and heads % chips:
        yield "context_kind", f"is ulysses for {heads} heads on {chips} chips", "use ring or all_gather"


def _megatron_experts(plan: Plan, job: Job, _: Framework) -> Iterator[Obstacle]:
    mixtures = has_experts(job)
    if mixtures and plan.tensor_parallel > 1 and not plan.sequence_parallel:
        yield "sequence_parallel", "is false with experts and tensor parallelism", "set it to true"
    inner = plan.expert_tensor_parallel
    if mixtures and inner > 1 and experts_have_biases(job):
        yield "expert_tensor_parallel", f"is {inner} for experts with biases", "set it to 1"


def _megatron_replicas(plan: Plan, job: Job, _: Framework) -> Iterator[Obstacle]:
    stages = _MEGATRON_STAGES.get(job.optimizer, (0, 1, 2, 3))
    if plan.zero_stage not in stages:
        yield (
            "zero_stage",
            f"is {plan.zero_stage} with {job.optimizer}",
            f"it should be {' or '.join(map(str, stages))}",
        )
    if not plan.zero_stage:
        return
    experts = plan.expert_tensor_parallel * plan.expert_parallel
    replicas = plan.tensor_parallel * plan.context_parallel * plan.data_parallel // experts
    if replicas % state_replicas(plan) and has_experts(job):
        fix = f"leave it out, or let its {state_replicas(plan)} groups divide the {replicas} replicas of each expert"
        yield "zero_group", f"is {plan.zero_group}", fix


def _virtual_stages(plan: Plan, _: Job, framework: Framework) -> Iterator[Obstacle]:
    del framework
    if plan.pipeline_parallel > 1 and plan.pipeline_schedule == "interleaved" and plan.virtual_stages == 1:
        yield "virtual_stages", "is 1 with the interleaved schedule", "use more, or set 1f1b"


# torchtitan.


def _torchtitan_job(job: Job) -> None:
    version = torchtitan_shapes.VERSION
    if job.precision not in ("bf16", "fp32", "fp8"):
        raise InputError("job: precision", f"is {job.precision}, which {version} does not have", "set it to bf16")
    if job.optimizer != "adamw":
        raise InputError("job: optimizer", f"is {job.optimizer}, and {version} has AdamW", "set it to adamw")
    if not job.fused_attention:
        raise InputError("job: attention", f"is unfused, and {version} has fused attention alone", "set it to fused")
    if (model := described(job.model)) is not None:
        torchtitan_shapes.shape_of(model, job.seq_len)


def _torchtitan_degrees(plan: Plan, job: Job, _: Framework) -> Iterator[Obstacle]:
    t, c = plan.tensor_parallel, plan.context_parallel
    for heads in key_heads(job):
        if heads % t:
            yield "tensor_parallel", f"is {t} over {heads} key heads", "choose a degree that divides them"
    parts = (t if plan.sequence_parallel else 1) * (2 * c if c > 1 else 1)
    if job.seq_len % parts:
        field = "context_parallel" if c > 1 else "sequence_parallel"
        yield field, f"splits {job.seq_len} tokens into {parts} parts", "choose degrees that divide them"
    if c > 1 and varies_in_length(job):
        yield "context_parallel", f"is {c} with attention over variable lengths", "set it to 1"
    if c > 1 and job.model.multi_token_prediction is not None:
        yield "context_parallel", f"is {c} with predictions of further tokens", "set it to 1"


def _torchtitan_ends(plan: Plan, job: Job, _: Framework) -> Iterator[Obstacle]:
    further = job.model.multi_token_prediction is not None
    if plan.pipeline_parallel > 1 and (further or is_tied(job)):
        what = "predictions of further tokens" if further else "tied embeddings"
        yield "pipeline_parallel", f"is {plan.pipeline_parallel} with {what}", "set it to 1"


def _torchtitan_shards(plan: Plan, _: Job, framework: Framework) -> Iterator[Obstacle]:
    del framework
    c, e = plan.context_parallel, plan.expert_parallel
    if not plan.zero_stage and c > 1:
        yield "zero_stage", "is 0 with context parallelism, whose chips always shard the weights", "set it to 2 or 3"
    elif plan.zero_stage and plan.zero_group % c:
        yield "zero_group", f"is {plan.zero_group} with {c} context-parallel chips", "it should be a multiple of them"
    chips = (plan.zero_group // c if plan.zero_stage else 1) * c * plan.tensor_parallel
    if e > 1 and chips % e:
        what = f"is {e} over {chips} chips that share one copy"
        yield "expert_parallel", what, "it should divide tensor_parallel × zero_group"


def _experts_whole(plan: Plan, _: Job, framework: Framework) -> Iterator[Obstacle]:
    """Spread experts are whole, and others are sharded like the layers around them."""
    del framework
    e, inner = plan.expert_parallel, plan.expert_tensor_parallel
    if e == 1 and inner != plan.tensor_parallel:
        fix = "leave it out, or spread the experts"
        yield "expert_tensor_parallel", f"is {inner} where experts are not spread", fix
    if e > 1 and inner != 1:
        yield "expert_tensor_parallel", f"is {inner} where experts are spread", "set it to 1"


# DeepSpeed and accelerate: the model is the user's code.


def _any_job(job: Job) -> None:
    del job


def _deepspeed_degrees(plan: Plan, _: Job, framework: Framework) -> Iterator[Obstacle]:
    del framework
    t, c = plan.tensor_parallel, plan.context_parallel
    if t > 1 and c > 1:
        yield "context_parallel", f"is {c} with tensor_parallel {t}", "use one of the two"


ACCELERATE_PRECISIONS = {"bf16": "bf16", "fp32": "no"}


def _accelerate_job(job: Job) -> None:
    if job.precision not in ACCELERATE_PRECISIONS:
        what = f"is {job.precision}, for which accelerate 1.15.0 needs a backend that plans do not name"
        raise InputError("job: precision", what, "it should be bf16 or fp32")


def _accelerate_shards(plan: Plan, _: Job, framework: Framework) -> Iterator[Obstacle]:
    del framework
    t, c = plan.tensor_parallel, plan.context_parallel
    if plan.zero_group % c:
        yield "zero_group", f"is {plan.zero_group} with {c} context-parallel chips", "it should be a multiple of them"
    elif t * c > 1 and plan.zero_group == c and plan.data_parallel > 1:
        what = f"is {c}, which leaves replicas next to tensor or context parallelism"
        yield "zero_group", what, "shard over some of the data-parallel chips"


def _experts_alike(plan: Plan, _: Job, framework: Framework) -> Iterator[Obstacle]:
    del framework
    if plan.expert_tensor_parallel != plan.tensor_parallel:
        yield "expert_tensor_parallel", f"is {plan.expert_tensor_parallel}", "leave it out"


# MaxText.


def _maxtext_job(job: Job) -> None:
    if (model := described(job.model)) is not None:
        maxtext.check_structure(model)
    _check_optimizer(job, ("adamw", "sgd"), maxtext.VERSION)


def _maxtext_shards(plan: Plan, _: Job, framework: Framework) -> Iterator[Obstacle]:
    del framework
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


def _maxtext_rounds(plan: Plan, _: Job, framework: Framework) -> Iterator[Obstacle]:
    del framework
    p, m = plan.pipeline_parallel, plan.num_microbatches
    if p > 1 and m % p:
        what = f"makes {m} micro-batches for {p} stages"
        yield "micro_batch", what, "choose one whose number of micro-batches is a multiple of the stages"


LAUNCHES = {
    "megatron": LaunchLimits(
        "Megatron-LM",
        f"core {megatron.RELEASES[0]}",
        "megatron",
        _megatron_job,
        (
            PlanRule("megatron-context", "degrees", "chips share both halves of a sequence", _megatron_context),
            PlanRule(
                "megatron-experts", "degrees", "experts next to tensor parallelism shard sequences", _megatron_experts
            ),
            PlanRule("megatron-replicas", "sharding", "groups of state divide replicas of experts", _megatron_replicas),
            PlanRule("virtual-stages", "pipeline", "the interleaved schedule has two chunks or more", _virtual_stages),
        ),
    ),
    "torchtitan": LaunchLimits(
        "torchtitan",
        torchtitan_shapes.VERSION,
        "torchtitan",
        _torchtitan_job,
        (
            PlanRule("torchtitan-degrees", "degrees", "degrees divide key heads and both halves", _torchtitan_degrees),
            PlanRule(
                "torchtitan-ends", "pipeline", "tied embeddings and further tokens leave no pipeline", _torchtitan_ends
            ),
            PlanRule("torchtitan-shards", "sharding", "context chips share weights", _torchtitan_shards),
            PlanRule("experts-whole", "degrees", "spread experts are whole", _experts_whole),
            PlanRule("virtual-stages", "pipeline", "the interleaved schedule has two chunks or more", _virtual_stages),
        ),
    ),
    "deepspeed": LaunchLimits(
        "DeepSpeed",
        "DeepSpeed 0.19.8",
        "deepspeed",
        _any_job,
        (
            PlanRule("deepspeed-degrees", "degrees", "AutoTP and Ulysses exclude each other", _deepspeed_degrees),
            PlanRule("experts-whole", "degrees", "spread experts are whole", _experts_whole),
        ),
        describes=False,
    ),
    "accelerate": LaunchLimits(
        "FSDP2",
        "accelerate 1.15.0",
        "fsdp",
        _accelerate_job,
        (
            PlanRule("accelerate-shards", "sharding", "state is sharded over data-parallel chips", _accelerate_shards),
            PlanRule("experts-alike", "degrees", "experts are sharded like the layers around them", _experts_alike),
        ),
        describes=False,
    ),
    "maxtext": LaunchLimits(
        "MaxText",
        maxtext.VERSION,
        "maxtext",
        _maxtext_job,
        (
            PlanRule("maxtext-shards", "sharding", "context and expert axes shard the weights", _maxtext_shards),
            PlanRule("maxtext-rounds", "pipeline", "micro-batches are a multiple of the stages", _maxtext_rounds),
            PlanRule("experts-alike", "degrees", "experts are sharded like the layers around them", _experts_alike),
        ),
    ),
}
