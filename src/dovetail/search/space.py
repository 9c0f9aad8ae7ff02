"""The space of plans: what each field of a plan may be, for a framework, a job and a cluster."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import combinations
from typing import Literal, cast, get_args

from dovetail.errors import InputError, one_of, quoted
from dovetail.frameworks import Framework
from dovetail.frameworks.framework import AxisOrder
from dovetail.hardware import Cluster
from dovetail.layout.strategy import ContextKind
from dovetail.models import Job
from dovetail.pipeline.pipeline_schedule import PipelineSchedule
from dovetail.profile.modules import MODULES

Choice = str | tuple[str, ...]

#: How blocks are dealt to stages: evenly; the chunks between the first and the last alike; or any way.
Cuts = Literal["even", "ends", "any"]

#: The recompute choice that lets the placement choose for every block by itself.
BY_BLOCK = "by block"

#: Parts of the blocks that full recompute may hold for.
SHARES = tuple(part / 8 for part in range(1, 9))


@dataclass(frozen=True, slots=True)
class Space:
    """Values that fields of a plan may take; None leaves a field as free as framework, job and cluster do."""

    tensor_parallel: tuple[int, ...] | None = None
    context_parallel: tuple[int, ...] | None = None
    context_kind: tuple[ContextKind, ...] | None = None
    pipeline_parallel: tuple[int, ...] | None = None
    virtual_stages: tuple[int, ...] | None = None
    pipeline_schedule: tuple[str, ...] | None = None
    expert_parallel: tuple[int, ...] | None = None
    expert_tensor_parallel: tuple[int, ...] | None = None
    """divisors of the tensor degree; None: experts whole, or cut as wide as the layers around them"""
    sequence_parallel: tuple[bool, ...] | None = None
    micro_batch: tuple[int, ...] | None = None
    zero_stage: tuple[int, ...] | None = None
    zero_group: tuple[int, ...] | None = None
    recompute: tuple[Choice, ...] | None = None
    recompute_share: tuple[float, ...] | None = None
    axis_order: tuple[AxisOrder, ...] | None = None
    cuts: Cuts | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            values = getattr(self, field.name)
            if values is not None and not values:
                raise InputError(f"space: {field.name}", "has no value", "give one or more, or leave it out")


@dataclass(frozen=True, slots=True)
class WholeSpace:
    """The same with every field filled in."""

    tensor_parallel: tuple[int, ...]
    context_parallel: tuple[int, ...]
    context_kind: tuple[ContextKind, ...]
    pipeline_parallel: tuple[int, ...]
    virtual_stages: tuple[int, ...]
    pipeline_schedule: tuple[str, ...]
    expert_parallel: tuple[int, ...]
    expert_tensor_parallel: tuple[int, ...] | None
    sequence_parallel: tuple[bool, ...]
    micro_batch: tuple[int, ...]
    zero_stage: tuple[int, ...]
    zero_group: tuple[int, ...]
    recompute: tuple[Choice, ...]
    recompute_share: tuple[float, ...]
    axis_order: tuple[AxisOrder, ...]
    cuts: Cuts


def divisors(number: int) -> tuple[int, ...]:
    """Every divisor, in order."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))


def whole_space(job: Job, cluster: Cluster, framework: Framework, narrowed: Space | None = None) -> WholeSpace:
    """The space with every field filled in: what is given, or all that the framework runs.

    Degrees are divisors; whether they divide what they cut, nest, and suit each other is for `splits` to say.
    """
    given = narrowed or Space()
    chips, graph = cluster.chips, job.graph()
    experts = sorted({e for layer in graph.layers.values() if isinstance(e := layer.sizes.get("experts"), int)})
    num_layers = job.model.num_layers
    schedules = tuple(s.value for s in PipelineSchedule if s.value in framework.pipeline_schedules)
    stages = tuple(p for p in divisors(chips) if p <= num_layers + 2) if schedules else (1,)
    known = cast("tuple[ContextKind, ...]", get_args(ContextKind))
    kinds = cast("tuple[ContextKind, ...]", tuple(kind for kind in known if kind in framework.context_parallel))
    contexts = tuple(c for c in divisors(chips) if job.seq_len % c == 0) if kinds else (1,)
    spread = bool(experts) and bool(framework.expert_parallel)
    everything = WholeSpace(
        tensor_parallel=divisors(chips),
        context_parallel=contexts,
        context_kind=kinds or ("all_gather",),
        pipeline_parallel=stages,
        virtual_stages=tuple(range(1, (num_layers + 2) // 2 + 1)) if "interleaved" in schedules else (1,),
        pipeline_schedule=schedules or ("1f1b",),
        expert_parallel=divisors(experts[0]) if spread else (1,),
        expert_tensor_parallel=None,
        sequence_parallel=(False,) if framework.sequence_parallel == "never" else (False, True),
        micro_batch=divisors(job.global_batch),
        zero_stage=framework.zero_stages,
        zero_group=divisors(chips),
        recompute=menu(job, framework),
        recompute_share=SHARES if framework.recompute_some_layers else (1.0,),
        axis_order=framework.axis_orders,
        cuts=_cuts(framework),
    )
    chosen = {f.name: getattr(given, f.name) for f in fields(given) if getattr(given, f.name) is not None}
    if framework.uneven_stages in ("never", "ends") and given.cuts is not None:
        chosen["cuts"] = min(given.cuts, everything.cuts, key=get_args(Cuts).index)
    return replace(everything, **chosen)


def _cuts(framework: Framework) -> Cuts:
    match framework.uneven_stages:
        case "any":
            return "any"
        case "ends":
            return "ends"
        case _:
            return "even"


def menu(job: Job, framework: Framework) -> tuple[Choice, ...]:
    """What blocks may compute again: a choice for each of them, or the same of the framework's menu for all."""
    if _chooses_by_block(framework):
        return (BY_BLOCK,)
    layers = job.graph().layers.values()
    offered = [
        name
        for name in framework.recompute_modules
        if name in MODULES and any(any(MODULES[name].operators(layer)) for layer in layers)
    ]
    words: list[Choice] = [word for word in ("none", "selective", "full") if word in framework.recompute]
    if "selective" in framework.recompute:
        sets = (chosen for n in range(1, len(offered) + 1) for chosen in combinations(offered, n))
        # the attention core alone is what "selective" stands for
        words += [chosen for chosen in sets if chosen != ("core_attn",)]
    return tuple(words)


def check_space(space: Space, framework: Framework) -> None:
    """Refuses values that no plan of the framework has."""
    for field in fields(space):
        for value in cast("tuple[object, ...]", getattr(space, field.name) or ()) if field.name != "cuts" else ():
            if isinstance(value, int) and not isinstance(value, bool) and field.name != "zero_stage" and value < 1:
                raise InputError(f"space: {field.name}", f"has {value}", "it should be 1 or more")
    for kind in space.context_kind or ():
        if framework.context_parallel and kind not in framework.context_parallel:
            _refuse("context_kind", kind, framework, one_of(framework.context_parallel, kind))
    for share in space.recompute_share or ():
        if not 0 < share <= 1 or (share < 1 and not framework.recompute_some_layers):
            most = "above 0 and at most 1" if framework.recompute_some_layers else "1"
            _refuse("recompute_share", share, framework, f"it should be {most}")
    for choice in space.recompute or ():
        if choice == BY_BLOCK:
            if not _chooses_by_block(framework):
                _refuse("recompute", choice, framework, "name choices of its menu")
        elif isinstance(choice, str) and choice not in framework.recompute:
            _refuse("recompute", choice, framework, one_of(framework.recompute, choice))


def _refuse(field: str, value: object, framework: Framework, fix: str) -> None:
    raise InputError(f"space: {field}", f"has {quoted(value)}, which {framework.name} does not run", fix)


def _chooses_by_block(framework: Framework) -> bool:
    """Whether every block can be told by itself what to compute again, and to compute nothing again."""
    return "operators" in framework.recompute and "none" in framework.recompute


def in_words(space: WholeSpace, framework: Framework) -> str:
    """The space as a sentence reads."""
    cuts = {
        "even": "blocks dealt evenly",
        "ends": "first and last stage shorter",
        "any": "any cut into stages (interleaved chunks alike but the first and the last)",
    }[space.cuts]
    kinds = f" ({', '.join(space.context_kind)})" if max(space.context_parallel) > 1 else ""
    parts = [
        f"plans {framework.name} ({framework.version}) runs",
        f"tensor {_range(space.tensor_parallel)}",
        f"context {_range(space.context_parallel)}{kinds}",
        f"pipeline {_range(space.pipeline_parallel)} ({', '.join(space.pipeline_schedule)})",
        f"expert {_range(space.expert_parallel)}",
        f"data the rest, micro-batch {_range(space.micro_batch)}",
        f"ZeRO {', '.join(map(str, space.zero_stage))} over groups that nest",
        (
            "any recompute of each block where cuts are free or there is one stage, none or full elsewhere"
            if BY_BLOCK in space.recompute
            else f"{len(space.recompute)} recompute choices"
        ),
        cuts,
        f"axes {' or '.join(space.axis_order)}",
    ]
    return "; ".join(parts)


def _range(values: tuple[int, ...]) -> str:
    return f"{values[0]}" if len(values) == 1 else f"{min(values)} to {max(values)}"
