"""Counts read off a graph: parameters, FLOPs, bytes touched, bytes saved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dovetail.graph.layer import LayerGraph
from dovetail.graph.operator import Kind, Operator, Phase, Unit
from dovetail.graph.size import Size, Sizes, product, times, total
from dovetail.graph.tensor import HALF_PRECISION, Element, Role, Tensor


def flops(operator: Operator, sizes: Sizes, unit: Unit | None = None, *, causal: bool = False) -> Size:
    """Floating-point operations of one unit (or both); `causal` leaves masked-out pairs away."""
    parts: list[Size] = []
    for work in operator.work:
        if unit is not None and work.unit is not unit:
            continue
        points = product(sizes, work.dims)
        mask = operator.mask
        if mask is not None and mask.query in work.dims and mask.key in work.dims:
            points = times(points, mask.coverage(sizes, causal=causal))
        parts.append(times(points, work.flops_per_point))
    return total(parts)


def matmul_flops(
    graph: LayerGraph, sizes: Sizes, phases: Iterable[Phase] = tuple(Phase), *, causal: bool = False
) -> Size:
    """Matrix FLOPs of a layer's operators of these phases."""
    counted = frozenset(phases)
    return total(flops(o, sizes, Unit.MATRIX, causal=causal) for o in graph.operators if o.phase in counted)


def bytes_read(
    operator: Operator,
    tensors: Mapping[str, Tensor],
    sizes: Sizes,
    widths: Mapping[Element, int] = HALF_PRECISION,
) -> Size:
    """Bytes an operator reads when each operand is read once; a lookup reads only the rows it needs."""
    touched = dict.fromkeys(o.tensor for o in operator.inputs)
    if operator.kind is Kind.EMBEDDING and operator.phase is Phase.FORWARD:
        rows = operator.outputs[0].tensor
        touched = {rows if tensors[name].role is Role.WEIGHT else name: None for name in touched}
    return total(tensors[name].bytes(sizes, widths) for name in touched)


def bytes_written(
    operator: Operator,
    tensors: Mapping[str, Tensor],
    sizes: Sizes,
    widths: Mapping[Element, int] = HALF_PRECISION,
) -> Size:
    """Bytes an operator writes."""
    return total(tensors[o.tensor].bytes(sizes, widths) for o in operator.outputs)


def saved_bytes(
    graph: LayerGraph,
    sizes: Sizes,
    widths: Mapping[Element, int] = HALF_PRECISION,
    *,
    statistics: bool = True,
) -> Size:
    """Bytes saved from forward to backward; published closed forms leave statistics out."""
    return total(t.bytes(sizes, widths) for t in graph.saved() if statistics or t.role is not Role.STATISTIC)


def parameters(graph: LayerGraph) -> int:
    """Parameters of one layer, trained and frozen."""
    sizes = graph.fixed_sizes()
    return whole(total(t.points(sizes) for t in graph.weights()))


def trained_parameters(graph: LayerGraph) -> int:
    """Parameters of one layer that have a gradient."""
    sizes = graph.fixed_sizes()
    return whole(total(t.points(sizes) for t in graph.weights() if not t.frozen))


def active_parameters(graph: LayerGraph) -> int:
    """Parameters one token uses: of routed experts only the chosen ones."""
    sizes = graph.fixed_sizes()
    return whole(total(times(t.points(sizes), t.active_share) for t in graph.weights()))


def whole(value: Size) -> int:
    """A count of elements, which is never a fraction."""
    assert isinstance(value, int), "a weight has a whole number of elements"
    return value
