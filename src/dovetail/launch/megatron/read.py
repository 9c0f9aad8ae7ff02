"""A Megatron-LM launch script or list of arguments as parts of a plan file."""

from __future__ import annotations

from typing import Any, get_args

from dovetail.errors import InputError, quoted
from dovetail.frozen import frozen
from dovetail.launch.launch_file import Reading
from dovetail.launch.megatron.flags import SWITCHES, Flags, launched
from dovetail.launch.megatron.read_model import assumed_constants, read_model
from dovetail.launch.shell.script import Script, read_script
from dovetail.plans.derive import even_layers
from dovetail.plans.file_types import Fp8Recipe
from dovetail.plans.flags import flags_of, read_further
from dovetail.plans.launch_models.megatron_lists import layout_parts
from dovetail.profile.modules import MODULES

#: Options that have just the value of a field.
FLAGS = flags_of("megatron")
#: Options every launch has some of: the command with most of these is the launch.
TELLING = frozenset({
    *SWITCHES, *FLAGS.values(), "--num-layers", "--hidden-size", "--num-attention-heads", "--seq-length",
    "--global-batch-size", "--max-position-embeddings", "--recompute-granularity", "--num-experts",
})  # fmt: skip
CONTEXT = {"p2p": "ring", "all_gather": "all_gather", "a2a": "ulysses"}
#: Megatron-DeepSpeed: embedding and head count as a layer each.
DEEPSPEED_ENDS = "type:transformer|embedding"
SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}

Document = dict[str, Any]


@frozen
class _Degrees:
    """What further fields follow from."""

    tensor: int
    pipeline: int
    context: int
    layers: int
    #: none where the launch does not say on how many chips it runs
    data: int | None


def read(text: str, where: str, chips: int | None = None) -> Reading:
    """The job and plan of a launch; `chips` from elsewhere goes before what the launch says."""
    script = read_script(text, where)
    words = _launch_words(text, script, where)
    launcher, flags = launched(words, where)
    chips = chips or _chips(launcher) or (script.tasks if words[0] == "srun" else None)
    degrees = _degrees(flags, chips)
    seq_len = (
        flags.needed("--seq-length") if not flags.has("--encoder-seq-length") else flags.needed("--encoder-seq-length")
    )
    micro_batch = flags.needed(FLAGS["micro_batch"])
    job: Document = {
        "model": read_model(flags, seq_len, degrees.tensor),
        "seq_len": seq_len,
        "global_batch": _global_batch(flags, micro_batch, degrees),
        "precision": _precision(flags),
        "optimizer": _optimizer(flags),
        "attention": "unfused" if flags.choice("--attention-backend", _BACKENDS) in ("unfused", "local") else "fused",
    }
    plan: Document = {
        "tensor_parallel": degrees.tensor,
        "pipeline_parallel": degrees.pipeline,
        "context_parallel": degrees.context,
        "sequence_parallel": flags.has(FLAGS["sequence_parallel"]) and degrees.tensor > 1,
        "micro_batch": micro_batch,
        **_context(flags, degrees),
        **_stages(flags, degrees),
        **_experts(flags),
        **_sharding(flags, degrees),
        **_offload(flags, degrees.layers),
        **_other_fields(flags, job["precision"]),
        "axis_order": "tp-cp-pp-dp" if flags.has("--use-tp-pp-dp-mapping") else "tp-cp-dp-pp",
        **read_further("megatron", where, flags.text),
    }
    plan |= _recompute(flags, degrees, plan) | _overlaps(flags, plan)
    _pass_defaults(flags, degrees)
    passed_over, unknown = flags.rest()
    cluster = {} if chips is None else {"chips": chips}
    assumed = tuple(assumed_constants(flags, job["model"]))
    return Reading("megatron", job, cluster, plan, passed_over, unknown, assumed)


_BACKENDS = ("auto", "flash", "fused", "unfused", "local")


def _launch_words(text: str, script: Script, where: str) -> tuple[str, ...]:
    """The words of the command that starts training."""
    candidates = [(sum(word.partition("=")[0] in TELLING for word in words), words) for words in script.commands]
    if text.lstrip().startswith("--"):
        # a list of arguments: each line is one, and no line is a command
        arguments = tuple(word for _, words in candidates for word in words)
        candidates = [(sum(word.partition("=")[0] in TELLING for word in arguments), arguments)]
    most = max((count for count, _ in candidates), default=0)
    if most < 2:
        fix = "give a launch script, or the arguments behind pretrain_gpt.py"
        raise InputError(where, "has no arguments of Megatron-LM", fix)
    return next(words for count, words in candidates if count == most)


def _chips(launcher: Flags) -> int | None:
    """Chips the launcher starts on."""
    each, nodes = launcher.text("--nproc_per_node"), launcher.text("--nnodes")
    if each is None or not each.isdecimal() or (nodes is not None and not nodes.isdecimal()):
        return None
    return int(each[:9]) * int((nodes or "1")[:9]) or None


def _degrees(flags: Flags, chips: int | None) -> _Degrees:
    tensor = flags.whole(FLAGS["tensor_parallel"]) or flags.whole("--model-parallel-size") or 1
    pipeline = flags.whole(FLAGS["pipeline_parallel"]) or 1
    context = flags.whole(FLAGS["context_parallel"]) or 1
    model = tensor * pipeline * context
    if chips is not None and chips % model:
        what = f"with the other degrees makes {model} chips of {chips}"
        raise flags.wrong(FLAGS["tensor_parallel"], what, "the product of the degrees should divide the chips")
    data = None if chips is None else chips // model
    return _Degrees(tensor, pipeline, context, flags.needed("--num-layers"), data)


def _global_batch(flags: Flags, micro_batch: int, degrees: _Degrees) -> int:
    batch = flags.whole("--global-batch-size")
    if batch is None and degrees.data is None:
        raise flags.wrong("--global-batch-size", "is missing", "add it, or say on how many chips this runs")
    return batch or micro_batch * (degrees.data or 1)


def _precision(flags: Flags) -> str:
    half, brain = flags.has("--fp16"), flags.has("--bf16")
    eight = [flags.choice("--fp8-format", ("e4m3", "hybrid")) is not None]
    eight += [flags.has("--fp8-hybrid"), flags.has("--fp8-e4m3")]
    if half and brain:
        raise flags.wrong("--fp16", "cannot be combined with --bf16", "drop one of them")
    if flags.choice("--fp4-format", ("e2m1",)) is not None:
        return "fp4"
    return "fp8" if any(eight) else "fp16" if half else "bf16" if brain else "fp32"


def _optimizer(flags: Flags) -> str:
    momentum = flags.number("--sgd-momentum")
    named = flags.choice("--optimizer", ("adam", "sgd", "muon", "dist_muon")) or "adam"
    moments = {flags.text(f"--exp-avg{part}-dtype") or "fp32" for part in ("", "-sq")}
    if moments not in ({"fp32"}, {"bf16"}):
        what = f"makes moments in {' and '.join(sorted(moments))}"
        raise flags.wrong("--exp-avg-sq-dtype", what, "a job has both in fp32 or both in bf16")
    flags.read.add("--use-precision-aware-optimizer")
    if named == "adam":
        return "adamw_bf16" if moments == {"bf16"} else "adamw"
    if named != "sgd":
        return named.removeprefix("dist_")
    return "sgd" if momentum == 0 else "momentum"


def _context(flags: Flags, degrees: _Degrees) -> Document:
    kinds = flags.texts("--cp-comm-type")
    if kinds is None:
        return {"context_kind": "ring"} if degrees.context > 1 else {}
    if len(set(kinds)) > 1 or kinds[0] not in CONTEXT:
        supported = ", ".join(CONTEXT)
        raise flags.wrong(
            "--cp-comm-type", f"is {quoted(' '.join(kinds))}", f"a plan has one of {supported} for all layers"
        )
    return {"context_kind": CONTEXT[kinds[0]]}


def _experts(flags: Flags) -> Document:
    expert, inner = flags.whole(FLAGS["expert_parallel"]), flags.whole(FLAGS["expert_tensor_parallel"])
    if not flags.whole("--num-experts", low=0):
        return {}
    fields: Document = {"expert_parallel": expert or 1}
    return fields if inner is None else {**fields, "expert_tensor_parallel": inner}


def _sharding(flags: Flags, degrees: _Degrees) -> Document:
    strategy = flags.choice("--data-parallel-sharding-strategy", SHARDING) or "no_shard"
    stage = int(flags.has("--use-distributed-optimizer"))
    deepspeed = flags.whole("--zero-stage", low=0)
    if any([flags.has("--use-megatron-fsdp"), flags.has("--use-custom-fsdp")]):
        stage = SHARDING[strategy]
    elif flags.has("--use-torch-fsdp2"):
        stage = 3
    elif deepspeed is not None:
        stage = deepspeed
        # what else it says of the state is said here
        flags.read.add("--deepspeed_config")
    instances = flags.whole("--num-distributed-optimizer-instances") or 1
    if not stage or instances == 1:
        return {"zero_stage": stage}
    if degrees.data is None:
        what = f"is {instances}, which makes groups of a size that depends on the number of chips"
        raise flags.wrong("--num-distributed-optimizer-instances", what, "say on how many chips this runs")
    ranks = degrees.data * degrees.context
    if ranks % instances:
        what = f"is {instances} for {ranks} data-parallel chips"
        raise flags.wrong("--num-distributed-optimizer-instances", what, "it should divide them")
    return {"zero_stage": stage, "zero_group": ranks // instances}


def _offload(flags: Flags, num_layers: int) -> Document:
    """What hosts hold; how copies overlap and how they are buffered is the framework's."""
    optimizer, fraction = flags.has("--optimizer-cpu-offload"), flags.number("--optimizer-offload-fraction")
    flags.read.add("--overlap-cpu-optimizer-d2h-h2d")
    if optimizer and fraction not in (None, 1):
        raise flags.wrong(
            "--optimizer-offload-fraction", f"is {fraction:g}", "a plan offloads all of the state: set it to 1"
        )
    activations = flags.whole("--cpu-offloading-num-layers", low=0) or 0
    # the last layer's backward follows at once
    if 0 < activations < num_layers - 1:
        fix = f"a plan offloads those of all layers but the last: set it to {num_layers - 1}"
        raise flags.wrong("--cpu-offloading-num-layers", f"is {activations} of {num_layers}", fix)
    parts = [*(["optimizer"] if optimizer else []), *(["activations"] if activations else [])]
    return {"offload": parts} if parts else {}


def _overlaps(flags: Flags, plan: Document) -> Document:
    """What a launch overlaps: nothing that it does not say, but what Megatron-FSDP switches on by itself."""
    spread, stage = plan.get("expert_parallel", 1) > 1, plan["zero_stage"]
    names = ("tensor_parallel", "expert_parallel", "gradients", "parameters")
    tensor, expert, gradients, parameters = (flags.has(FLAGS[f"overlap_{name}"]) for name in names)
    flexible = flags.choice(FLAGS["dispatcher"], ("allgather", "alltoall", "flex")) == "flex"
    flags.read |= {"--moe-flex-dispatcher-backend", "--moe-enable-deepep"}
    fields: Document = {"overlap_tensor_parallel": tensor and plan["sequence_parallel"]}
    if spread:
        fields |= {"overlap_expert_parallel": expert, "dispatcher": "deepep" if flexible else "alltoall"}
    if stage < 2:
        fields["overlap_gradients"] = gradients
    if stage == 1:
        fields["overlap_parameters"] = parameters
    return fields


def _other_fields(flags: Flags, precision: str) -> Document:
    """CUDA graphs, and scales of fp8 other than those plans have by default."""
    graphs = flags.choice(FLAGS["cuda_graphs"], ("none", "local", "transformer_engine", "full_iteration"))
    recipe = flags.text(FLAGS["fp8_recipe"]) or "delayed"
    flags.read |= {"--cuda-graph-scope", "--cuda-graph-modules"}
    fields: Document = {} if graphs is None else {"cuda_graphs": graphs != "none"}
    if precision != "fp8" or recipe == "tensorwise":
        return fields
    return {**fields, "fp8_recipe": recipe} if recipe in get_args(Fp8Recipe) else fields


def _pass_defaults(flags: Flags, degrees: _Degrees) -> None:
    """Marks options that say what holds anyway; with other values they are listed as unknown."""
    harmless = {
        "--microbatch-group-size-per-virtual-pipeline-stage": str(degrees.pipeline),
        **dict.fromkeys(_STATE_DTYPES, "fp32"),
    }
    flags.read |= {flag for flag, value in harmless.items() if flags.given.get(flag) == (value,)}
    # by itself it only makes the dtypes of the state a choice
    flags.read.add("--use-precision-aware-optimizer")


_STATE_DTYPES = ("--main-grads-dtype", "--main-params-dtype", "--exp-avg-dtype", "--exp-avg-sq-dtype")


# Stages.


def _stages(flags: Flags, degrees: _Degrees) -> Document:
    chunks, layers = _partition(flags, degrees)
    if degrees.pipeline == 1 and chunks > 1:
        raise flags.wrong(FLAGS["pipeline_parallel"], f"is 1 with {chunks} virtual stages", "use more stages")
    fields: Document = {} if chunks == 1 else {"virtual_stages": chunks}
    if tuple(layers) != even_layers(len(layers), degrees.layers):
        fields["layers_per_stage"] = layers
    return fields


def _partition(flags: Flags, degrees: _Degrees) -> tuple[int, list[int]]:
    """Chunks of a stage, and the layers of each stage, chunk by chunk."""
    layout = flags.text("--pipeline-model-parallel-layout")
    per_chunk = flags.whole("--num-layers-per-virtual-pipeline-stage")
    chunks = flags.whole("--num-virtual-stages-per-pipeline-rank")
    first, last = (flags.whole(f"--decoder-{end}-pipeline-num-layers") for end in ("first", "last"))
    embedding, loss = (flags.has(f"--account-for-{part}-in-pipeline-split") for part in ("embedding", "loss"))
    if flags.choice("--pp-partition-method", ("uniform", DEEPSPEED_ENDS)) == DEEPSPEED_ENDS:
        embedding = loss = True
    p, layers = degrees.pipeline, degrees.layers
    if layout is not None:
        return _laid_out(flags, layout, degrees)
    if first is not None or last is not None:
        stages = _ends(flags, degrees, first, last)
        return chunks or 1, _chunked(flags, stages, chunks or 1, (0, 0))
    total = layers + embedding + loss
    if total % p:
        fix = "they should divide, or --pipeline-model-parallel-layout say which stage has which"
        raise flags.wrong(FLAGS["pipeline_parallel"], f"is {p} for {total} layers", fix)
    if chunks is None and per_chunk is not None:
        if total // p % per_chunk:
            fix = f"it should divide the {total // p} layers of a stage"
            raise flags.wrong("--num-layers-per-virtual-pipeline-stage", f"is {per_chunk}", fix)
        chunks = total // p // per_chunk
    return chunks or 1, _chunked(flags, [total // p] * p, chunks or 1, (int(embedding), int(loss)))


def _ends(flags: Flags, degrees: _Degrees, first: int | None, last: int | None) -> list[int]:
    ends = [size for size in (first, last) if size is not None]
    middle, rest = degrees.pipeline - len(ends), degrees.layers - sum(ends)
    if middle < 0 or rest < 0 or bool(middle) != bool(rest) or (middle and rest % middle):
        what = f"leave {rest} layers to {middle} stages"
        raise flags.wrong("--decoder-first-pipeline-num-layers", what, "what is left should divide evenly")
    between = [rest // middle] * middle if middle else []
    return [*([] if first is None else [first]), *between, *([] if last is None else [last])]


def _chunked(flags: Flags, stages: list[int], chunks: int, without: tuple[int, int]) -> list[int]:
    """Stages dealt into chunks; embedding and loss take the place of a layer at the two ends."""
    if any(size % chunks for size in stages):
        what = f"makes {chunks} virtual stages of {max(size for size in stages if size % chunks)} layers"
        raise flags.wrong("--num-virtual-stages-per-pipeline-rank", what, "they should divide evenly")
    layers = [size // chunks for _ in range(chunks) for size in stages]
    layers[0] -= without[0]
    layers[-1] -= without[1]
    return layers


def _laid_out(flags: Flags, text: str, degrees: _Degrees) -> tuple[int, list[int]]:
    flag = "--pipeline-model-parallel-layout"
    parts = layout_parts(text)
    if parts is None:
        raise flags.wrong(flag, f"is {quoted(text)}", "it should be stages of E, t, m and L, as in Ett|(tt|)*6,tL")
    layers = [part.count("t") for part in parts]
    if len(parts) % degrees.pipeline or sum(layers) != degrees.layers:
        what = f"has {len(parts)} stages of {sum(layers)} layers in all"
        fix = f"it should have a multiple of {degrees.pipeline} stages and {degrees.layers} layers"
        raise flags.wrong(flag, what, fix)
    if any("m" in part for part in parts[:-1]):
        raise flags.wrong(flag, "predicts further tokens before the last stage", "put that in the stage with the loss")
    return len(parts) // degrees.pipeline, layers


# Recomputation.


def _recompute(flags: Flags, degrees: _Degrees, plan: Document) -> Document:
    granularity = flags.choice("--recompute-granularity", ("full", "selective"))
    modules = flags.texts("--recompute-modules")
    method = flags.choice("--recompute-method", ("uniform", "block"))
    number = flags.whole("--recompute-num-layers")
    if flags.has("--recompute-activations"):
        granularity = "selective"
    if flags.has("--checkpoint-activations"):
        granularity, method = "full", method or "uniform"
        flags.read.add("--checkpoint-num-layers")
    if granularity is None:
        return {}
    if granularity == "selective":
        for name in modules or ():
            if name not in MODULES:
                raise flags.wrong(
                    "--recompute-modules", f"lists {quoted(name)}", f"it should list {', '.join(MODULES)}"
                )
        return {"recompute": "selective" if modules is None else list(modules)}
    if method == "uniform" and number is not None and number > 1:
        # one input kept for several layers: a plan keeps that of each, so the option is listed as not understood
        flags.read.discard("--recompute-num-layers")
    if method != "block" or number is None:
        return {"recompute": "full"}
    parts = degrees.pipeline * plan.get("virtual_stages", 1)
    sizes = plan.get("layers_per_stage") or even_layers(parts, degrees.layers)
    recomputed = sum(min(number, size) for size in sizes)
    share = 1.0 if recomputed == degrees.layers else recomputed / degrees.layers
    if len(set(sizes)) == 1 and share < 1:
        share = number / sizes[0]
    return {"recompute": "full"} if share == 1 else {"recompute": "full", "recompute_share": share}
