"""A plan on a wafer as an encoding: tiles, layers, strings of every operator, policies and homes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from dovetail.errors import InputError
from dovetail.graph import LayerGraph, ModelGraph, Role, differentiate
from dovetail.hardware import Cluster
from dovetail.launch.encoding.activations import ChainLayers, block_choices, recomputed_operators, with_activations
from dovetail.layout import Strategy
from dovetail.layout.encoding import (
    Activation,
    AxesOnTile,
    Encoding,
    FreeStrategy,
    LayerInterval,
    MeshAxis,
    OperatorEncoding,
    StageEncoding,
    StateStore,
    Strings,
    TileAxes,
    TileLayouts,
    WaferSchedule,
    encode,
    tile_axes,
)
from dovetail.layout.encoding.canonical import canonical_as_placed
from dovetail.layout.encoding.factor import merged
from dovetail.layout.encoding.named import encode_strategy
from dovetail.layout.encoding.shards import axis_name, streamed_axes
from dovetail.plans.arrange import Arrangement, arrange
from dovetail.plans.plan import Plan
from dovetail.plans.plan_file import Task
from dovetail.plans.stage_tiles import is_turned, stage_tiles
from dovetail.plans.wafer_part import StageTile
from dovetail.plans.wafer_tiles import die_tiles, is_wafer
from dovetail.step.evaluate import is_block
from dovetail.step.facts import plan_facts

#: Schedules of plans, as encodings call them.
SCHEDULES: Mapping[str, WaferSchedule] = {
    "gpipe": WaferSchedule.GPIPE,
    "1f1b": WaferSchedule.ONE_F_ONE_B,
    "interleaved": WaferSchedule.INTERLEAVED,
    "zb_h1": WaferSchedule.ZERO_BUBBLE,
}

#: Homes that a store off the wafer holds the state of.
_STORED = {"optimizer": ("optimizer",), "weights": ("weights", "gradients")}


def encode_plan(task: Task) -> Encoding:
    """The encoding of a plan, canonical on its tiles; a plan that is no tiles of a wafer is refused."""
    plan, cluster, graph = task.plan, task.cluster, task.job.graph()
    if not is_wafer(cluster):
        raise InputError(f"cluster {cluster.name}", "is no wafer", "take one with rows and columns of dies")
    if plan.pipeline_schedule not in SCHEDULES:
        what = f"is {plan.pipeline_schedule}, whose stages hold two chunks of one partition"
        raise InputError("plan: pipeline_schedule", what, f"an encoding has one of {', '.join(SCHEDULES)}")
    arrangement = arrange(plan, graph, cluster)
    tiles = _tiles(plan, arrangement, cluster)
    classes, stream = _strings(plan, arrangement, graph)
    axes = None if plan.layouts is None else _finer_axes(plan.layouts)
    classes = {name: _with_stores(task, graph.layers[name], operators) for name, operators in classes.items()}
    layers = ChainLayers(graph, sum(plan.layers_per_stage))
    stages: list[StageEncoding] = []
    for number, tile in enumerate(tiles):
        parts = stage_intervals(plan, layers, number)
        used = {name for part in parts for name in layers.names[part.first : part.end]}
        on_stage = {name: classes[name] for name in sorted(used)}
        placed = StageEncoding(tile.tile(), parts, on_stage, None, tile.wafer, stream, axes=axes)
        if plan.layouts is not None and is_turned(tile, plan.layouts):
            placed = replace(placed.transposed(), tile=tile.tile())
        stages.append(replace(placed, helper=_helper(plan, number)))
    encoding = Encoding(
        plan.micro_batch * plan.data_parallel, plan.num_microbatches, tuple(stages), SCHEDULES[plan.pipeline_schedule]
    )
    return canonical_as_placed(_with_policies(encoding, task, layers))


def stage_intervals(plan: Plan, layers: ChainLayers, stage: int) -> tuple[LayerInterval, ...]:
    """The layers of a stage: its blocks, the embedding before the first and whatever follows the last."""
    ends = [0]
    for blocks in plan.layers_per_stage:
        ends.append(ends[-1] + blocks)
    last = len(plan.layers_per_stage) - 1
    return tuple(
        LayerInterval(ends[part] + 1 if part else 0, ends[part + 1] + 1 if part < last else len(layers.names))
        for part in range(stage, last + 1, plan.pipeline_parallel)
    )


def _tiles(plan: Plan, arrangement: Arrangement, cluster: Cluster) -> tuple[StageTile, ...]:
    """The rectangle of dies of every stage."""
    if plan.layouts is not None:
        return stage_tiles(plan, cluster)
    by_stage: dict[int, list[tuple[int, int, int]]] = {}
    for die in die_tiles(plan, arrangement, cluster):
        by_stage.setdefault(die.stage, []).append((die.wafer, die.row, die.col))
    return tuple(_rectangle(by_stage[stage]) for stage in sorted(by_stage))


def _rectangle(dies: list[tuple[int, int, int]]) -> StageTile:
    wafers, rows, cols = ([die[way] for die in dies] for way in range(3))
    if len(set(wafers)) > 1:
        fix = "use more stages, so that each is on one wafer"
        raise InputError("plan: data_parallel", "spreads a stage over several wafers", fix)
    tile = StageTile(wafers[0], min(rows), min(cols), max(rows) - min(rows) + 1, max(cols) - min(cols) + 1)
    if tile.rows * tile.cols != len(dies):
        what = "puts other stages between the dies of one"
        raise InputError("plan: axis_order", what, "an encoding has a tile for each stage: use tp-cp-dp-pp")
    return tile


def _strings(
    plan: Plan, arrangement: Arrangement, graph: ModelGraph
) -> tuple[dict[str, dict[str, OperatorEncoding]], Strings]:
    """Every layer class on the tile of a stage, and the residual stream."""
    strategy = arrangement.strategy
    if plan.layouts is not None:
        return _free_strings(plan.layouts, strategy, graph), plan.layouts.stream
    along = [tuple((axis, arrangement.joins[axis][way]) for axis in arrangement.axes.sizes) for way in range(2)]
    on = AxesOnTile(*along)
    classes = {name: encode_strategy(layer, strategy.of(layer), on) for name, layer in graph.layers.items()}
    return classes, encode(strategy.stream_shard(), on)


def _free_strings(
    layouts: TileLayouts, strategy: Strategy, graph: ModelGraph
) -> dict[str, dict[str, OperatorEncoding]]:
    assert isinstance(strategy, FreeStrategy)
    axes = layouts.axes()
    along = [tuple((axis_name(axis, low), high // low) for low, high in pairwise(axes.ends(axis))) for axis in MeshAxis]
    on = AxesOnTile(*along)
    classes: dict[str, dict[str, OperatorEncoding]] = {}
    for name, layer in graph.layers.items():
        streamed = {o: streamed_axes(strings, axes) for o, strings in layouts.operators(name).items()}
        classes[name] = encode_strategy(layer, strategy.of(layer), on, differentiate(layer), streamed=streamed)
    return classes


def _finer_axes(layouts: TileLayouts) -> TileAxes | None:
    """The axes that layouts are written along, where their strings need fewer."""
    axes = layouts.axes()
    fewest = tile_axes(Strings(merged(each.rows), merged(each.cols)) for each in layouts.strings())
    return None if axes == fewest else axes


def _with_stores(
    task: Task, layer: LayerGraph, operators: Mapping[str, OperatorEncoding]
) -> dict[str, OperatorEncoding]:
    """Homes of weights in the memory of a die, or off the wafer where the plan stores them there."""
    memory = StateStore.HBM if task.cluster.chip.hbm_bytes else StateStore.SRAM
    part = task.plan.wafer
    outside = {home for stored in (part.store if part is not None else ()) for home in _STORED.get(stored, ())}
    weighted = {
        o.name for o in layer.operators if any(layer.tensors[i.tensor].role is Role.WEIGHT for i in o.inputs)
    }  # fmt: skip
    encoded = dict(operators)
    for name in weighted:
        homes = {
            home: replace(value, store=StateStore.STREAMED if home in outside else memory)
            for home, value in encoded[name].homes.items()
        }
        encoded[name] = replace(encoded[name], **homes)
    return encoded


def _with_policies(encoding: Encoding, task: Task, layers: ChainLayers) -> Encoding:
    """What becomes of every operator's output between forward and backward."""
    plan, graph = task.plan, layers.graph
    facts = plan_facts(plan, task.framework, task.job)
    known = {
        (name, choice): recomputed_operators(layer, choice, facts)
        for name, layer in graph.layers.items()
        if is_block(layer)
        for choice in dict.fromkeys(block_choices(plan))
    }
    names = layers.names
    recomputed = [known[names[number + 1], choice] for number, choice in enumerate(block_choices(plan))]
    stored = plan.wafer is not None and "activations" in plan.wafer.store
    saved = Activation.OFF_WAFER if stored else Activation.STASH
    return replace(encoding, stages=tuple(with_activations(s, layers, recomputed, saved) for s in encoding.stages))


def _helper(plan: Plan, stage: int) -> int | None:
    """The stage that lends it the most memory."""
    loans = [] if plan.wafer is None else [loan for loan in plan.wafer.loans if loan.stage == stage]
    return max(loans, key=lambda loan: loan.bytes).lender if loans else None
