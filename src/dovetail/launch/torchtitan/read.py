"""torchtitan's launches as parts of a plan file: flags, the TOML of earlier versions, a script with either."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from dovetail import models
from dovetail.documents import validate
from dovetail.errors import InputError, one_of, quoted
from dovetail.launch.companions import Companions
from dovetail.launch.launch_file import Reading
from dovetail.launch.shell.script import Script, read_script
from dovetail.launch.torchtitan.flavors import RENAMED
from dovetail.launch.torchtitan.options import FlagWords, OptionValues, TitanOptions, renamed
from dovetail.launch.torchtitan.read_recipe import add_recipe, is_recipe
from dovetail.launch.torchtitan.read_toml import SECTIONS, name_model, toml_options
from dovetail.models import Model
from dovetail.plans.flags import flags_of
from dovetail.plans.launch_limits import TORCHTITAN_SCHEDULES
from dovetail.plans.launch_models.torchtitan import recipe_named, stage_layers

_P = "parallelism."
#: Options that have just the value of a field.
FLAGS = flags_of("torchtitan")
_CHECKPOINTING = re.compile(r"activation[_-]checkpoint:(selective|full|none|memory[_-]budget)")
_STARTS = re.compile(
    r"--(parallelism|training|job)[.]|--module\b|.*\btorchrun$|.*\brun_train[.]sh$|torchtitan[.]train$"
)
_PROGRAM = re.compile(r"(.*/)?(torchrun|python[\d.]*|.*[.]sh)")
#: What run_train.sh is told by the environment: the TOML, and processes of its node.
_VARIABLES = ("CONFIG_FILE", "NGPU")

#: Options of torchrun that say nothing of a plan.
_TORCHRUN = """rdzv_id rdzv_backend rdzv_endpoint rdzv_conf master_addr master_port node_rank local_addr max_restarts
    monitor_interval start_method role log_dir redirects tee local_ranks_filter standalone no_python run_path
    logs_specs event_log_handler"""


def read(text: str, where: str, chips: int | None = None, companions: Companions | None = None) -> Reading:
    """What a launch of torchtitan says; nothing of it is run. `chips` from elsewhere goes before what it says."""
    if where.endswith(".toml") or (SECTIONS.search(text) and not re.search(r"<<|^#!", text)):
        given = TitanOptions(where)
        given.add_below(toml_options(text, where), where)
    elif is_recipe(text):
        given = TitanOptions(where)
        add_recipe(given, text, where)
    else:
        script = read_script(text, where, _VARIABLES if "run_train.sh" in text else ())
        given = _given(_launch_words(script, where), script, where)
        companions = (companions or Companions()).with_written(script.files)
        _add_config(given, companions)
    given.world = chips or given.world
    if given.sets is not None:
        # a recipe has said all it says
        return read_options(given)
    if "model.name" in given.options or "model.flavor" in given.options or given.files:
        name_model(given)
    else:
        _name_recipe(given, companions or Companions())
    return read_options(given)


def read_options(given: TitanOptions) -> Reading:
    """The parts of a plan file, from options under the names that flags have."""
    given.options = _in_sequences(given.options, given)
    given.sort()
    values = OptionValues.of(given)
    model = models.from_catalogue(given.model) if isinstance(given.model, str) else None
    if given.model is not None and not isinstance(given.model, str):
        model = validate(Model, given.model, given.where)
    plan, chips = _plan(values, model, given.world)
    job = _job(values, plan)
    return Reading(
        framework="fsdp" if _one_by_one(values, plan, job) else "torchtitan",
        job=job,
        cluster={} if chips is None else {"chips": chips},
        plan=plan,
        passed_over=tuple(sorted(given.passed_over)),
        unknown=tuple(given.unknown),
    )


def _one_by_one(values: OptionValues, plan: Mapping[str, Any], job: Mapping[str, Any]) -> bool:
    """Whether kernels run one by one, without compilation, in a plan that the catalogue's fsdp can run."""
    compiled = values.switch("compile.enable") and "model" in values.words("compile.components")
    plain = plan["pipeline_parallel"] == plan["expert_parallel"] == 1 and not plan["sequence_parallel"]
    stated = plan["recompute"] in ("none", "full") and plan["zero_stage"] in (2, 3) and job["precision"] != "fp8"
    return not compiled and plain and stated


def _name_recipe(given: TitanOptions, companions: Companions) -> None:
    """The model and settings of the recipe that two flags name: a shipped one, or one of the user's own."""
    named = {flag: given.take(flag) for flag in ("module", "config")}
    recipe = recipe_named(named["module"], named["config"])
    if recipe is not None:
        given.model, given.precision, given.sets = recipe.model, recipe.precision, recipe.sets
    elif named["module"] is not None and companions.has(f"{named['module']}.py"):
        file = f"{named['module']}.py"
        add_recipe(given, companions.text(file, given.where), file, named["config"])
    elif any(named.values()):
        words = [f"--{flag} {value}" for flag, value in named.items() if value]
        given.unknown.append(f"{' '.join(words)} (we do not know what else it sets)")


def _add_config(given: TitanOptions, companions: Companions) -> None:
    """The options of the TOML that a script passes, below its flags."""
    name = given.take("job.config_file")
    if name is not None:
        where = f"{given.where}: --job.config_file"
        given.add_below(toml_options(companions.text(name, where), name), name)
    elif not given.options:
        raise InputError(given.where, "has no flags of torchtitan", "it should have one launch, as flags or a script")


def _launch_words(script: Script, where: str) -> list[str]:
    """The words of the one launch in a text: a command, or the lines of a file of flags."""
    lines: list[str] = []
    launches: list[list[str]] = []
    for words in script.commands:
        if words[0].startswith("--") or _CHECKPOINTING.fullmatch(words[0]):
            lines += words
        elif words[0] not in ("echo", "printf", "cd", "source") and any(_STARTS.match(word) for word in words):
            launches.append(list(words))
    if lines and not launches:
        return lines
    if len(launches) != 1 or lines:
        what = "starts torchtitan more than once" if launches else "has no flags of torchtitan"
        raise InputError(where, what, "it should have one launch: flags, or a script that calls torchrun")
    # what stands before, srun for example, says where processes run
    first = next((i for i, word in enumerate(launches[0]) if _PROGRAM.fullmatch(word)), 0)
    return launches[0][first:]


def _given(words: list[str], script: Script, where: str) -> TitanOptions:
    given = TitanOptions(where)
    # options of torchrun stand before the module it runs
    program = next((i for i in range(len(words)) if _is_program(words, i)), -1)
    processes: dict[str, str] = {}
    options: FlagWords = {}
    for position, name, values in _flags(words):
        flag = f"--{name}"
        if position < program:
            if name in ("nnodes", "nproc_per_node"):
                processes[name] = values[-1] if values else ""
            elif name in _TORCHRUN.split():
                given.passed_over.append(flag)
            else:
                given.unknown.append(flag)
        elif name.startswith("activation_checkpoint:"):
            given.checkpointing = name.partition(":")[2].replace("-", "_")
        elif name in options:
            raise InputError(f"{where}: {flag}", "is given twice", "give it once")
        else:
            options[name] = values
    given.options = renamed(options, RENAMED)
    if processes and program >= 0:
        numbers = [processes.get("nnodes", "1"), processes.get("nproc_per_node", "1")]
    else:
        numbers = [script.variables.get("NGPU", "")]
    if all(re.fullmatch(r"\d{1,8}", number) for number in numbers):
        given.world = prod(map(int, numbers)) or None
    if not any(word.endswith("torchrun") for word in words) and "CONFIG_FILE" in script.variables:
        given.options.setdefault("job.config_file", (script.variables["CONFIG_FILE"],))
    return given


def _is_program(words: list[str], position: int) -> bool:
    if words[position] == "-m":
        return not "".join(words[position + 1 : position + 2]).startswith("torch.distributed")
    return words[position].endswith((".py", ".sh"))


def _flags(words: list[str]) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Flags with their values, wherever they stand; `--x=1` and `--x 1` are the same."""
    position = 0
    while position < len(words):
        word, start = words[position], position
        position += 1
        if match := _CHECKPOINTING.fullmatch(word):
            yield start, f"activation_checkpoint:{match[1]}", ()
        elif word.startswith("--") and word.strip("-"):
            name, equals, value = word[2:].partition("=")
            values = [value] if equals else []
            while not equals and position < len(words) and not _is_flag(words[position]):
                values.append(words[position])
                position += 1
            yield start, name.replace("-", "_"), tuple(values)


def _is_flag(word: str) -> bool:
    return word.startswith("--") or word in ("-m", "$@", "$*") or _CHECKPOINTING.fullmatch(word) is not None


def _in_sequences(options: FlagWords, given: TitanOptions) -> FlagWords:
    """Batches that the versions after 0.3 count in tokens, in sequences."""
    context, micro = "training.max_context_length", "training.num_tokens_per_microbatch_per_dp_rank"
    step, count = "training.num_tokens_per_train_step", f"{_P}num_pp_microbatches"
    named = [name for name in (context, micro, step, count) if name in options]
    if not named:
        return options
    numbers: dict[str, int] = {}
    for name in named:
        text = options[name][-1] if options[name] else ""
        if not re.fullmatch(r"[1-9]\d{0,14}|-1", text):
            raise given.wrong(name, f"is {quoted(text)}", "it should be a whole number, 1 or more")
        numbers[name] = int(text)
    if context not in numbers or micro not in numbers:
        missing = context if context not in numbers else micro
        raise given.wrong(named[0], f"needs --{missing}", "add it: recipes of that version are not known here")
    for name in (micro, step):
        if numbers.get(name, -1) > 0 and numbers[name] % numbers[context]:
            what = f"is {numbers[name]}, which is no multiple of sequences of {numbers[context]}"
            raise given.wrong(name, what, "correct one of them")
    rest = {name: words for name, words in options.items() if name not in named}
    sequences = numbers[micro] // numbers[context]
    rest |= {
        "training.seq_len": (str(numbers[context]),),
        "training.local_batch_size": (str(sequences * numbers.get(count, 1)),),
        f"{_P}pipeline_parallel_microbatch_size": (str(sequences),),
    }
    if numbers.get(step, -1) > 0:
        rest["training.global_batch_size"] = (str(numbers[step] // numbers[context]),)
    return rest


def _plan(values: OptionValues, model: Model | None, world: int | None) -> tuple[dict[str, Any], int | None]:
    """The `plan` part, and how many chips it is for where that is said."""
    t, c, p = (values.degree(FLAGS[f"{name}_parallel"]) for name in ("tensor", "context", "pipeline"))
    replicas = values.degree(f"{_P}data_parallel_replicate_degree")
    shards = values.number(f"{_P}data_parallel_shard_degree", also=-1)
    inner = replicas * t * c * p
    if shards == -1 or shards is None:
        if world is not None and world % inner:
            raise InputError(
                values.given.where, f"starts {world} processes for degrees of {inner}", "correct one of them"
            )
        shards = None if world is None else world // inner
    chips = None if shards is None else shards * inner
    if chips is not None and world is not None and chips != world:
        raise InputError(values.given.where, f"starts {world} processes for degrees of {chips}", "correct one of them")
    experts = values.degree(FLAGS["expert_parallel"])
    if model is not None and not _has_experts(model):
        experts = 1  # torchtitan passes it over
    plan: dict[str, Any] = {
        "tensor_parallel": t,
        "context_parallel": c,
        "pipeline_parallel": p,
        "expert_parallel": experts,
        "sequence_parallel": t > 1 and values.switch(f"{_P}enable_sequence_parallel"),
        "micro_batch": values.degree(
            f"{_P}pipeline_parallel_microbatch_size" if p > 1 else "training.local_batch_size"
        ),
        "recompute": _recompute(values),
        "overlap_tensor_parallel": values.switch(FLAGS["overlap_tensor_parallel"]),
    }
    plan["overlap_tensor_parallel"] &= plan["sequence_parallel"]
    if experts > 1:
        plan["expert_tensor_parallel"] = values.degree(f"{_P}expert_tensor_parallel_degree")
    if shards is not None:
        plan["data_parallel"] = replicas * shards
    plan |= _state(values, replicas, shards, c, staged=p > 1)
    plan |= _stages(values, model, p)
    return plan, chips


def _has_experts(model: Model) -> bool:
    blocks = model.blocks.values()
    return any(block.feed_forward is not None and block.feed_forward.kind == "mixture" for block in blocks)


def _state(values: OptionValues, replicas: int, shards: int | None, context: int, *, staged: bool) -> dict[str, Any]:
    """The ZeRO stage and group: FSDP releases gathered weights after the forward, or keeps them for the backward."""
    name = f"{_P}fsdp_reshard_after_forward"
    policy = values.text(name)
    if policy not in ("default", "always", "never"):
        raise values.wrong(name, f"is {quoted(policy)}", "it should be default, always or never")
    if policy == "default":
        if shards == context == 1:
            return {"zero_stage": 0}
        policy = "never" if staged else "always"
    state: dict[str, Any] = {"zero_stage": 3 if policy == "always" else 2}
    if shards is not None:
        state["zero_group"] = shards * context
    elif replicas > 1:
        what = f"is left to the number of chips beside {replicas} replicas"
        raise values.wrong(f"{_P}data_parallel_shard_degree", what, "write the degree")
    return state


def _recompute(values: OptionValues) -> str:
    mode, option = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"
    toml = bool(values.given.files) and values.given.sets is None
    earlier = values.given.checkpointing is None and (toml or values.has((mode, option)))
    choice = (
        values.text(mode) if earlier else values.given.checkpointing or str(values.otherwise["activation_checkpoint"])
    )
    if choice == "memory_budget":
        where = f"{values.given.where}: activation_checkpoint"
        raise InputError(where, "leaves recompute to the compiler's memory budget", "name none, selective or full")
    if choice not in ("none", "selective", "full"):
        raise values.wrong(mode, f"is {quoted(choice)}", "it should be none, selective or full")
    if not earlier or choice != "selective" or values.text(option) == "op":
        return choice
    # a number: every so many-th layer is recomputed whole
    if values.text(option) in ("0", "1"):
        return "full"
    what = f"is {quoted(values.text(option))}, recompute of some layers, which plans for torchtitan cannot express"
    raise values.wrong(option, what, "use 'op', or mode full or none")


def _stages(values: OptionValues, model: Model | None, p: int) -> dict[str, Any]:
    name = f"{_P}pipeline_parallel_schedule"
    schedules = {theirs.casefold(): ours for ours, theirs in TORCHTITAN_SCHEDULES.items()}
    schedule = schedules.get(values.text(name).casefold())
    if p == 1:
        # a recipe may name a schedule of several chunks for whoever adds stages
        return {"pipeline_schedule": schedule} if schedule == "gpipe" else {}
    if schedule is None:
        raise values.wrong(
            name, f"is {quoted(values.text(name))}, which plans cannot express", one_of(TORCHTITAN_SCHEDULES.values())
        )
    layers = _listed_layers(values) or _split_layers(values, model)
    layers = layers or _dealt_layers(values, model, p, chunks=2 if schedule == "interleaved" else 1)
    chunks, rest = divmod(len(layers), p)
    if rest or (chunks > 1) != (schedule == "interleaved"):
        what = f"makes {len(layers)} parts for {p} stages of {values.text(name)}"
        raise values.wrong(f"{_P}module_fqns_per_model_part", what, "each stage should have the same number of parts")
    return {"pipeline_schedule": schedule, "virtual_stages": chunks, "layers_per_stage": list(layers)}


def _listed_layers(values: OptionValues) -> tuple[int, ...] | None:
    """Layers per part where they are listed by name; they must follow each other as in the model."""
    name = f"{_P}module_fqns_per_model_part"
    listed = values.given.options.get(name)
    if not listed or listed == ("None",):
        return None
    layers = [word for part in listed for word in part.split(",") if word.startswith("layers.")]
    if layers != [f"layers.{i}" for i in range(len(layers))]:
        raise values.wrong(name, "lists layers out of order", "list layers.0, layers.1 and so on over the parts")
    return tuple(sum(word.startswith("layers.") for word in part.split(",")) for part in listed)


def _split_layers(values: OptionValues, model: Model | None) -> tuple[int, ...] | None:
    """Layers per part where the first of each but the first part is named, as in 0.1."""
    name = f"{_P}pipeline_parallel_split_points"
    points = values.words(name)
    if not points:
        return None
    numbers = [int(point[7:]) if re.fullmatch(r"layers[.]\d{1,6}", point) else -1 for point in points]
    if model is None or sorted({*numbers, 0, model.num_layers}) != [0, *numbers, model.num_layers]:
        raise values.wrong(name, f"is {quoted(' '.join(points))}", "it should name layers of the model in order")
    return tuple(high - low for low, high in zip((0, *numbers), (*numbers, model.num_layers), strict=True))


def _dealt_layers(values: OptionValues, model: Model | None, p: int, chunks: int) -> tuple[int, ...]:
    """Layers per part as torchtitan deals them."""
    if model is None:
        what = "is missing, and the layers of this recipe are not known"
        raise values.wrong(f"{_P}module_fqns_per_model_part", what, "list the layers of each part")
    num_layers = model.num_layers
    less = [values.number(f"{_P}pipeline_parallel_{end}_stage_less_layers", also=0) or 0 for end in ("first", "last")]
    per_stage = values.number(f"{_P}pipeline_parallel_layers_per_stage")
    parts = p * chunks if per_stage is None else -(-(num_layers + sum(less)) // per_stage)
    layers = stage_layers(num_layers, parts, *less)
    if layers is None:
        what = f"makes {parts} parts of {num_layers} layers"
        raise values.wrong(FLAGS["pipeline_parallel"], what, "use fewer stages")
    return layers


def _job(values: OptionValues, plan: Mapping[str, Any]) -> dict[str, Any]:
    given = values.given
    job: dict[str, Any] = {} if given.model is None else {"model": given.model}
    if given.sets is not None or values.has(("training.seq_len",)):
        job["seq_len"] = values.number("training.seq_len")
    name = "training.mixed_precision_param"
    precisions = {"bfloat16": given.precision, "float32": "fp32"}
    if values.text(name) not in precisions:
        raise values.wrong(name, f"is {quoted(values.text(name))}", "it should be bfloat16 or float32")
    job["precision"] = precisions[values.text(name)]
    local = values.degree("training.local_batch_size")
    if local % plan["micro_batch"]:
        what = f"is {local}, which microbatches of {plan['micro_batch']} do not divide"
        raise values.wrong("training.local_batch_size", what, "choose a multiple of pipeline_parallel_microbatch_size")
    batch = values.number("training.global_batch_size", also=-1)
    replicas = plan.get("data_parallel")
    if batch == -1 and replicas is not None:
        batch = local * replicas
    if batch is not None and batch > 0:
        job["global_batch"] = batch
        if plan["pipeline_parallel"] > 1 and replicas is not None and batch != local * replicas:
            what = f"makes {batch / (local * replicas):g} rounds through the pipeline a step, where a plan has one"
            raise values.wrong("training.global_batch_size", what, f"it should be {local * replicas}")
    return job
