"""torchtitan's flags as parts of a plan file: a file of flags, or a script that calls torchrun."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from dovetail import models
from dovetail.errors import InputError, one_of, quoted
from dovetail.launch.launch_file import Reading
from dovetail.launch.shell.words import commands
from dovetail.plans.flags import flags_of
from dovetail.plans.launch_limits import TORCHTITAN_SCHEDULES
from dovetail.plans.launch_models.torchtitan import (
    DEFAULTS,
    IMPLEMENTATIONS,
    ONLY,
    PASSED_OVER,
    Recipe,
    Value,
    recipe_named,
    stage_layers,
)

_P = "parallelism."
#: Options that have just the value of a field.
FLAGS = flags_of("torchtitan")
_CHECKPOINTING = re.compile(r"activation[_-]checkpoint:(selective|full|none|memory[_-]budget)")
_STARTS = re.compile(r"--(parallelism|training)[.]|--module\b|.*\btorchrun$|.*\brun_train[.]sh$|torchtitan[.]train$")
_MAX_DEGREE = 2**24

#: Options of torchrun that say nothing of a plan.
_TORCHRUN = """rdzv_id rdzv_backend rdzv_endpoint rdzv_conf master_addr master_port node_rank local_addr max_restarts
    monitor_interval start_method role log_dir redirects tee local_ranks_filter standalone no_python run_path
    logs_specs event_log_handler"""


@dataclass(slots=True)
class _Given:
    """What stands in a launch."""

    options: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    checkpointing: str | None = None
    passed_over: list[str] = field(default_factory=list[str])
    unknown: list[str] = field(default_factory=list[str])
    world: int | None = None


def read(text: str, where: str) -> Reading:
    """What a launch of torchtitan says; nothing of it is run."""
    given = _given(_launch_words(text, where), where)
    named = [(given.options.pop(name, ()) or (None,))[-1] for name in ("module", "config")]
    recipe = recipe_named(named[0], named[1])
    if recipe is None and any(named):
        words = [f"--{flag} {value}" for flag, value in zip(("module", "config"), named, strict=True) if value]
        given.unknown.append(f"{' '.join(words)} (we do not know what else it sets)")
    for name in [n for n in given.options if n not in DEFAULTS]:
        _sort(name, given, where)
    values = _Values(where, given.options, given.checkpointing, {**DEFAULTS, **(recipe.sets if recipe else {})})
    plan, chips = _plan(values, recipe, given.world)
    job = _job(values, recipe, plan)
    compiled = values.switch("compile.enable") and "model" in values.words("compile.components")
    # without compilation kernels run one by one, which is another framework of the catalogue; it has no stages
    plain = not compiled and plan["pipeline_parallel"] == plan["expert_parallel"] == 1
    return Reading(
        framework="fsdp" if plain else "torchtitan",
        job=job,
        cluster={} if chips is None else {"chips": chips},
        plan=plan,
        passed_over=tuple(sorted(given.passed_over)),
        unknown=tuple(given.unknown),
    )


def _launch_words(text: str, where: str) -> list[str]:
    """The words of the one launch in a text: a command, or the lines of a file of flags."""
    lines: list[str] = []
    launches: list[list[str]] = []
    for words in commands(text, where):
        if words[0].startswith("--") or _CHECKPOINTING.fullmatch(words[0]):
            lines += words
        elif any(_STARTS.match(word) for word in words):
            launches.append(list(words))
    if lines and not launches:
        return lines
    if len(launches) != 1 or lines:
        what = "starts torchtitan more than once" if launches else "has no flags of torchtitan"
        raise InputError(where, what, "it should have one launch: flags, or a script that calls torchrun")
    return launches[0]


def _given(words: list[str], where: str) -> _Given:
    given = _Given()
    # options of torchrun stand before the module it runs
    program = next((i for i, word in enumerate(words) if word == "-m" or word.endswith((".py", ".sh"))), -1)
    processes: dict[str, str] = {}
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
        elif name in given.options:
            raise InputError(f"{where}: {flag}", "is given twice", "give it once")
        else:
            given.options[name] = values
    if not given.options:
        raise InputError(where, "has no flags of torchtitan", "it should have one launch, as flags or a script")
    if processes and program >= 0:
        numbers = [processes.get("nnodes", "1"), processes.get("nproc_per_node", "1")]
        if all(re.fullmatch(r"\d{1,8}", number) for number in numbers):
            given.world = prod(map(int, numbers)) or None
    return given


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
    return word.startswith("--") or word in ("-m", "$@") or _CHECKPOINTING.fullmatch(word) is not None


def _sort(name: str, given: _Given, where: str) -> None:
    """Puts an option that is no field of a plan where it belongs; a value no plan has is refused."""
    section, _, last = name.rpartition(".")
    positive = f"{section}.{last.removeprefix('no_')}" if last.startswith("no_") else name
    if isinstance(DEFAULTS.get(positive), bool):
        return
    values = given.options.pop(name)
    if name == "optimizer.implementation" and (values[-1:] or ("",))[0] in IMPLEMENTATIONS:
        given.passed_over.append(f"--{name}")
    elif positive in ONLY or name == "optimizer.implementation":
        value = values[-1] if values else str(positive == name)
        if value != str(ONLY.get(positive)):
            raise InputError(f"{where}: --{name}", f"is {quoted(value)}, which plans cannot express", "drop it")
        given.passed_over.append(f"--{name}")
    elif positive in PASSED_OVER:
        given.passed_over.append(f"--{name}")
    else:
        given.unknown.append(f"--{name}")


@dataclass(frozen=True, slots=True)
class _Values:
    """What options are: by flag, by recipe, or by default."""

    where: str
    options: Mapping[str, tuple[str, ...]]
    checkpointing: str | None
    otherwise: Mapping[str, Value]

    def wrong(self, name: str, what: str, fix: str) -> InputError:
        return InputError(f"{self.where}: --{name}", what, fix)

    def number(self, name: str, also: int = 1) -> int | None:
        """A whole number from 1, or the other that has a meaning; none where none is set."""
        if name not in self.options:
            value = self.otherwise[name]
            return value if isinstance(value, int) else None
        text = self.text(name)
        if text == "None":
            return None
        if re.fullmatch(r"-?\d{1,12}", text) is None or (int(text) < 1 and int(text) != also):
            raise self.wrong(name, f"is {quoted(text)}", "it should be a whole number, 1 or more")
        return int(text)

    def degree(self, name: str) -> int:
        value = self.number(name)
        if value is None or value > _MAX_DEGREE:
            raise self.wrong(name, f"is {value}", f"it should be a whole number from 1 to {_MAX_DEGREE}")
        return value

    def text(self, name: str) -> str:
        if name not in self.options:
            return str(self.otherwise[name])
        values = self.options[name]
        if len(values) != 1:
            raise self.wrong(name, f"has {len(values)} values", "it should have one")
        return values[0]

    def words(self, name: str) -> tuple[str, ...]:
        if name not in self.options:
            value = self.otherwise[name]
            return value if isinstance(value, tuple) else ()
        return tuple(word for value in self.options[name] for word in value.split(","))

    def switch(self, name: str) -> bool:
        section, _, last = name.rpartition(".")
        for flag, value in ((name, True), (f"{section}.no_{last}", False)):
            if flag in self.options:
                if self.options[flag]:
                    raise self.wrong(flag, f"has the value {quoted(self.options[flag][0])}", "it takes none")
                return value
        return bool(self.otherwise[name])


def _plan(values: _Values, recipe: Recipe | None, world: int | None) -> tuple[dict[str, Any], int | None]:
    """The `plan` part, and how many chips it is for where that is said."""
    t, c, p = (values.degree(FLAGS[f"{name}_parallel"]) for name in ("tensor", "context", "pipeline"))
    replicas = values.degree(f"{_P}data_parallel_replicate_degree")
    shards = values.number(f"{_P}data_parallel_shard_degree", also=-1)
    inner = replicas * t * c * p
    if shards == -1 or shards is None:
        if world is not None and world % inner:
            raise InputError(values.where, f"starts {world} processes for degrees of {inner}", "correct one of them")
        shards = None if world is None else world // inner
    chips = None if shards is None else shards * inner
    if chips is not None and world is not None and chips != world:
        raise InputError(values.where, f"starts {world} processes for degrees of {chips}", "correct one of them")
    experts = values.degree(FLAGS["expert_parallel"])
    if recipe is not None and not _has_experts(recipe):
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
        plan["expert_tensor_parallel"] = 1
    if shards is not None:
        plan["data_parallel"] = replicas * shards
    plan |= _state(values, replicas, shards, c, staged=p > 1)
    plan |= _stages(values, recipe, p)
    return plan, chips


def _has_experts(recipe: Recipe) -> bool:
    blocks = models.load(recipe.model).blocks.values()
    return any(block.feed_forward is not None and block.feed_forward.kind == "mixture" for block in blocks)


def _state(values: _Values, replicas: int, shards: int | None, context: int, *, staged: bool) -> dict[str, Any]:
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


def _recompute(values: _Values) -> str:
    choice = values.checkpointing or str(values.otherwise["activation_checkpoint"])
    if choice == "memory_budget":
        where = f"{values.where}: activation_checkpoint"
        raise InputError(where, "leaves recompute to the compiler's memory budget", "name none, selective or full")
    return choice


def _stages(values: _Values, recipe: Recipe | None, p: int) -> dict[str, Any]:
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
    layers = _listed_layers(values) or _dealt_layers(values, recipe, p, chunks=2 if schedule == "interleaved" else 1)
    chunks, rest = divmod(len(layers), p)
    if rest or (chunks > 1) != (schedule == "interleaved"):
        what = f"makes {len(layers)} parts for {p} stages of {values.text(name)}"
        raise values.wrong(f"{_P}module_fqns_per_model_part", what, "each stage should have the same number of parts")
    return {"pipeline_schedule": schedule, "virtual_stages": chunks, "layers_per_stage": list(layers)}


def _listed_layers(values: _Values) -> tuple[int, ...] | None:
    """Layers per part where they are listed by name; they must follow each other as in the model."""
    name = f"{_P}module_fqns_per_model_part"
    listed = values.options.get(name)
    if not listed or listed == ("None",):
        return None
    layers = [word for part in listed for word in part.split(",") if word.startswith("layers.")]
    if layers != [f"layers.{i}" for i in range(len(layers))]:
        raise values.wrong(name, "lists layers out of order", "list layers.0, layers.1 and so on over the parts")
    return tuple(sum(word.startswith("layers.") for word in part.split(",")) for part in listed)


def _dealt_layers(values: _Values, recipe: Recipe | None, p: int, chunks: int) -> tuple[int, ...]:
    """Layers per part as torchtitan deals them."""
    if recipe is None:
        what = "is missing, and the layers of this recipe are not known"
        raise values.wrong(f"{_P}module_fqns_per_model_part", what, "list the layers of each part")
    num_layers = models.load(recipe.model).num_layers
    less = [values.number(f"{_P}pipeline_parallel_{end}_stage_less_layers", also=0) or 0 for end in ("first", "last")]
    per_stage = values.number(f"{_P}pipeline_parallel_layers_per_stage")
    parts = p * chunks if per_stage is None else -(-(num_layers + sum(less)) // per_stage)
    layers = stage_layers(num_layers, parts, *less)
    if layers is None:
        what = f"makes {parts} parts of {num_layers} layers"
        raise values.wrong(FLAGS["pipeline_parallel"], what, "use fewer stages")
    return layers


def _job(values: _Values, recipe: Recipe | None, plan: Mapping[str, Any]) -> dict[str, Any]:
    job: dict[str, Any] = {}
    if recipe is not None:
        job["model"] = recipe.model
    if recipe is not None or "training.seq_len" in values.options:
        job["seq_len"] = values.number("training.seq_len")
    name = "training.mixed_precision_param"
    precisions = {"bfloat16": recipe.precision if recipe else "bf16", "float32": "fp32"}
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
