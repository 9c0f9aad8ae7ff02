"""The backward of a layer as autograd runs it: operator by operator, each freeing what it was the last to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.arrays import Floats, summed
from dovetail.frozen import frozen
from dovetail.graph import Kind, Operator, Role
from dovetail.layout import Layout, PlacedLayer, TensorVersion
from dovetail.layout.convert import CollectiveKind
from dovetail.layout.layout import REPLICATED
from dovetail.profile.layer_sizes import LayerSizes, VersionSizes


@frozen
class BackwardNode:
    """The backward of one operator."""

    operator: str
    #: gradients of activations, and saved tensors gathered again, while it runs
    gradient_bytes: Floats
    #: what of that is there before it, and what of it are gradients of logits
    arriving_bytes: Floats
    logit_bytes: Floats
    #: parameters whose gradients are written when it is done, since the layer's backward began
    written_parameters: Floats
    #: tensors of the forward it reads
    reads: frozenset[str]
    #: parameters of the whole tables whose shards it looked up
    table_parameters: Floats
    #: parameters of each weight gradient it writes
    weights: tuple[Floats, ...]


@dataclass(slots=True)
class Lifetime:
    """The nodes from which to which a gradient, or a tensor gathered again, is alive."""

    start: int
    end: int
    bytes: Floats
    #: by the node it starts with
    written: bool
    #: a gradient of logits
    of_logits: bool


def backward_nodes(placed: PlacedLayer, of: VersionSizes) -> tuple[tuple[BackwardNode, ...], tuple[Lifetime, ...]]:
    """The nodes of a layer's backward in the order they run, and how long the tensors they write are alive."""
    names = [p.operator.name for p in placed.forward]
    node_of, order = _grouped([p.operator for p in placed.backward], names)
    intervals, sizes = _intervals(placed, of, node_of, len(order)), of.sizes
    intervals = [*_dequantized(placed, sizes, node_of), *intervals]
    weights = _weights_written(placed, sizes, node_of, len(order))
    written = _running(weights)
    reads: list[set[str]] = [set() for _ in order]
    forward = {v.tensor.name for v in placed.versions}
    tables = _sharded_tables(placed, sizes)
    for operator in (p.operator for p in placed.backward):
        reads[node_of[operator.name]].update(o.tensor for o in operator.inputs if o.tensor in forward)
    nodes = tuple(
        BackwardNode(
            name,
            summed(each.bytes for each in intervals if each.start <= number <= each.end),
            summed(
                each.bytes
                for each in intervals
                if each.start <= number <= each.end and not (each.written and each.start == number)
            ),
            summed(each.bytes for each in intervals if each.start <= number <= each.end and each.of_logits),
            written[number],
            frozenset(reads[number]),
            tables.get(name, np.zeros(())),
            weights[number],
        )
        for number, name in enumerate(order)
    )
    return nodes, tuple(each for each in intervals if each.bytes.any())


def longest_first(forward: Iterable[str]) -> list[str]:
    """Names of a forward's operators as `forward_operator` takes them."""
    return sorted(forward, key=len, reverse=True)


def forward_operator(name: str, by_length: Sequence[str]) -> str:
    """The operator of the forward that one of either direction belongs to; its own name where there is none."""
    return next((each for each in by_length if name == each or name.startswith(f"{each}.")), name)


def _grouped(backward: Sequence[Operator], forward: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """The node of every operator of the backward: those that belong to one operator of the forward run together."""
    order: list[str] = []
    node_of: dict[str, int] = {}
    by_length = longest_first(forward)
    for operator in backward:
        source = forward_operator(operator.name, by_length)
        if operator.function == "sum":
            # gradients are added up as they arrive
            node_of[operator.name] = max(len(order) - 1, 0)
            continue
        if not order or order[-1] != source:
            order.append(source)
        node_of[operator.name] = len(order) - 1
    return node_of, order


def _intervals(placed: PlacedLayer, sizes: VersionSizes, node_of: Mapping[str, int], count: int) -> list[Lifetime]:
    """When gradients of activations are alive, and copies of saved tensors that were gathered again."""
    writers = {o.tensor: p.operator.name for p in placed.backward for o in p.operator.outputs}
    forward = {v.tensor.name for v in placed.versions}
    logits = {o.tensor for p in placed.backward if p.operator.kind is Kind.LOSS for o in p.operator.outputs}
    intervals: dict[tuple[str, Layout], Lifetime] = {}
    for version in placed.backward_versions:
        name = version.tensor.name
        if version.tensor.role is Role.WEIGHT_GRADIENT or (name in forward and version.made_of is None):
            continue
        written = node_of[writers[name]] if name in writers else -1
        readers = [node_of[reader] for reader in version.readers]
        start = written if version.made_of is None or not readers else min(readers)
        if _reduced(version):
            # sums over shards are made at once, when what was added up is gone
            start = min(written + 1, count - 1)
        end = max([start, *readers]) if readers else (count - 1 if version.made_of is None else start)
        size = sizes.bytes(version.tensor, version.layout)
        intervals[name, version.layout] = Lifetime(start, end, size, version.made_of is None, name in logits)
        if version.made_of is not None and (name, version.made_of) in intervals:
            base, until = intervals[name, version.made_of], written if _reduced(version) else start
            base.end = until if not _read(placed, name, version.made_of) else max(base.end, until)
    _add_in_place(placed, intervals, node_of)
    return list(intervals.values())


def _dequantized(placed: PlacedLayer, sizes: LayerSizes, node_of: Mapping[str, int]) -> list[Lifetime]:
    """Copies of 4-bit weights, each there while a node multiplies it."""
    copies = sizes.dequantized(placed)
    return [
        Lifetime(node_of[operator.name], node_of[operator.name], copies[operand.tensor], written=True, of_logits=False)
        for operator in (p.operator for p in placed.backward)
        for operand in operator.inputs
        if operand.tensor in copies
    ]


def _reduced(version: TensorVersion) -> bool:
    """Whether it is a sum over shards: what was written is reduced at once."""
    return any(c.kind in (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE) for c in version.collectives)


def _read(placed: PlacedLayer, name: str, layout: Layout) -> bool:
    return any(v.readers for v in placed.backward_versions if v.tensor.name == name and v.layout == layout)


def _add_in_place(
    placed: PlacedLayer, intervals: Mapping[tuple[str, Layout], Lifetime], node_of: Mapping[str, int]
) -> None:
    """Of gradients that are added up the first to arrive becomes the sum; each other is freed once it is added."""
    read_by = {
        (version.tensor.name, reader): intervals[version.tensor.name, version.layout]
        for version in placed.backward_versions
        for reader in version.readers
        if (version.tensor.name, version.layout) in intervals
    }
    for operator in (p.operator for p in placed.backward if p.operator.function == "sum"):
        total = [interval for (name, _), interval in intervals.items() if name == operator.outputs[0].tensor]
        first, *others = (read_by.get((o.tensor, operator.name)) for o in operator.inputs)
        for interval in others:
            if interval is not None:
                interval.end = max(interval.start, 0)
        until = max((each.end for each in total), default=node_of[operator.name])
        if first is not None:
            first.end = max(first.end, until)
        for interval in total:
            if interval.bytes is total[0].bytes:
                interval.bytes = np.zeros(())


def _weights_written(
    placed: PlacedLayer, sizes: LayerSizes, node_of: Mapping[str, int], count: int
) -> list[tuple[Floats, ...]]:
    """By node, the parameters of each weight gradient it writes."""
    by_gradient = {w.gradient[0].name: sizes.elements(w.tensor, w.use) for w in placed.weights if w.gradient}
    by_node: list[list[Floats]] = [[] for _ in range(count)]
    for operator in (p.operator for p in placed.backward):
        by_node[node_of[operator.name]] += [by_gradient[o.tensor] for o in operator.outputs if o.tensor in by_gradient]
    return [tuple(weights) for weights in by_node]


def _sharded_tables(placed: PlacedLayer, sizes: LayerSizes) -> dict[str, Floats]:
    """Embedding → parameters of its whole table, 0 where a chip has all of it."""
    weights = {w.tensor.name: w for w in placed.weights}
    tables: dict[str, Floats] = {}
    for operator in (p.operator for p in placed.forward if p.operator.kind is Kind.EMBEDDING):
        (weight,) = (weights[o.tensor] for o in operator.inputs if o.tensor in weights)
        whole, shard = sizes.elements(weight.tensor, REPLICATED), sizes.elements(weight.tensor, weight.use)
        tables[operator.name] = np.where(shard < whole, whole, 0.0)
    return tables


def _running(by_node: Iterable[Sequence[Floats]]) -> list[Floats]:
    sums: list[Floats] = []
    for values in by_node:
        sums.append(summed([*sums[-1:], *values]))
    return sums
