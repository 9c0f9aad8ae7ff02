"""All values of each field that a framework runs for a job on a cluster, whatever the other fields are."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Literal, cast, get_args

from dovetail.errors import InputError, one_of, quoted
from dovetail.frameworks import Framework
from dovetail.frameworks.framework import AxisOrder
from dovetail.layout.strategy import ContextKind
from dovetail.models import Job
from dovetail.plans.declaration import FieldScope
from dovetail.plans.file_types import Fp8Recipe
from dovetail.plans.pipeline_schedule import PipelineSchedule
from dovetail.profile.modules import MODULES

Choice = str | tuple[str, ...]

#: Launch formats with an option for CUDA graphs, and for how values are scaled to fp8.
CUDA_GRAPHS, FP8_RECIPES = ("megatron", "torchtitan"), ("megatron",)

#: How blocks are dealt to stages: evenly; the chunks between the first and the last alike; or any way.
Partition = Literal["even", "ends", "any"]

#: The recompute policy that lets the partition choose for each block by itself.
BY_BLOCK = "by block"


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, in order."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))


def chip_divisors(scope: FieldScope) -> tuple[int, ...]:
    """Divisors of the chips."""
    return divisors(scope.cluster.chips)


def context_kinds(scope: FieldScope) -> tuple[ContextKind, ...]:
    """Ways to share a sequence."""
    kinds = cast("tuple[ContextKind, ...]", get_args(ContextKind))
    return tuple(kind for kind in kinds if kind in scope.framework.context_parallel) or ("all_gather",)


def context_degrees(scope: FieldScope) -> tuple[int, ...]:
    """Divisors of the chips that divide a sequence."""
    if not set(get_args(ContextKind)) & set(scope.framework.context_parallel):
        return (1,)
    return tuple(c for c in chip_divisors(scope) if scope.job.seq_len % c == 0)


def schedules(scope: FieldScope) -> tuple[str, ...]:
    """Pipeline schedules."""
    return _schedules(scope.framework) or ("1f1b",)


def _schedules(framework: Framework) -> tuple[str, ...]:
    return tuple(schedule.value for schedule in PipelineSchedule if schedule.value in framework.pipeline_schedules)


def stages(scope: FieldScope) -> tuple[int, ...]:
    """Numbers of stages: the first and the last may hold embedding and head alone."""
    if not _schedules(scope.framework):
        return (1,)
    return tuple(p for p in chip_divisors(scope) if p <= scope.job.model.num_layers + 2)


def virtual_stages(scope: FieldScope) -> tuple[int, ...]:
    """Virtual stages per rank."""
    most = (scope.job.model.num_layers + 2) // 2
    return tuple(range(1, most + 1)) if "interleaved" in _schedules(scope.framework) else (1,)


def expert_degrees(scope: FieldScope) -> tuple[int, ...]:
    """Divisors of the chips and of the experts of the smallest mixture."""
    layers = scope.job.graph().layers.values()
    experts = sorted({e for layer in layers if isinstance(e := layer.sizes.get("experts"), int)})
    if not experts or not scope.framework.expert_parallel:
        return (1,)
    return tuple(e for e in divisors(experts[0]) if scope.cluster.chips % e == 0)


def expert_tensor_degrees(scope: FieldScope) -> tuple[int, ...]:
    """Divisors of the chips; of a tensor-parallel group its own divisors."""
    return chip_divisors(scope)


def sequence_parallel(scope: FieldScope) -> tuple[bool, ...]:
    """Whether norms and dropouts may share the sequence."""
    return (False,) if scope.framework.sequence_parallel == "never" else (False, True)


def micro_batches(scope: FieldScope) -> tuple[int, ...]:
    """Divisors of the global batch."""
    return divisors(scope.job.global_batch)


def zero_stages(scope: FieldScope) -> tuple[int, ...]:
    """ZeRO stages."""
    return scope.framework.zero_stages


def recompute_policies(scope: FieldScope) -> tuple[Choice, ...]:
    """What blocks may recompute."""
    return menu(scope.job, scope.framework)


def recompute_shares(scope: FieldScope) -> tuple[float, ...]:
    """Parts of the blocks that full recompute may hold for: whole blocks of equal stages, one or more."""
    if not scope.framework.recompute_some_layers or "full" not in scope.framework.recompute:
        return (1.0,)
    blocks = scope.job.model.num_layers
    return tuple(part / blocks for part in range(1, blocks + 1))


def axis_orders(scope: FieldScope) -> tuple[AxisOrder, ...]:
    """Rank orders."""
    return scope.framework.axis_orders


def partitions(scope: FieldScope) -> Partition:
    """The widest freedom in dealing blocks to stages."""
    match scope.framework.uneven_stages:
        case "any":
            return "any"
        case "ends":
            return "ends"
        case _:
            return "even"


def left_open(scope: FieldScope) -> tuple[None]:
    """Left to the framework, which takes the fastest it permits."""
    del scope
    return (None,)


def nothing_offloaded(scope: FieldScope) -> tuple[tuple[()]]:
    """Nothing is offloaded where nobody asks for it."""
    del scope
    return ((),)


def offloads(scope: FieldScope) -> tuple[tuple[str, ...], ...]:
    """What hosts can hold under the framework."""
    parts = scope.framework.offload
    return tuple(together for n in range(1, len(parts) + 1) for together in combinations(parts, n))


def switched(field: str) -> Callable[[FieldScope], tuple[bool, ...]]:
    """What an overlap of the framework can be fixed to."""

    def values(scope: FieldScope) -> tuple[bool, ...]:
        availability = getattr(scope.framework.overlaps, field)
        if availability == "optional":
            nothing_spread = field == "expert_parallel" and expert_degrees(scope) == (1,)
            return (False,) if nothing_spread else (False, True)
        return (availability == "always",)

    return values


def dispatchers(scope: FieldScope) -> tuple[str, ...]:
    """How tokens can go to experts."""
    return ("alltoall", "deepep") if scope.framework.one_copy_per_node else ("alltoall",)


def cuda_graphs(scope: FieldScope) -> tuple[bool, ...]:
    """On or off, where the launch format has an option for it."""
    return (False, True) if scope.framework.launch in (None, *CUDA_GRAPHS) else ()


def fp8_recipes(scope: FieldScope) -> tuple[str, ...]:
    """How values can be scaled to fp8, where the launch format has an option for it."""
    has_option = scope.framework.launch in (None, *FP8_RECIPES)
    return get_args(Fp8Recipe) if scope.job.precision == "fp8" and has_option else ()


def chooses_by_block(framework: Framework) -> bool:
    """Whether each block can be told by itself what to recompute, and to recompute nothing."""
    return "operators" in framework.recompute and "none" in framework.recompute


def menu(job: Job, framework: Framework) -> tuple[Choice, ...]:
    """What blocks may recompute: a policy for each of them, or the same of the framework's menu for all."""
    if chooses_by_block(framework):
        return (BY_BLOCK,)
    layers = job.graph().layers.values()
    for name in (*framework.recompute_modules, *framework.recompute_policies, framework.selective):
        if name not in MODULES:
            raise InputError(f"framework {framework.name}: recompute", f"names {quoted(name)}", one_of(MODULES, name))
    modules = [
        name for name in framework.recompute_modules if any(any(MODULES[name].operators(layer)) for layer in layers)
    ]
    words: list[Choice] = [word for word in ("none", "selective", "full") if word in framework.recompute]
    words += [(name,) for name in framework.recompute_policies]
    sets = (together for n in range(1, len(modules) + 1) for together in combinations(modules, n))
    # what "selective" stands for has that name alone
    return (*words, *(together for together in sets if together != (framework.selective,)))
