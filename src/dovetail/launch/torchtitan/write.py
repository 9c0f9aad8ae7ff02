"""A plan as a recipe of torchtitan: a Python module whose function returns the trainer's configuration.

The constants at its top are the model's; the functions below them, one text for each family, build it from
torchtitan's own parts. What it calls is private there, so a recipe is for one release.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import accumulate
from typing import Any, cast

from dovetail.launch.launch_file import Launch, Start, launched_overlaps
from dovetail.plans.launch_limits import LAUNCHES, TORCHTITAN_SCHEDULES
from dovetail.plans.launch_models.facts import model_for
from dovetail.plans.launch_models.torchtitan_shapes import TitanModel, shape_of
from dovetail.plans.plan import Plan
from dovetail.plans.plan_file import Task
from dovetail.plans.runs import check_runs, launched_by

VERSION = LAUNCHES["torchtitan"].version
MODULE = "dovetail_recipe"

_IMPORTS = """from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer
"""
_CHECKPOINTING = {"none": "None", "full": "FullAC.Config()", "selective": "SelectiveAC.Config()"}


def export(task: Task) -> Launch:
    """The recipe that makes torchtitan run a plan; a plan it cannot run is refused."""
    check_runs(task.plan, task.job, task.cluster, launched_by("torchtitan", task.framework))
    text = _text(task, shape_of(model_for(task.job, VERSION), task.job.seq_len))
    program = (
        "-m torchtitan.train", f"--module {MODULE}", "--config recipe", '--hf_assets_path "$HF_ASSETS"',
        '--dataloader.dataset "$DATASET"', '--training.steps "$STEPS"',
    )  # fmt: skip
    fill_in = {
        "HF_ASSETS": "the folder of the model's tokenizer",
        "DATASET": "a data set of torchtitan, such as c4",
        "STEPS": "optimizer steps",
    }
    start = Start("torchrun", program, {f"{MODULE}.py": text}, fill_in=fill_in)
    by_hand = (
        f"start it on {task.cluster.chips} chips: torchrun ... -m torchtitan.train --module {MODULE} --config recipe, "
        "in the folder of this file",
    )
    notes = ("the learning rate is 3e-4 until you set yours in recipe()",)
    return Launch(f"{MODULE}.py", text, notes, by_hand, start)


def _text(task: Task, shape: TitanModel) -> str:
    imports, builders = (
        (files("dovetail.launch.torchtitan") / "families" / f"{shape.family}.txt")
        .read_text(encoding="utf-8")
        .split("---\n")
    )
    lines = sorted(_lines(_IMPORTS + imports), key=lambda line: line.split()[1])
    constants = dict(shape.constants)
    if "DISPATCHER" in builders:
        spread = launched_overlaps(task, "torchtitan").dispatcher
        constants["DISPATCHER"] = "deepep" if spread == "deepep" else "standard"
    parts = [
        f'"""{task.job.model.name} on {task.cluster.chips} chips, for {VERSION}."""\n',
        "".join(lines),
        "# The model, as its config.json has it.\n"
        + "".join(f"{name} = {_literal(value)}\n" for name, value in constants.items()),
        builders.strip("\n").join(("\n", "\n")),
        _recipe(task, shape),
    ]
    return "\n".join(parts)


def _lines(text: str) -> Iterator[str]:
    """Imports, each with the names in its brackets."""
    for part in text.split("\nfrom "):
        yield part.strip("\n").join(("" if part.startswith("from ") else "from ", "\n"))


def _literal(value: object, indent: str = "") -> str:
    """A literal, a field a line where it is a mapping."""
    inner = f"{indent}    "
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, object]", value).items()
        return "{\n" + "".join(f"{inner}{_literal(k)}: {_literal(v, inner)},\n" for k, v in fields) + indent + "}"
    if isinstance(value, list | tuple):
        parts = [_literal(part) for part in cast("Sequence[object]", value)]
        if parts and parts[0][0] in "[(":
            return "[\n" + "".join(f"{inner}{part},\n" for part in parts) + indent + "]"
        return f"({', '.join(parts)})" if isinstance(value, tuple) else f"[{', '.join(parts)}]"
    return repr(value)


def _shards(plan: Plan) -> int:
    """Data-parallel chips that share one copy of the weights: dp_shard, context-parallel ones aside."""
    return plan.zero_group // plan.context_parallel if plan.zero_stage else 1


def _recipe(task: Task, shape: TitanModel) -> str:
    job = task.job
    loss = (
        "MTPLoss.Config(mtp_scale=0.3, global_vocab_size=VOCAB_SIZE)"
        if shape.constants.get("MTP_LAYERS")
        else "ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config(global_vocab_size=VOCAB_SIZE))"
    )
    compiled = task.framework.name != "fsdp"
    overlapped = launched_overlaps(task, "torchtitan").tensor_parallel and task.plan.tensor_parallel > 1
    compile_fields: dict[str, Any] = {"enable": compiled}
    if compiled:
        compile_fields |= {"components": ["model", "loss"], "enable_async_tensor_parallel": overlapped}
    lines = [
        "",
        "",
        "def recipe() -> Trainer.Config:",
        '    """The model, and how it is trained."""',
        "    config = model()",
        *_converters(task, shape),
        "    return Trainer.Config(",
        "        model_spec=model_spec(config),",
        f"        loss={loss},",
        f'        hf_assets_path="./assets/hf/{job.model.name}",',
        '        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),',
        "        optimizer=default_adamw(lr=3e-4),",
        *_call("training", "TrainingConfig", _training(task)),
        *_call("parallelism", "ParallelismConfig", _parallelism(task.plan)),
        f"        activation_checkpoint={_CHECKPOINTING[_recompute(task.plan)]},",
        *_call("compile", "CompileConfig", compile_fields),
        "    )",
        "",
    ]
    return "\n".join(lines)


def _call(field: str, name: str, arguments: Mapping[str, Any]) -> Iterator[str]:
    yield f"        {field}={name}("
    yield from (f"            {key}={_literal(value, ' ' * 12)}," for key, value in arguments.items())
    yield "        ),"


def _converters(task: Task, shape: TitanModel) -> Iterator[str]:
    """What makes linear layers multiply in fp8: they replace parts of the model before it is built."""
    if task.job.precision != "fp8":
        return
    kind = "MXFP8" if task.plan.fp8_recipe == "mxfp8" else "Float8"
    compiled = f"model_compile_enabled={task.framework.name != 'fsdp'}"
    names = [f"{kind}LinearConverter"]
    if shape.family != "llama3":
        names.append(f"{kind}GroupedExpertsConverter")
    yield f"    from torchtitan.components.quantization import {', '.join(names)}"
    yield ""
    skipped = "" if kind == "MXFP8" else 'filter_fqns=["lm_head", "router.gate"], '
    for name in names:
        given = skipped if name.endswith("LinearConverter") else ""
        yield f"    config = {name}.Config({given}{compiled}).build().convert(config)"


def _training(task: Task) -> dict[str, Any]:
    plan, job = task.plan, task.job
    staged = plan.pipeline_parallel > 1
    return {
        "seq_len": job.seq_len,
        # stages take a step's micro-batches at once; without stages each is a step of gradient accumulation
        "local_batch_size": plan.micro_batch * (plan.num_microbatches if staged else 1),
        "global_batch_size": job.global_batch,
        "dtype": "float32",
        "mixed_precision_param": "float32" if job.precision == "fp32" else "bfloat16",
        "disable_cuda_graphs": staged or plan.expert_parallel > 1 or plan.cuda_graphs is False,
    }


def _parallelism(plan: Plan) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "data_parallel_replicate_degree": plan.data_parallel // _shards(plan),
        "data_parallel_shard_degree": _shards(plan),
        "fsdp_reshard_after_forward": ("default", "", "never", "always")[plan.zero_stage],
        "tensor_parallel_degree": plan.tensor_parallel,
        "enable_sequence_parallel": plan.sequence_parallel,
        "context_parallel_degree": plan.context_parallel,
        "expert_parallel_degree": plan.expert_parallel,
        "pipeline_parallel_degree": plan.pipeline_parallel,
        "pipeline_parallel_schedule": TORCHTITAN_SCHEDULES.get(plan.pipeline_schedule, "1F1B"),
    }
    if plan.context_parallel > 1:
        # the balancer for FlexAttention; the default is for another kind of attention
        fields["context_parallel_load_balancer"] = "ptrr"
    if plan.pipeline_parallel > 1:
        fields["pipeline_parallel_microbatch_size"] = plan.micro_batch
        fields["module_fqns_per_model_part"] = _parts(plan)
    return fields


def _parts(plan: Plan) -> list[list[str]]:
    ends = list(accumulate(plan.layers_per_stage))
    parts = [
        [f"layers.{layer}" for layer in range(end - size, end)]
        for size, end in zip(plan.layers_per_stage, ends, strict=True)
    ]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return parts


def _recompute(plan: Plan) -> str:
    """The one list it has is what selective recompute is."""
    if isinstance(plan.recompute, str):
        return plan.recompute
    return "selective" if plan.recompute else "none"
