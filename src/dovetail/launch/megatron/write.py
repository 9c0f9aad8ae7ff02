"""A plan as arguments of Megatron-LM.

Written from the sources of the release (tag core_v0.16.1): megatron/training/arguments.py, megatron/core/
parallel_state.py, transformer/transformer_config.py and pipeline_parallel_layer_layout.py.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from fractions import Fraction

from dovetail.errors import InputError
from dovetail.evaluation import Task
from dovetail.launch.launch_file import Launch, refuse
from dovetail.launch.megatron.layer_lists import layout_text
from dovetail.launch.megatron.model import VERSION, Arguments, blocks_of, model_arguments
from dovetail.models import Job
from dovetail.placement.plan import Plan

CONTEXT = {"ring": "p2p", "all_gather": "all_gather", "ulysses": "a2a"}
SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
_OPTIMIZERS: dict[str, Arguments] = {
    "adamw": [("--optimizer", "adam")],
    "momentum": [("--optimizer", "sgd"), ("--sgd-momentum", "0.9")],
    "sgd": [("--optimizer", "sgd"), ("--sgd-momentum", "0.0")],
}


def export(task: Task) -> Launch:
    """The arguments of pretrain_gpt.py, one on each line, quoted for a shell."""
    job, plan = task.job, task.plan
    _check(job, plan)
    arguments = [
        *model_arguments(job.model, job.seq_len),
        ("--seq-length", str(job.seq_len)),
        ("--micro-batch-size", str(plan.micro_batch)),
        ("--global-batch-size", str(job.global_batch)),
        *_precision(job, plan),
        *_optimizer(job),
        *_parallel(job, plan),
        *_sharding(plan),
        *_recompute(plan),
    ]
    text = "".join(f"{' '.join((flag, *map(shlex.quote, values)))}\n" for flag, *values in arguments)
    return Launch("megatron.args", text, tuple(_notes(task)))


def _check(job: Job, plan: Plan) -> None:
    """Refuses what the catalogue's words about Megatron-LM do not exclude and its code does."""
    t, c, p = plan.tensor_parallel, plan.context_parallel, plan.pipeline_parallel
    if plan.pipeline_schedule not in ("1f1b", "interleaved"):
        raise _refuse("pipeline_schedule", f"is {plan.pipeline_schedule}", "set it to 1f1b or interleaved")
    if plan.pipeline_schedule == "interleaved" and plan.virtual_stages == 1:
        raise _refuse("virtual_stages", "is 1 with the interleaved schedule", "use more, or set 1f1b")
    if c > 1 and job.seq_len % (2 * c):
        fix = f"it should divide {job.seq_len} / 2: each chip has one part of either half of a sequence"
        raise _refuse("context_parallel", f"is {c} for sequences of {job.seq_len}", fix)
    if c > 1 and not job.fused_attention:
        raise _refuse("context_parallel", f"is {c} with unfused attention", "set the job's attention to fused")
    if job.optimizer not in _OPTIMIZERS:
        known = ", ".join(_OPTIMIZERS)
        raise InputError("job: optimizer", f"is {job.optimizer}, which {VERSION} does not have", f"use one of {known}")
    if plan.zero_stage > 1 and p > 1:
        raise _refuse("zero_stage", f"is {plan.zero_stage} with a pipeline", "use 1, or one stage")
    _check_experts(job, plan)
    if t > 1 and plan.context_kind == "ulysses" and c > 1:
        heads = min(_heads(job))
        if heads % (t * c):
            raise _refuse("context_kind", f"is ulysses for {heads} heads on {t * c} chips", "use ring or all_gather")


def _heads(job: Job) -> Iterator[int]:
    for block in blocks_of(job.model):
        heads = getattr(block.mixer, "kv_heads", None) or getattr(block.mixer, "heads", None)
        if isinstance(heads, int):
            yield heads


def _check_experts(job: Job, plan: Plan) -> None:
    mixtures = [block.feed_forward for block in blocks_of(job.model) if hasattr(block.feed_forward, "experts")]
    if not mixtures:
        return
    t, inner = plan.tensor_parallel, plan.expert_tensor_parallel
    if t > 1 and not plan.sequence_parallel:
        raise _refuse("sequence_parallel", "is false beside experts and tensor parallelism", "set it to true")
    if inner > 1 and getattr(mixtures[0], "bias", False):
        raise _refuse("expert_tensor_parallel", f"is {inner} for experts with biases", "set it to 1")
    copies = t * plan.context_parallel * plan.data_parallel // (inner * plan.expert_parallel)
    if copies % _instances(plan):
        fix = f"leave it out, or let its {_instances(plan)} groups divide the {copies} copies of each expert"
        raise _refuse("zero_group", f"is {plan.zero_group}", fix)


def _refuse(field: str, what: str, fix: str) -> InputError:
    return refuse("Megatron-LM", VERSION.removeprefix("Megatron-LM "), field, what, fix)


def _precision(job: Job, plan: Plan) -> Iterator[tuple[str, ...]]:
    if job.precision != "fp32":
        yield ("--fp16",) if job.precision == "fp16" else ("--bf16",)
    if job.precision == "fp8":
        # scaled as each tensor is now: with delayed scales norms and activations could not be computed again
        yield "--fp8-format", "hybrid"
        yield "--fp8-recipe", "tensorwise"
        if plan.zero_stage:
            yield ("--fp8-param-gather",)
    if job.precision == "fp4":
        yield "--fp4-format", "e2m1"
    if job.precision in ("fp8", "fp4") or (job.precision == "bf16" and plan.zero_stage in SHARDING):
        yield ("--grad-reduce-in-bf16",)


def _optimizer(job: Job) -> Iterator[tuple[str, ...]]:
    yield from _OPTIMIZERS[job.optimizer]
    if not job.fused_attention:
        yield "--attention-backend", "unfused"


def _parallel(job: Job, plan: Plan) -> Iterator[tuple[str, ...]]:
    yield "--tensor-model-parallel-size", str(plan.tensor_parallel)
    if plan.sequence_parallel:
        yield ("--sequence-parallel",)
    yield "--pipeline-model-parallel-size", str(plan.pipeline_parallel)
    yield from _stages(job, plan)
    yield "--context-parallel-size", str(plan.context_parallel)
    if plan.context_parallel > 1 or plan.context_kind != "all_gather":
        yield "--cp-comm-type", CONTEXT[plan.context_kind]
    if any(hasattr(block.feed_forward, "experts") for block in blocks_of(job.model)):
        yield "--expert-model-parallel-size", str(plan.expert_parallel)
        yield "--expert-tensor-parallel-size", str(plan.expert_tensor_parallel)
    if plan.stages_inside:
        yield ("--use-tp-pp-dp-mapping",)


def _stages(job: Job, plan: Plan) -> Iterator[tuple[str, ...]]:
    layers = plan.layers_per_stage
    if len(set(layers)) > 1:
        further = job.model.multi_token_prediction
        yield "--pipeline-model-parallel-layout", layout_text(layers, 0 if further is None else further.modules)
    elif plan.virtual_stages > 1:
        yield "--num-layers-per-virtual-pipeline-stage", str(layers[0])


def _instances(plan: Plan) -> int:
    """Copies of the sharded state."""
    return plan.data_parallel * plan.context_parallel // plan.zero_group


def _sharding(plan: Plan) -> Iterator[tuple[str, ...]]:
    if plan.zero_stage in SHARDING:
        yield ("--use-megatron-fsdp",)
        yield "--data-parallel-sharding-strategy", SHARDING[plan.zero_stage]
        # what the user guide of Megatron-FSDP asks for
        yield ("--no-gradient-accumulation-fusion",)
        yield ("--calculate-per-token-loss",)
        yield ("--init-model-with-meta-device",)
        yield "--ckpt-format", "fsdp_dtensor"
    if plan.zero_stage:
        yield ("--use-distributed-optimizer",)
        if _instances(plan) > 1:
            yield "--num-distributed-optimizer-instances", str(_instances(plan))
    yield ("--overlap-grad-reduce",)
    if plan.zero_stage:
        yield ("--overlap-param-gather",)


def _recompute(plan: Plan) -> Iterator[tuple[str, ...]]:
    if plan.recompute_by_block is not None:
        raise _refuse("recompute_by_block", "tells blocks apart", "give recompute, and a share where some keep all")
    choice, share = plan.recompute, plan.recompute_share
    if choice in ("none", ()):
        return
    if choice == "full":
        yield "--recompute-granularity", "full"
        yield "--recompute-method", "uniform" if share == 1 else "block"
        yield "--recompute-num-layers", "1" if share == 1 else str(_recomputed(plan))
        return
    if share < 1:
        raise _refuse("recompute_share", f"is {share:g} of selective recomputation", "leave it out, or use full")
    yield "--recompute-granularity", "selective"
    if not isinstance(choice, str):
        yield "--recompute-modules", *choice


def _recomputed(plan: Plan) -> int:
    """Blocks of each stage (or chunk) that are computed again: the share has to make a whole number of them."""
    sizes = {size for size in plan.layers_per_stage if size}
    if len(sizes) > 1:
        fix = "recompute all blocks or none, or cut the model evenly"
        raise _refuse("recompute_share", f"is {plan.recompute_share:g} of uneven stages", fix)
    size = sizes.pop()
    part = Fraction(plan.recompute_share).limit_denominator(size) * size
    if part.denominator > 1 or float(part / size) != plan.recompute_share or not part:
        below = max(int(plan.recompute_share * size), 1)
        fix = f"set it to {below / size:.17g}" + (f" or {(below + 1) / size:.17g}" if below < size else "")
        raise _refuse("recompute_share", f"is {plan.recompute_share:g} of the {size} blocks of a stage", fix)
    return int(part)


def _notes(task: Task) -> Iterator[str]:
    job, plan = task.job, task.plan
    yield f"Start it on {plan.chips} chips: torchrun ... pretrain_gpt.py, with these arguments behind (xargs -a)."
    yield "Add data, tokenizer, checkpoints, learning rate and number of steps, rotary base and epsilon of norms."
    if plan.zero_stage in SHARDING:
        yield "Megatron-FSDP wants CUDA_DEVICE_MAX_CONNECTIONS unset."
    elif plan.tensor_parallel > 1 or plan.context_parallel > 1:
        yield "On chips before Blackwell set CUDA_DEVICE_MAX_CONNECTIONS=1: Megatron-LM does not start without."
    if job.precision == "fp8" and not plan.zero_stage:
        yield "Without ZeRO weights stay in bf16 beside their fp8 copies: more memory than the plan counts."
    multiple = 128 * plan.tensor_parallel
    if job.model.vocab % multiple:
        yield f"Megatron-LM pads the vocabulary of {job.model.vocab} to a multiple of {multiple}."
    if any(getattr(block.feed_forward, "experts", 0) for block in blocks_of(job.model)):
        yield "How experts are balanced (--moe-router-load-balancing-type) is left to you."
