"""An encoding as fields of a plan: what its stages say, and what has to stand ahead of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, TypeVar, cast

from dovetail.errors import InputError, quoted
from dovetail.hardware import Cluster
from dovetail.launch.encoding.activations import ChainLayers, recompute_fields
from dovetail.launch.encoding.plan_encoding import SCHEDULES
from dovetail.layout.encoding import Encoding, MeshAxis, StageEncoding, Strings, TileAxes, TileLayouts, tile_axes
from dovetail.layout.encoding.factor import split_at
from dovetail.models import Job
from dovetail.plans.declaration import declared
from dovetail.plans.fields import PlanFields
from dovetail.plans.file_types import layouts_document
from dovetail.plans.plan_file import Task, plan_of_document
from dovetail.plans.stage_tiles import snake_tiles
from dovetail.plans.wafer_part import StageTile
from dovetail.plans.wafer_tiles import wafer_shape
from dovetail.plans.write import plan_part

ValueT = TypeVar("ValueT")

#: Degrees of a named strategy; strings of free layouts say all of them.
DEGREES = (
    "tensor_parallel",
    "context_parallel",
    "context_kind",
    "data_parallel",
    "expert_parallel",
    "expert_tensor_parallel",
    "sequence_parallel",
    "zero_group",
)
#: A file has the first of them where a named strategy shards its operators.
NAMED = DEGREES[0]

_RECOMPUTE = ("recompute", "recompute_share", "recompute_by_block")


def plan_fields_of(encoding: Encoding, ahead: Mapping[str, Any], job: Job, cluster: Cluster) -> dict[str, Any]:
    """The plan part of a plan file: fields that stand ahead of the stages, and those the stages say."""
    layers = ChainLayers(job.graph(), job.model.num_layers)
    _check_batch(encoding, job)
    pipeline = _pipeline_fields(encoding, layers)
    fields = pipeline | {"zero_stage": _zero_stage(encoding)}
    if not any(name in ahead for name in _RECOMPUTE):
        fields |= recompute_fields(encoding.stages, layers, by_block=NAMED not in ahead)
    if NAMED in ahead:
        fields["micro_batch"] = _per_replica(encoding, ahead, cluster)
    else:
        fields |= {"micro_batch": encoding.microbatch, **_free_fields(encoding, ahead, cluster)}
    said = next((name for name in pipeline if name in ahead), None)
    if said is not None:
        raise InputError(f"encoding: plan.{said}", "is what the stages say", "leave it out")
    return {**fields, **{name: value for name, value in ahead.items() if name != "wafer" or NAMED in ahead}}


def fields_ahead(encoding: Encoding, task: Task) -> dict[str, Any]:
    """The fields of a plan that its stages do not say."""
    full = plan_part(task.plan)
    ahead: dict[str, Any] = {}
    if task.plan.layouts is None:
        defaults = {name: each.default for name, each in declared(PlanFields).items()}
        ahead = {name: full[name] for name in DEGREES if name == NAMED or full[name] != defaults[name]}
    wafer: dict[str, Any] = {name: value for name, value in full.get("wafer", {}).items() if name != "tiles"}
    if wafer:
        ahead["wafer"] = wafer
    document = {"plan": plan_fields_of(encoding, ahead, task.job, task.cluster)}
    read = plan_part(plan_of_document(document, task.job, task.cluster, "encoding"))
    differing = [name for name in declared(PlanFields) if full.get(name) != read.get(name)]
    if any(name in _RECOMPUTE for name in differing):
        differing = [name for name in differing if name not in _RECOMPUTE]
        words = {name: full[name] for name in _RECOMPUTE if name in full}
        ahead |= {n: v for n, v in words.items() if (n, v) not in (("recompute", "none"), ("recompute_share", 1.0))}
        ahead.setdefault("recompute", "none")
    if "wafer" in differing:
        # tiles that a plan leaves to the snake are none
        ahead["wafer"] = {"tiles": [], **_mapping(full, "wafer")}
    return ahead | {name: full[name] for name in differing if name in full and name != "wafer"}


def _check_batch(encoding: Encoding, job: Job) -> None:
    sequences = encoding.microbatch * encoding.microbatches
    if sequences != job.global_batch:
        what = f"has {encoding.microbatches} micro-batches of {encoding.microbatch} sequences, {sequences} in all"
        raise InputError("encoding: microbatches", what, f"the job has {job.global_batch} a step")


def _pipeline_fields(encoding: Encoding, layers: ChainLayers) -> dict[str, Any]:
    """Stages, chunks and the blocks of each."""
    chunks = _same((len(stage.layers) for stage in encoding.stages), "layers", "intervals of layers")
    order = [stage.layers[chunk] for chunk in range(chunks) for stage in encoding.stages]
    return {
        "pipeline_parallel": len(encoding.stages),
        "virtual_stages": chunks,
        "pipeline_schedule": next(name for name, schedule in SCHEDULES.items() if schedule is encoding.schedule),
        "layers_per_stage": [len(layers.blocks(interval)) for interval in order],
    }


def _zero_stage(encoding: Encoding) -> int:
    """The ZeRO stage that shards such homes."""
    sharded = {
        name
        for stage in encoding.stages
        for operators in stage.classes.values()
        for operator in operators.values()
        for name, home in operator.homes.items()
        if home.sharded
    }
    stages = {"optimizer": 1, "gradients": 2, "weights": 3}
    return max((stages[name] for name in sharded), default=0)


def _per_replica(encoding: Encoding, ahead: Mapping[str, Any], cluster: Cluster) -> int:
    """Sequences of a micro-batch in each replica of a named strategy."""
    degrees = [ahead.get(name, 1) for name in ("tensor_parallel", "context_parallel")]
    if not all(isinstance(degree, int) and degree > 0 for degree in degrees):
        raise InputError("encoding: plan", f"has degrees of {degrees}", "they should be whole numbers, 1 or more")
    group = degrees[0] * degrees[1] * len(encoding.stages)
    replicas: object = ahead.get("data_parallel", max(cluster.chips // group, 1))
    if not isinstance(replicas, int) or replicas < 1 or encoding.microbatch % replicas:
        what = f"has {encoding.microbatch} sequences for {replicas} replicas"
        raise InputError("encoding: microbatch", what, "the replicas should divide it")
    return encoding.microbatch // replicas


def _free_fields(encoding: Encoding, ahead: Mapping[str, Any], cluster: Cluster) -> dict[str, Any]:
    """Layouts, alike on all stages, and where these are."""
    first = encoding.stages[0]
    shape = (first.tile.rows, first.tile.cols)
    stages = [_turned_to(stage, shape, number) for number, stage in enumerate(encoding.stages)]
    classes: dict[str, dict[str, Strings]] = {}
    for number, stage in enumerate(stages):
        for name, operators in stage.classes.items():
            strings = {operator: encoded.forward for operator, encoded in operators.items()}
            if classes.setdefault(name, strings) != strings:
                what = f"shards {name} otherwise than a stage before it"
                raise InputError(f"encoding: stage {number}", what, "a plan shards a layer class alike on all stages")
    stream = _same((stage.stream for stage in stages), "stream", "layouts of the residual stream")
    axes = _same((stage.axes for stage in stages), "axes", "axes of collectives")
    if stream is None:
        fix = "give every stage a stream, the rows and columns of what layers hand on"
        raise InputError("encoding: stage 0", "does not say how the residual stream is sharded", fix)
    merged_strings = [stream, *(strings for operators in classes.values() for strings in operators.values())]
    axes = tile_axes(merged_strings) if axes is None else _nested(axes, merged_strings)
    written = {name: {o: _along(s, axes) for o, s in operators.items()} for name, operators in classes.items()}
    layouts = layouts_document(TileLayouts.of(*shape, _along(stream, axes), written))
    return {"tensor_parallel": shape[0] * shape[1], "layouts": layouts, "wafer": _wafer(encoding, ahead, cluster)}


def _wafer(encoding: Encoding, ahead: Mapping[str, Any], cluster: Cluster) -> dict[str, Any]:
    """Where the stages are, unless they follow each other in a snake, and what stands ahead of them."""
    first = encoding.stages[0].tile
    tiles = tuple(StageTile(s.wafer, s.tile.y, s.tile.x, s.tile.rows, s.tile.cols) for s in encoding.stages)
    snake = snake_tiles(first.rows, first.cols, len(tiles), wafer_shape(cluster))
    listed = [] if tiles == snake else [[t.wafer, t.row, t.col, t.rows, t.cols] for t in tiles]
    return {"tiles": listed, **_mapping(ahead, "wafer")}


def _nested(axes: TileAxes, strings: Iterable[Strings]) -> TileAxes:
    """Axes along which all strings can be written."""
    needed = tile_axes(strings)
    for axis in MeshAxis:
        ends = axes.ends(axis)
        nest = all(low < high and high % low == 0 for low, high in pairwise(ends))
        if not nest or not set(needed.ends(axis)) <= set(ends):
            what = f"has groups of {', '.join(map(str, ends))} dies along {axis}"
            raise InputError("encoding: stages[0].axes", what, "they should nest and be those of the strings, or more")
    return axes


def _mapping(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    value: object = fields.get(name) or {}
    if not isinstance(value, Mapping):
        raise InputError(f"encoding: plan.{name}", f"is {quoted(value)}", "it should be a mapping of fields")
    return dict(cast("Mapping[str, Any]", value))


def _along(strings: Strings, axes: TileAxes) -> Strings:
    """Strings as a plan has them: a factor for every atomic axis."""
    return Strings(split_at(strings.rows, axes.rows), split_at(strings.cols, axes.cols))


def _turned_to(stage: StageEncoding, shape: tuple[int, int], number: int) -> StageEncoding:
    """The stage on a tile of the first one's rows and columns."""
    own = (stage.tile.rows, stage.tile.cols)
    if own == shape:
        return stage
    if own == shape[::-1]:
        return stage.transposed()
    what = f"has a tile of {own[0]} × {own[1]} dies, not {shape[0]} × {shape[1]}"
    raise InputError(f"encoding: stage {number}", what, "the tiles of a plan have one shape")


def _same(values: Iterable[ValueT], field: str, what: str) -> ValueT:
    """The value all stages have."""
    listed = list(values)
    for number, value in enumerate(listed):
        if value != listed[0]:
            fix = "stages of a plan have the same"
            raise InputError(f"encoding: stages[{number}].{field}", f"has other {what} than stage 0", fix)
    return listed[0]


def first_difference(written: Encoding, read: Encoding) -> str | None:
    """The first place where two encodings differ; None where they are equal."""
    for number, (one, other) in enumerate(zip(written.stages, read.stages, strict=False)):
        where = f"stage {number}"
        for name in sorted({*one.classes, *other.classes}):
            mine, yours = one.classes.get(name, {}), other.classes.get(name, {})
            for operator in sorted({*mine, *yours}):
                if mine.get(operator) != yours.get(operator):
                    return f"{where}, {name}, {operator}"
        for field in ("wafer", "tile", "layers", "helper", "stream", "overrides", "axes"):
            if getattr(one, field) != getattr(other, field):
                return f"{where}, {field}"
    for field in ("microbatch", "microbatches", "schedule"):
        if getattr(written, field) != getattr(read, field):
            return field
    return None if len(written.stages) == len(read.stages) else "stages"
