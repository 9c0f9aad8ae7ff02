"""Whether a plan suits a model: groups of chips nest, degrees divide what they shard, what a plan names exists."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from dovetail.errors import InputError, one_of, quoted
from dovetail.frozen import frozen
from dovetail.graph import ModelGraph
from dovetail.graph.routing import EXPERT_TOKENS
from dovetail.hardware import Cluster
from dovetail.layout import PARTIAL, Strategy
from dovetail.layout.axes import joined_by_tier
from dovetail.layout.encoding import REPLICATE, TileLayouts
from dovetail.layout.encoding.factor import sharded_by
from dovetail.layout.encoding.rules import divides, may_shard
from dovetail.models import Job
from dovetail.plans.arrange import arrange
from dovetail.plans.plan import Plan
from dovetail.plans.stage_tiles import check_wafer
from dovetail.profile.modules import MODULES

#: Dims that need not divide evenly: tables are padded, tokens go to experts as they come, and data-parallel
#: chips have equally many sequences by how micro-batches are counted.
_UNEVEN = frozenset({"vocab", "batch", EXPERT_TOKENS})

#: What every plan keeps, by the ids that certificates name.
MODEL_RULES = {
    "chips": "TP · CP · PP · DP is the number of chips",
    "batch": "micro_batch · DP divides the global batch; the quotient is the number of micro-batches",
    "virtual-schedule": "several virtual stages need the interleaved schedule and several stages",
    "dualpipe": "DualPipe needs an even number of stages and an even number of micro-batches, twice the stages or more",
    "parts": "PP · VPP is at most the layers + 2, and PP · VPP · micro-batches at most 4,194,304",
    "nesting": "TP, TP · CP, TP · ZeRO group, ETP, ETP · EP and the chips of a stage divide each other by size",
    "divisibility": "chips that share a dimension of an operator share it equally; vocabulary and batch may be padded",
    "experts-only": "without experts EP is 1 and ETP is TP",
    "tiers": "a ZeRO group smaller than CP keeps the context-parallel chips on their network tiers",
    "replicas": "stages are inside replicas in the rank order only where experts are not spread over replicas",
    "same": "of plans that are the same by the model one is tried: one stage has 1f1b, ZeRO 1 over one chip is ZeRO 0, "
    "ZeRO 2 of a pipeline is ZeRO 1, and the rank order is the first where it changes nothing",
}

#: The dims of the residual stream.
STREAM_DIMS = ("batch", "seq", "hidden")

#: How a sentence calls the dims that degrees shard; the others are called as the graph calls them.
_WORDS = {
    "seq": "tokens of a sequence",
    "kv_heads": "key heads",
    "group": "queries per key head",
    "ffn": "columns of the feed-forward",
    "shared_ffn": "columns of the shared experts",
    "expert_ffn": "columns of an expert",
    "experts": "experts",
    "key_heads": "key heads",
    "state_groups": "state groups",
}


def check_suitable(plan: Plan, job: Job, cluster: Cluster) -> None:
    """Refuses a plan whose chips could not share the model's layers equally."""
    graph = job.graph()
    if plan.layouts is not None:
        _check_layouts(plan.layouts, graph, batch=plan.micro_batch, seq=job.seq_len)
    _check_experts(plan, graph)
    _check_recompute(plan, graph)
    _check_nesting(plan)
    _check_tiers(plan, cluster)
    check_wafer(plan, cluster)
    try:
        arranged = arrange(plan, graph, cluster)
    except InputError as error:
        # all groups nest but those that share key heads
        raise InputError("plan: expert_tensor_parallel", error.what, error.fix) from None
    for shard in dim_shards(graph, job.seq_len, arranged.strategy):
        chips = prod(arranged.axes.sizes[axis] for axis in shard.axes)
        if shard.size % chips:
            tensor = arranged.strategy.mesh.tensor
            inner = prod(arranged.axes.sizes[axis] for axis in shard.axes if axis in tensor)
            field = _field(plan, shard.dim, shard.size, inner)
            what = f"leaves {chips} chips to share {shard.size} {_WORDS.get(shard.dim, shard.dim)} ({shard.layer})"
            raise InputError(f"plan: {field}", what, "choose a degree that divides them")


@frozen
class DimShard:
    """A dim of some operator, the axes that shard it, and a layer where that is so."""

    dim: str
    size: int
    axes: tuple[str, ...]
    layer: str


def dim_shards(graph: ModelGraph, seq_len: int, strategy: Strategy) -> tuple[DimShard, ...]:
    """Every dim that chips share equally, and the axes it is sharded along."""
    layer_of: dict[tuple[str, int, tuple[str, ...]], str] = {}
    for name, layer in graph.layers.items():
        sizes = {**layer.sizes, "seq": seq_len}
        of_layer = strategy.of(layer)
        for operator in layer.operators:
            axes_of: dict[str, list[str]] = {}
            for axis, dim in of_layer.shard(operator).items():
                if operator.split(dim) is not None:
                    axes_of.setdefault(dim, []).append(axis)
            for dim, axes in axes_of.items():
                size = sizes.get(dim)
                if dim not in _UNEVEN and isinstance(size, int):
                    layer_of.setdefault((dim, size, tuple(axes)), name)
    return tuple(DimShard(*shard, name) for shard, name in layer_of.items())


def _check_layouts(layouts: TileLayouts, graph: ModelGraph, *, batch: int, seq: int) -> None:
    """Refuses layouts of other models, and shardings that an operator or its sizes do not allow."""
    for name in (name for name, _ in layouts.classes if name not in graph.layers):
        raise InputError(f"plan: layouts.{name}", "is no layer class of the model", one_of(graph.layers, name))
    for factor in layouts.stream:
        if factor.dim not in (REPLICATE, *STREAM_DIMS):
            raise InputError("plan: layouts.stream", f"shards {quoted(factor.dim)}", one_of(STREAM_DIMS, factor.dim))
    for name, strings_of in layouts.classes:
        layer = graph.layers[name]
        sizes, operators = layer.resolve(batch=batch, seq=seq), {o.name: o for o in layer.operators}
        for operator, strings in strings_of:
            where = f"plan: layouts.{name}.{operator}"
            if operator not in operators:
                raise InputError(where, "is no operator of the layer", one_of(operators, operator))
            for dim, parts in sharded_by(strings).items():
                if dim in (REPLICATE, PARTIAL):
                    continue
                if not may_shard(operators[operator], dim):
                    raise InputError(
                        where, f"shards {quoted(dim)}", "name a dim that the operator can be sharded along"
                    )
                if not divides(dim, sizes, parts):
                    raise InputError(where, f"shards {dim} into {parts} parts", "choose parts that divide it")


def _check_experts(plan: Plan, graph: ModelGraph) -> None:
    if any("experts" in layer.sizes for layer in graph.layers.values()):
        return
    if plan.expert_parallel > 1:
        raise InputError(
            "plan: expert_parallel", f"is {plan.expert_parallel} and the model has no experts", "set it to 1"
        )
    if plan.expert_tensor_parallel != plan.tensor_parallel:
        fix = "leave it out"
        raise InputError("plan: expert_tensor_parallel", "needs a model with experts", fix)


def _check_recompute(plan: Plan, graph: ModelGraph) -> None:
    names = [name for choice in plan.recompute_choices if not isinstance(choice, str) for name in choice]
    if not names:
        return
    layers = graph.layers.values()
    offered = {operator.name for layer in layers for operator in layer.operators}
    offered |= {name for name, module in MODULES.items() if any(any(module.operators(layer)) for layer in layers)}
    field = "recompute" if plan.recompute_by_block is None else "recompute_by_block"
    for name in names:
        if name not in offered:
            raise InputError(
                f"plan: {field}", f"{quoted(name)} is no operator or module of the model", one_of(offered, name)
            )


def nests(plan: Plan, replicas: int, zero_group: int) -> bool:
    """Whether groups of neighbouring chips nest, with so many replicas and shards of state."""
    stage = plan.tensor_parallel * plan.context_parallel * replicas
    sizes = sorted({*_groups(plan, zero_group), stage})
    return all(high % low == 0 for low, high in pairwise(sizes))


def stays_on_tiers(plan: Plan, zero_group: int, tiers: Sequence[int]) -> bool:
    """Whether a group of state that ends among context-parallel chips leaves these on the tiers they are on."""
    t, end = plan.tensor_parallel, plan.tensor_parallel * plan.context_parallel
    middle = t * zero_group
    if middle >= end:
        return True
    parts = (joined_by_tier(low, high, tiers) for low, high in ((t, middle), (middle, end)))
    return tuple(a * b for a, b in zip(*parts, strict=True)) == joined_by_tier(t, end, tiers)


def _check_tiers(plan: Plan, cluster: Cluster) -> None:
    """Refuses groups that no rank order lays out on the tiers of a cluster."""
    if not stays_on_tiers(plan, plan.zero_group, [tier.size for tier in cluster.tiers]):
        what = f"is {plan.zero_group} and parts {plan.context_parallel} context-parallel chips across tiers"
        raise InputError("plan: zero_group", what, "it should be a multiple of context_parallel")
    experts = plan.expert_tensor_parallel * plan.expert_parallel
    if plan.stages_inside and experts > plan.tensor_parallel * plan.context_parallel:
        what = f"is {plan.axis_order} with experts spread over replicas"
        raise InputError("plan: axis_order", what, "it should be tp-cp-dp-pp")


def _groups(plan: Plan, zero_group: int) -> dict[int, str]:
    """Groups inside a stage by their chips; the degrees a plan may leave out come last."""
    t, inner = plan.tensor_parallel, plan.expert_tensor_parallel
    return {
        t: "tensor_parallel",
        t * plan.context_parallel: "context_parallel",
        t * zero_group: "zero_group",
        inner * plan.expert_parallel: "expert_parallel",
        inner: "expert_tensor_parallel",
    }


def _check_nesting(plan: Plan) -> None:
    """Refuses groups that do not nest; the degrees a plan may leave out are named first."""
    stage = plan.tensor_parallel * plan.context_parallel * plan.data_parallel
    groups = _groups(plan, plan.zero_group)
    for chips, field in groups.items():
        if stage % chips:
            what = f"makes groups of {chips} chips in stages of {stage}"
            raise InputError(f"plan: {field}", what, "choose degrees whose product divides the chips of a stage")
    for low, high in pairwise(sorted(groups)):
        if high % low:
            field = max(groups[low], groups[high], key=list(groups.values()).index)
            what = f"makes groups of {low} and {high} chips, which do not nest"
            raise InputError(f"plan: {field}", what, "each group should divide the next larger one")


def _field(plan: Plan, dim: str, size: int, tensor_chips: int) -> str:
    """The degree to blame for a sharding that does not divide."""
    match dim:
        case "experts":
            return "expert_parallel"
        case "expert_ffn":
            return "expert_tensor_parallel"
        case "seq":
            return "context_parallel" if size % plan.context_parallel else "sequence_parallel"
        case _:
            return "tensor_parallel" if size % tensor_chips else "context_parallel"
