"""A plan as arguments of Megatron-LM.

Written from the sources of the releases (core 0.16.1 and 0.19.2): megatron/training/arguments.py, megatron/core/
parallel_state.py, transformer/transformer_config.py and pipeline_parallel_layer_layout.py.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from dovetail.errors import InputError
from dovetail.launch.launch_file import Launch, Start, launched_overlaps
from dovetail.models import Job
from dovetail.plans.flags import flags_of, further_flags
from dovetail.plans.framework_limits import recomputed_blocks
from dovetail.plans.launch_limits import MEGATRON_OPTIMIZERS, state_replicas
from dovetail.plans.launch_models.facts import has_experts, model_for
from dovetail.plans.launch_models.megatron import RELEASES, VERSION, check_constants, model_arguments
from dovetail.plans.launch_models.megatron_lists import layout_text
from dovetail.plans.overlaps import OverlapSwitches
from dovetail.plans.plan import Plan
from dovetail.plans.plan_file import Task
from dovetail.plans.runs import check_runs, launched_by

#: Options that have just the value of a field.
FLAGS = flags_of("megatron")
CONTEXT = {"ring": "p2p", "all_gather": "all_gather", "ulysses": "a2a"}
SHARDING = {2: "optim_grads", 3: "optim_grads_params"}


def export(task: Task, release: str = RELEASES[0]) -> Launch:
    """The arguments of pretrain_gpt.py, one on each line, quoted for a shell."""
    lines = [" ".join((flag, *map(shlex.quote, values))) for flag, *values in arguments_of(task, release)]
    on = launched_overlaps(task, "megatron")
    program = ("pretrain_gpt.py", *lines, *(f'{flag} "${name}"' for name, (flag, _) in _FILL_IN.items()))
    start = Start(
        "torchrun",
        program,
        environment=environment_of(task),
        fill_in={name: what for name, (_, what) in _FILL_IN.items()},
    )
    by_hand = (
        f"Start it on {task.plan.chips} chips: torchrun ... pretrain_gpt.py, followed by these arguments (xargs -a).",
        "Add data, tokenizer, checkpoints, learning rate and number of steps.",
    )
    text = "".join(f"{line}\n" for line in lines)
    return Launch("megatron.args", text, tuple(_notes(task, on)), by_hand, start)


#: What only the user knows: the variable, its argument, and what to put there.
_FILL_IN = {
    "DATA_PATH": ("--data-path", "the tokenized data: the path of its .bin and .idx files without the ending"),
    "TOKENIZER": ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model", "a tokenizer: a folder or a Hub id"),
    "CHECKPOINTS": ("--save", "a folder that all nodes see"),
    "TRAIN_ITERS": ("--train-iters", "optimizer steps"),
    "LEARNING_RATE": ("--lr", "the highest learning rate, 3e-4 for example"),
}


def environment_of(task: Task) -> dict[str, str]:
    """CUDA_DEVICE_MAX_CONNECTIONS: 1 orders kernels as overlaps of tensor and context parallelism want them before
    Blackwell; Megatron-FSDP and overlapped experts want more.
    """
    plan = task.plan
    if launched_overlaps(task, "megatron").expert_parallel:
        return {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    if plan.zero_stage not in SHARDING and (plan.tensor_parallel > 1 or plan.context_parallel > 1):
        return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    return {}


def arguments_of(task: Task, release: str = RELEASES[0]) -> list[tuple[str, ...]]:
    """The arguments that make Megatron-LM run a plan; a plan it cannot run is refused."""
    job, plan = task.job, task.plan
    check_runs(plan, job, task.cluster, launched_by("megatron", task.framework))
    model = model_for(job, VERSION)
    check_constants(model, job.seq_len, release)
    on = launched_overlaps(task, "megatron")
    return [
        *model_arguments(model, job.seq_len, release),
        ("--seq-length", str(job.seq_len)),
        (FLAGS["micro_batch"], str(plan.micro_batch)),
        ("--global-batch-size", str(job.global_batch)),
        *_precision(job, plan, on),
        *_optimizer(job, plan, release),
        *_parallel(job, plan, on),
        *_sharding(plan, on),
        *_recompute(plan),
        *_cuda_graphs(job, plan, release),
        *further_flags("megatron", plan),
    ]


def _precision(job: Job, plan: Plan, on: OverlapSwitches) -> Iterator[tuple[str, ...]]:
    if job.precision != "fp32":
        yield ("--fp16",) if job.precision == "fp16" else ("--bf16",)
    if job.precision == "fp8":
        # scaled as each tensor is now: with delayed scales norms and activations could not be recomputed
        yield "--fp8-format", "hybrid"
        yield FLAGS["fp8_recipe"], plan.fp8_recipe or "tensorwise"
        if plan.zero_stage:
            yield ("--fp8-param-gather",)
            if plan.fp8_recipe == "mxfp8" and on.parameters:
                yield ("--reuse-grad-buf-for-mxfp8-param-ag",)
    if job.precision == "fp4":
        yield "--fp4-format", "e2m1"
    if job.precision in ("fp8", "fp4") or (job.precision == "bf16" and plan.zero_stage in SHARDING):
        yield ("--grad-reduce-in-bf16",)


def _optimizer(job: Job, plan: Plan, release: str) -> Iterator[tuple[str, ...]]:
    if job.optimizer == "muon" and release != RELEASES[0]:
        fix = f"export for {RELEASES[0]}, whose Muon shards whole matrices with the distributed optimizer"
        raise InputError("job: optimizer", f"is muon for core {release}", fix)
    arguments = MEGATRON_OPTIMIZERS[job.optimizer]
    yield from arguments
    if "optimizer" in plan.offload:
        yield ("--optimizer-cpu-offload",)
        yield "--optimizer-offload-fraction", "1.0"
        yield ("--overlap-cpu-optimizer-d2h-h2d",)
        if ("--use-precision-aware-optimizer",) not in arguments:
            yield ("--use-precision-aware-optimizer",)
    if "activations" in plan.offload:
        # the last block's stay: its backward comes next
        yield "--cpu-offloading-num-layers", str(job.model.num_layers - 1)
    if not job.fused_attention:
        yield "--attention-backend", "unfused"


def _parallel(job: Job, plan: Plan, on: OverlapSwitches) -> Iterator[tuple[str, ...]]:
    yield FLAGS["tensor_parallel"], str(plan.tensor_parallel)
    if plan.sequence_parallel:
        yield (FLAGS["sequence_parallel"],)
    if on.tensor_parallel and plan.tensor_parallel > 1:
        yield (FLAGS["overlap_tensor_parallel"],)
    yield FLAGS["pipeline_parallel"], str(plan.pipeline_parallel)
    yield from _stages(job, plan)
    yield FLAGS["context_parallel"], str(plan.context_parallel)
    if plan.context_parallel > 1 or plan.context_kind != "all_gather":
        yield "--cp-comm-type", CONTEXT[plan.context_kind]
    if has_experts(job):
        yield FLAGS["expert_parallel"], str(plan.expert_parallel)
        yield FLAGS["expert_tensor_parallel"], str(plan.expert_tensor_parallel)
        yield from _dispatcher(plan, on)
    if plan.stages_inside:
        yield ("--use-tp-pp-dp-mapping",)


def _dispatcher(plan: Plan, on: OverlapSwitches) -> Iterator[tuple[str, ...]]:
    """How tokens go to experts: the backends of the flexible dispatcher send one copy to each node."""
    if plan.expert_parallel > 1 and on.dispatcher == "deepep":
        yield FLAGS["dispatcher"], "flex"
        yield "--moe-flex-dispatcher-backend", "deepep"
    else:
        yield FLAGS["dispatcher"], "alltoall"
    if on.expert_parallel:
        yield (FLAGS["overlap_expert_parallel"],)


def _stages(job: Job, plan: Plan) -> Iterator[tuple[str, ...]]:
    layers = plan.layers_per_stage
    if len(set(layers)) > 1:
        further = job.model.multi_token_prediction
        yield "--pipeline-model-parallel-layout", layout_text(layers, 0 if further is None else further.modules)
    elif plan.virtual_stages > 1:
        yield "--num-layers-per-virtual-pipeline-stage", str(layers[0])


def _sharding(plan: Plan, on: OverlapSwitches) -> Iterator[tuple[str, ...]]:
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
        if state_replicas(plan) > 1:
            yield "--num-distributed-optimizer-instances", str(state_replicas(plan))
    if on.gradients:
        yield (FLAGS["overlap_gradients"],)
    if plan.zero_stage and on.parameters:
        yield (FLAGS["overlap_parameters"],)


def _recompute(plan: Plan) -> Iterator[tuple[str, ...]]:
    choice, share = plan.recompute, plan.recompute_share
    if choice in ("none", ()):
        return
    if choice == "full":
        yield "--recompute-granularity", "full"
        yield "--recompute-method", "uniform" if share == 1 else "block"
        yield "--recompute-num-layers", "1" if share == 1 else str(recomputed_blocks(plan))
        return
    yield "--recompute-granularity", "selective"
    if not isinstance(choice, str):
        yield "--recompute-modules", *choice


def _cuda_graphs(job: Job, plan: Plan, release: str) -> Iterator[tuple[str, ...]]:
    """Graphs of whole layers; of attention alone where tokens are routed."""
    if plan.cuda_graphs:
        yield FLAGS["cuda_graphs"], "transformer_engine"
        if has_experts(job):
            yield f"--cuda-graph-{'scope' if release == '0.16' else 'modules'}", "attn"


def _notes(task: Task, on: OverlapSwitches) -> Iterator[str]:
    job, plan = task.job, task.plan
    if plan.zero_stage in SHARDING:
        yield "Megatron-FSDP wants CUDA_DEVICE_MAX_CONNECTIONS unset."
    elif plan.tensor_parallel > 1 or plan.context_parallel > 1:
        yield "On chips before Blackwell set CUDA_DEVICE_MAX_CONNECTIONS=1: Megatron-LM does not start without it."
    if job.precision == "fp8" and not plan.zero_stage:
        yield "Without ZeRO, weights stay in bf16 in addition to their fp8 copies: more memory than the plan counts."
    multiple = 128 * plan.tensor_parallel
    if job.model.vocab % multiple:
        yield f"Megatron-LM pads the vocabulary of {job.model.vocab} to a multiple of {multiple}."
    if on.expert_parallel:
        yield "Tokens to experts overlap where CUDA_DEVICE_MAX_CONNECTIONS is above 1, 32 for example."
    if has_experts(job):
        yield "How experts are balanced (--moe-router-load-balancing-type) is left to you."
