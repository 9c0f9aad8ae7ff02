"""Strings and layouts: factors as shards along atomic axes, and shards along axes as strings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.graph import Backward, LayerGraph, Operator, Phase
from dovetail.layout.derive import tensor_dim_of
from dovetail.layout.encoding.factor import REPLICATE, Factor, MeshAxis, Strings, extent, places
from dovetail.layout.encoding.operator_encoding import OperatorEncoding


@frozen
class TileAxes:
    """The atomic axes of a tile: along each mesh axis the ends of groups of dies, from 1 on."""

    rows: tuple[int, ...] = (1,)
    cols: tuple[int, ...] = (1,)

    def ends(self, axis: MeshAxis) -> tuple[int, ...]:
        """Where groups end along a mesh axis."""
        return self.rows if axis is MeshAxis.ROWS else self.cols

    def sizes(self) -> dict[str, int]:
        """Each atomic axis under its name, `rows.2` for the dies that lie 2 apart along the rows, and its size."""
        return {
            axis_name(axis, low): high // low for axis in MeshAxis for low, high in pairwise(self.ends(axis))
        }  # fmt: skip


def axis_name(axis: MeshAxis, low: int) -> str:
    """The name of the atomic axis whose parts lie `low` dies apart."""
    return f"{axis}.{low}"


def tile_axes(strings: Iterable[Strings]) -> TileAxes:
    """The fewest atomic axes all these strings can be written along."""
    ends: dict[MeshAxis, set[int]] = {axis: {1} for axis in MeshAxis}
    for each in strings:
        for axis in MeshAxis:
            ends[axis] |= {place.high for place in places(each.along(axis))}
    for axis, along in ends.items():
        for low, high in pairwise(sorted(along)):
            if high % low:
                raise InputError(
                    f"strings along {axis}",
                    f"groups of {low} and {high} dies do not nest",
                    "the first factors of one string should multiply to a divisor or multiple of another's",
                )
    return TileAxes(tuple(sorted(ends[MeshAxis.ROWS])), tuple(sorted(ends[MeshAxis.COLS])))


def stage_strings(operators: Mapping[str, OperatorEncoding]) -> list[Strings]:
    """Every string of a layer class, gradients' own included."""
    strings = [o.forward for o in operators.values()]
    strings += [s for o in operators.values() for s in (o.input_gradient, o.weight_gradient) if s is not None]
    return strings


def decode(operator: Operator, strings: Strings, axes: TileAxes | None = None) -> dict[str, str]:
    """Atomic axis → the dim of the operator it shards: what a layout is derived from.

    Dims that this operator (a gradient of the one the strings were written for) cannot shard are left out.
    """
    axes = tile_axes([strings]) if axes is None else axes
    shards: dict[str, str] = {}
    for axis in MeshAxis:
        lying = places(strings.along(axis))
        for low, high in pairwise(axes.ends(axis)):
            place = next((p for p in lying if p.low <= low and high <= p.high), None)
            assert place is not None, "the axes are none of this string"
            dim = place.factor.dim
            if dim != REPLICATE and operator.split(dim) is not None:
                shards[axis_name(axis, low)] = dim
    return shards


def stream_layout(strings: Strings, axes: TileAxes) -> dict[str, str]:
    """Atomic axis → the dim of a tensor it shards, from strings that say how a tensor is sharded."""
    shards: dict[str, str] = {}
    for axis in MeshAxis:
        for place in places(strings.along(axis)):
            inside = (low for low, high in pairwise(axes.ends(axis)) if place.low <= low and high <= place.high)
            shards |= {axis_name(axis, low): place.factor.dim for low in inside if place.factor.dim != REPLICATE}
    return shards


def streamed_axes(strings: Strings, axes: TileAxes) -> tuple[str, ...]:
    """The atomic axes along which an operand travels."""
    axes_streamed: list[str] = []
    for axis in MeshAxis:
        streamed = [p for p in places(strings.along(axis)) if p.factor.streamed]
        for low, high in pairwise(axes.ends(axis)):
            if any(p.low <= low and high <= p.high for p in streamed):
                axes_streamed.append(axis_name(axis, low))
    return tuple(axes_streamed)


@frozen
class AxesOnTile:
    """Where the axes of a mesh lie on a tile: name and size of each, innermost first."""

    rows: tuple[tuple[str, int], ...] = ()
    cols: tuple[tuple[str, int], ...] = ()

    def along(self, axis: MeshAxis) -> tuple[tuple[str, int], ...]:
        """The axes along one axis of the tile."""
        return self.rows if axis is MeshAxis.ROWS else self.cols

    def names(self) -> dict[str, str]:
        """Each mesh axis's atomic axis on the tile; axes of one die have none."""
        atomic: dict[str, str] = {}
        for axis in MeshAxis:
            low = 1
            for name, size in self.along(axis):
                if size > 1:
                    atomic[name] = axis_name(axis, low)
                low *= size
        return atomic

    def axes(self) -> TileAxes:
        """The atomic axes of the tile that are the mesh's."""
        return tile_axes([encode({}, self)])


def encode(shards: Mapping[str, str], on: AxesOnTile, streamed: Collection[str] = ()) -> Strings:
    """Shards along the axes of a mesh as strings; an axis that shards nothing replicates."""
    return Strings(_string(shards, on.rows, streamed), _string(shards, on.cols, streamed))


def _string(
    shards: Mapping[str, str], axes: Sequence[tuple[str, int]], streamed: Collection[str]
) -> tuple[Factor, ...]:
    return tuple(
        Factor(size, shards.get(name, REPLICATE), name in streamed and name in shards)
        for name, size in axes
        if size > 1
    )


def owner(graph: LayerGraph, gradient: Operator) -> str | None:
    """The forward operator whose encoding a gradient operator follows; None for a sum of several gradients."""
    if gradient.function == "sum":
        return None
    return max((o.name for o in graph.operators if gradient.name.startswith(f"{o.name}.")), key=len)


def gradients(graph: LayerGraph, backward: Backward) -> dict[tuple[str, Phase], tuple[Operator, ...]]:
    """The gradient operators of each forward operator by phase; sums of several gradients are nobody's."""
    by_phase: dict[tuple[str, Phase], tuple[Operator, ...]] = {}
    for operator in backward.graph.operators:
        name = owner(graph, operator)
        if name is not None:
            by_phase[name, operator.phase] = (*by_phase.get((name, operator.phase), ()), operator)
    return by_phase


def gradient_shards(
    graph: LayerGraph, operators: Mapping[str, OperatorEncoding], gradient: Operator, axes: TileAxes
) -> dict[str, str]:
    """What each atomic axis shards of an operator of the backward."""
    name = owner(graph, gradient)
    if name is None:
        return sum_shards(graph, operators, gradient.name.removesuffix(".grad.sum"), axes)
    return decode(gradient, operators[name].strings(gradient.phase), axes)


def backward_shards(
    graph: LayerGraph,
    operators: Mapping[str, OperatorEncoding],
    backward: Backward,
    axes: TileAxes,
    stream: Mapping[str, str],
) -> dict[str, dict[str, str]]:
    """What each atomic axis shards of every operator of the backward, for a given residual stream."""
    shards = {o.name: gradient_shards(graph, operators, o, axes) for o in backward.graph.operators}
    for tensor in graph.stream(graph.inputs):
        # the gradient of what the layer was handed is summed as it is handed back
        if f"{tensor.name}.grad.sum" in shards:
            shards[f"{tensor.name}.grad.sum"] = {axis: dim for axis, dim in stream.items() if dim in tensor.dims}
    return shards


def sum_shards(
    graph: LayerGraph, operators: Mapping[str, OperatorEncoding], name: str, axes: TileAxes
) -> dict[str, str]:
    """How the sum of a tensor's gradients is sharded: as the tensor was written.

    Along axes where its writer leaves a partial sum it is sharded as its first reader shards it there; so are the
    layer's inputs, which have no writer, and what was written to be sent elsewhere (tokens for experts).
    """
    writer = next(((o, i) for o in graph.operators for i in o.outputs if i.tensor == name), None)
    read = tensor_shards(graph, operators, name, axes)
    if writer is None or writer[0].regroups:
        return read
    operator, operand = writer
    shards: dict[str, str] = {}
    for axis, dim in decode(operator, operators[operator.name].forward, axes).items():
        split = operator.split(dim)
        tensor_dim = tensor_dim_of(operator, operand, graph.tensors[name], dim)
        if tensor_dim is not None:
            shards[axis] = tensor_dim
        elif split is not None and name in split.partial and axis in read:
            shards[axis] = read[axis]
    return shards


def tensor_shards(
    graph: LayerGraph, operators: Mapping[str, OperatorEncoding], name: str, axes: TileAxes
) -> dict[str, str]:
    """How a tensor is sharded between its users: along each axis as the first user that shards it there.

    Users are its readers in order, then its writer. The residual stream is sharded like this: what one of them shards
    need not be whole for all.
    """
    shards: dict[str, str] = {}
    users = [(o, i) for o in graph.operators for i in o.inputs if i.tensor == name]
    users += [(o, i) for o in graph.operators for i in o.outputs if i.tensor == name]
    for operator, operand in users:
        for axis, dim in decode(operator, operators[operator.name].forward, axes).items():
            tensor_dim = tensor_dim_of(operator, operand, graph.tensors[name], dim)
            if tensor_dim is not None:
                shards.setdefault(axis, tensor_dim)
    return shards


def tile_extent(strings: Strings) -> tuple[int, int]:
    """Rows and columns of the tile the strings are written for."""
    return extent(strings.rows), extent(strings.cols)
