"""Streamed factors: which operand travels from die to die, and the buffers that takes."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from dovetail.graph import HALF_PRECISION, LayerGraph, Operator, Unit
from dovetail.graph.size import Size, Sizes, as_array, divided, is_exact, product, times, total
from dovetail.graph.tensor import Element
from dovetail.layout.encoding.factor import Strings, extent, sharded_by

#: A die works on one part while the next one arrives.
BUFFERS = 2


def streamed_operand(operator: Operator, dim: str, sizes: Sizes) -> tuple[str, ...]:
    """The tensors that travel as one where a streamed factor shards `dim`; none where there is nothing to send.

    Every die needs the whole of an input without the dim, so that input goes round in parts; where all inputs have
    it, the sums do. Inputs with the same dims (those no die may cut apart) go together, as keys and values
    do; of several the largest goes. Only matrix products last long enough to hide a hop behind.
    """
    split = operator.split(dim)
    if split is None or all(work.unit is not Unit.MATRIX for work in operator.work):
        return ()
    groups: dict[frozenset[str], list[str]] = {}
    points: dict[frozenset[str], list[Size]] = {}
    for operand in operator.inputs:
        if dim not in operand.indices:
            key = frozenset(operand.indices) - set(operator.indivisible)
            groups.setdefault(key, []).append(operand.tensor)
            points.setdefault(key, []).append(product(sizes, operand.indices))
    if groups:
        return tuple(groups[max(groups, key=lambda key: _number(total(points[key])))])
    return split.partial


def stream_buffer_bytes(
    graph: LayerGraph,
    operator: Operator,
    strings: Strings,
    sizes: Sizes,
    widths: Mapping[Element, int] = HALF_PRECISION,
) -> Size:
    """Bytes of a die's buffers for what travels while the operator runs; 0 where nothing does."""
    streamed = [factor for factor in strings if factor.streamed and factor.size > 1]
    if not streamed:
        return 0
    parts = sharded_by(strings)
    operands = {operand.tensor: operand for operand in (*operator.inputs, *operator.outputs)}
    buffers: list[Size] = []
    for name in streamed_operand(operator, streamed[0].dim, sizes):
        num_shards = 1
        for dim in set(operands[name].indices):
            num_shards *= parts.get(dim, 1)
        whole = times(graph.tensors[name].bytes(sizes, widths), BUFFERS)
        buffers.append(divided(whole, num_shards * extent(streamed)))
    return total(buffers)


def _number(size: Size) -> Fraction | float:
    return Fraction(size) if is_exact(size) else float(as_array(size).max())
