"""An encoding as a JSON document, versioned: the same encoding is always the same bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import Field

from dovetail.documents import Spec, parse_document, validate
from dovetail.frozen import frozen
from dovetail.layout.encoding.factor import Factor, MeshAxis, String, Strings
from dovetail.layout.encoding.job_encoding import (
    ActivationOverride,
    Encoding,
    LayerInterval,
    StageEncoding,
    Tile,
    WaferSchedule,
)
from dovetail.layout.encoding.operator_encoding import Activation, Home, OperatorEncoding, StateStore
from dovetail.layout.encoding.shards import TileAxes

FORMAT = "dovetail-encoding/1"

Count = Annotated[int, Field(ge=1, le=2**24)]
Place = Annotated[int, Field(ge=0, le=2**24)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class FactorSpec(Spec):
    """A factor of a string."""

    factor: Count
    """dies, or groups of dies, along the axis"""
    dim: Name
    """the dim they shard; `replicate`: none; `+`: the terms of a sum"""
    streamed: bool = False
    """the operand that is not sharded travels from die to die"""


FactorList = Annotated[tuple[FactorSpec, ...], Field(strict=False, max_length=64)]


class EncodingStringsSpec(Spec):
    """One string per axis of the tile, innermost factor first."""

    rows: FactorList = ()
    cols: FactorList = ()


class AxesSpec(Spec):
    """Where groups of dies end along the rows and the columns, from 1 to all of them."""

    rows: Annotated[tuple[Count, ...], Field(strict=False, min_length=1, max_length=64)] = (1,)
    cols: Annotated[tuple[Count, ...], Field(strict=False, min_length=1, max_length=64)] = (1,)


class PositionSpec(Spec):
    """A factor of the operator's own strings."""

    axis: Annotated[MeshAxis, Field(strict=False)]
    position: Place
    """from 0, innermost first"""


class HomeSpec(Spec):
    """Where a state lives."""

    store: Annotated[StateStore, Field(strict=False)] = StateStore.SRAM
    sharded: Annotated[tuple[PositionSpec, ...], Field(strict=False, max_length=64)] = ()
    """factors along which each die stores only its shard"""


class OperatorSpec(EncodingStringsSpec):
    """An operator on the tile."""

    input_gradient: EncodingStringsSpec | None = None
    weight_gradient: EncodingStringsSpec | None = None
    activation: Annotated[Activation, Field(strict=False)] = Activation.STASH
    weights: HomeSpec = HomeSpec.unchecked()
    gradients: HomeSpec = HomeSpec.unchecked()
    optimizer: HomeSpec = HomeSpec.unchecked()


class TileSpec(Spec):
    """A rectangle of dies."""

    x: Place
    y: Place
    rows: Count
    cols: Count


class IntervalSpec(Spec):
    """Layers of the chain, `end` not included."""

    first: Place
    end: Count


class OverrideSpec(Spec):
    """Layers that save or recompute other outputs than the rest of their class."""

    layers: IntervalSpec
    activation: dict[Name, Annotated[Activation, Field(strict=False)]]
    """by operator"""


class StageSpec(Spec):
    """A pipeline stage."""

    wafer: Place = 0
    """of several wafers, the one the tile is on"""
    tile: TileSpec
    layers: Annotated[tuple[IntervalSpec, ...], Field(strict=False, min_length=1, max_length=4096)]
    helper: Place | None = None
    """the stage that stores what operators with the policy `helper` write"""
    classes: dict[str, dict[str, OperatorSpec]]
    """layer class, then operator"""
    stream: EncodingStringsSpec | None = None
    """how the residual stream is sharded between layers; as each layer class reads it where left out"""
    overrides: Annotated[tuple[OverrideSpec, ...], Field(strict=False, max_length=65536)] = ()
    axes: AxesSpec | None = None
    """groups of dies that collectives run along, where these are finer than the strings need"""


class EncodingSpec(Spec):
    """An encoding file."""

    format: Literal["dovetail-encoding/1"]
    job: dict[str, Any] | None = None
    """what is trained, as in a plan file"""
    cluster: dict[str, Any] | None = None
    """on what, and for which framework, as in a plan file"""
    plan: dict[str, Any] | None = None
    """fields of a plan that the stages do not say; with degrees, the operators are sharded by a named strategy"""
    microbatch: Count
    microbatches: Count
    schedule: Annotated[WaferSchedule, Field(strict=False)] = WaferSchedule.ONE_F_ONE_B
    stages: Annotated[tuple[StageSpec, ...], Field(strict=False, min_length=1, max_length=65536)]


@frozen
class EncodingHeader:
    """Parts of a plan file ahead of an encoding, so that its file can be read alone; each may be absent."""

    job: Mapping[str, Any] = field(default_factory=dict[str, Any])
    cluster: Mapping[str, Any] = field(default_factory=dict[str, Any])
    plan: Mapping[str, Any] = field(default_factory=dict[str, Any])


def to_json(encoding: Encoding, header: EncodingHeader | None = None) -> str:
    """The document; what has its default is left out, classes and operators stand in order of their names."""
    header = header or EncodingHeader()
    parts = {"job": header.job, "cluster": header.cluster, "plan": header.plan}
    head = {
        "format": FORMAT,
        **{name: dict(part) for name, part in parts.items() if part},
        "microbatch": encoding.microbatch,
        "microbatches": encoding.microbatches,
        "schedule": str(encoding.schedule),
    }
    stages = ",\n".join(_stage_text(stage) for stage in encoding.stages)
    fields = "".join(f" {_dump(name)}: {_dump(value)},\n" for name, value in head.items())
    return f'{{\n{fields} "stages": [\n{stages}\n ]\n}}\n'


def from_json(text: str, where: str = "encoding") -> Encoding:
    """The encoding a document holds; one that is no encoding is refused with one sentence."""
    return read_encoding(text, where)[0]


def read_encoding(text: str, where: str = "encoding") -> tuple[Encoding, EncodingHeader]:
    """The encoding a document holds, and what stands ahead of it."""
    spec = validate(EncodingSpec, parse_document(text, where, json_only=True), where)
    encoding = Encoding(spec.microbatch, spec.microbatches, tuple(_stage(s) for s in spec.stages), spec.schedule)
    return encoding, EncodingHeader(spec.job or {}, spec.cluster or {}, spec.plan or {})


def _stage_text(stage: StageEncoding) -> str:
    """A stage, an operator on a line: readable, and quick to write."""
    tile = stage.tile
    head = {
        **({"wafer": stage.wafer} if stage.wafer else {}),
        "tile": {"x": tile.x, "y": tile.y, "rows": tile.rows, "cols": tile.cols},
        "layers": [{"first": part.first, "end": part.end} for part in stage.layers],
        **({} if stage.helper is None else {"helper": stage.helper}),
        **({} if stage.stream is None else {"stream": _strings_document(stage.stream)}),
        **({} if stage.axes is None else {"axes": {"rows": list(stage.axes.rows), "cols": list(stage.axes.cols)}}),
        **({"overrides": [_override_document(each) for each in stage.overrides]} if stage.overrides else {}),
    }
    fields = "".join(f"   {_dump(name)}: {_dump(value)},\n" for name, value in head.items())
    classes = ",\n".join(_class_text(name, stage.classes[name]) for name in sorted(stage.classes))
    return f'  {{\n{fields}   "classes": {{\n{classes}\n   }}\n  }}'


def _class_text(name: str, operators: Mapping[str, OperatorEncoding]) -> str:
    lines = ",\n".join(f"     {_dump(o)}: {_dump(operator_document(operators[o]))}" for o in sorted(operators))
    return f"    {_dump(name)}: {{\n{lines}\n    }}"


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def operator_document(operator: OperatorEncoding) -> dict[str, Any]:
    """One operator's part of the document."""
    document: dict[str, Any] = _strings_document(operator.forward)
    for name in ("input_gradient", "weight_gradient"):
        strings: Strings | None = getattr(operator, name)
        if strings is not None:
            document[name] = _strings_document(strings)
    if operator.activation is not Activation.STASH:
        document["activation"] = str(operator.activation)
    for name, home in operator.homes.items():
        if home != Home():
            document[name] = _home_document(home)
    return document


def _strings_document(strings: Strings) -> dict[str, Any]:
    return {
        str(axis): [
            {"factor": f.size, "dim": f.dim, **({"streamed": True} if f.streamed else {})} for f in strings.along(axis)
        ]
        for axis in MeshAxis
    }


def _override_document(override: ActivationOverride) -> dict[str, Any]:
    layers = {"first": override.layers.first, "end": override.layers.end}
    return {"layers": layers, "activation": {o: str(override.activation[o]) for o in sorted(override.activation)}}


def _home_document(home: Home) -> dict[str, Any]:
    sharded = [{"axis": str(axis), "position": position} for axis, position in home.sharded]
    return {"store": str(home.store), **({"sharded": sharded} if sharded else {})}


def _stage(spec: StageSpec) -> StageEncoding:
    tile = Tile(spec.tile.x, spec.tile.y, spec.tile.rows, spec.tile.cols)
    layers = tuple(LayerInterval(part.first, part.end) for part in spec.layers)
    classes = {name: {o: _operator(s) for o, s in operators.items()} for name, operators in spec.classes.items()}
    overrides = tuple(
        ActivationOverride(LayerInterval(each.layers.first, each.layers.end), each.activation)
        for each in spec.overrides
    )
    stream = None if spec.stream is None else _strings(spec.stream)
    axes = None if spec.axes is None else TileAxes(spec.axes.rows, spec.axes.cols)
    return StageEncoding(tile, layers, classes, spec.helper, spec.wafer, stream, overrides, axes)


def _operator(spec: OperatorSpec) -> OperatorEncoding:
    return OperatorEncoding(
        _strings(spec),
        None if spec.input_gradient is None else _strings(spec.input_gradient),
        None if spec.weight_gradient is None else _strings(spec.weight_gradient),
        spec.activation,
        _home(spec.weights),
        _home(spec.gradients),
        _home(spec.optimizer),
    )


def _strings(spec: EncodingStringsSpec) -> Strings:
    return Strings(_string(spec.rows), _string(spec.cols))


def _string(factors: tuple[FactorSpec, ...]) -> String:
    return tuple(Factor(f.factor, f.dim, f.streamed) for f in factors)


def _home(spec: HomeSpec) -> Home:
    return Home(spec.store, tuple((p.axis, p.position) for p in spec.sharded))
