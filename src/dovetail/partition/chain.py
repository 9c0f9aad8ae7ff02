"""The chain problem: a row of layers, partitioned into stages, replicated into pipelines; and what it costs.

The reference objective of docs/explanation/partition.md, which instances with known optima were solved for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from dovetail.arrays import ROUNDING, Bools, Floats
from dovetail.documents import Spec, read_document, validate
from dovetail.errors import InputError, quoted
from dovetail.frozen import frozen

MAX_LAYERS = 4096
MAX_WIDTH = 2**20

_Amount = Annotated[float, Field(ge=0, le=1e30, strict=False)]
_Count = Annotated[int, Field(ge=1, le=2**40)]


@frozen
class Layers:
    """The layers of a chain under one tensor-parallel width, in order; arrays over layers."""

    width: int
    ids: tuple[int, ...]
    forward_s: Floats
    backward_s: Floats
    parameter_bytes: Floats
    activation_bytes: Floats
    #: handed to each layer by the one before; 0 for the first
    input_bytes: Floats
    #: sharded over the width; a stage without any such layer takes one device
    sharded: Bools


@frozen
class Chain:
    """An instance: layers by width, and the devices they are placed on."""

    layers: tuple[Layers, ...]
    device_bytes: float
    devices: int
    bytes_per_s: float
    microbatches: int
    recompute: bool
    #: bytes of state per byte of parameters: weights, gradients, and the momentum of Adam
    state: float


@frozen
class ChainPlacement:
    """Where stages end (one past their last layer), the width, and how many equal pipelines there are."""

    layers: Layers
    ends: tuple[int, ...]
    data_parallel: int

    @property
    def stages(self) -> tuple[tuple[int, int], ...]:
        """First layer and one past the last, of every stage."""
        return tuple(zip((0, *self.ends[:-1]), self.ends, strict=True))

    def devices(self, first: int, end: int) -> int:
        """Devices of one stage."""
        return self.layers.width if self.layers.sharded[first:end].any() else 1


def chain_seconds(chain: Chain, placement: ChainPlacement) -> float:
    """Time per batch of a partition, straight from the definition; infinite where it breaks a limit."""
    layers, stages, pipelines = placement.layers, placement.stages, placement.data_parallel
    used = pipelines * sum(placement.devices(first, end) for first, end in stages)
    if used > chain.devices or pipelines > chain.microbatches:
        return float("inf")
    longest = 0.0
    # slices of lists are summed in a fraction of the time that small arrays take
    per_layer = (layers.forward_s, layers.backward_s, layers.parameter_bytes, layers.activation_bytes)
    forwards, backwards, parameters_of, activations_of = (values.tolist() for values in per_layer)
    for position, (first, end) in enumerate(stages):
        last = position == len(stages) - 1
        parameters = sum(parameters_of[first:end])
        activations = sum(activations_of[first:end])
        stash = float(layers.input_bytes[first]) if chain.recompute else activations
        behind = len(stages) - 1 - position
        # memory is met exactly at times, and these sums round otherwise than those of the solver
        if chain.state * parameters + activations + behind * stash > chain.device_bytes * (1 + 10 * ROUNDING):
            return float("inf")
        forward = sum(forwards[first:end])
        backward = sum(backwards[first:end])
        arrives = float(layers.input_bytes[first]) / chain.bytes_per_s
        leaves = 0.0 if last else float(layers.input_bytes[end]) / chain.bytes_per_s
        # with recomputation a stage repeats its forward while the gradient is on its way; the last stage has no way
        returned = max(forward, leaves) if chain.recompute and not last else leaves
        longest = max(longest, arrives + forward + returned + backward)
    rounds = -(-chain.microbatches // pipelines) + len(stages) - 1
    reduced = sum(parameters_of[: stages[0][1]])
    return longest * rounds + 4 * (pipelines - 1) / pipelines * reduced / chain.bytes_per_s


class _Node(Spec):
    id: int
    parameterSize: _Amount  # noqa: N815  (names of the file format)
    activationSize: _Amount  # noqa: N815
    optimalLatencyFw: _Amount  # noqa: N815
    optimalLatencyBw: _Amount  # noqa: N815
    isTensorParallelized: bool  # noqa: N815
    energy: float | None = None


class _Edge(Spec):
    sourceId: int  # noqa: N815
    destId: int  # noqa: N815
    communicationCost: _Amount  # noqa: N815


_Nodes = Annotated[tuple[_Node, ...], Field(strict=False, min_length=1, max_length=MAX_LAYERS)]
_Edges = Annotated[tuple[_Edge, ...], Field(strict=False, max_length=MAX_LAYERS)]


class _File(Spec):
    maxMemoryPerDevice: Annotated[float, Field(gt=0, le=1e30, strict=False)]  # noqa: N815
    maxDevices: _Count  # noqa: N815
    bandwidth: Annotated[float, Field(gt=0, le=1e30, strict=False)]
    mbsInBatch: _Count  # noqa: N815
    nodes: Annotated[dict[str, _Nodes], Field(min_length=1, max_length=64)]
    edges: dict[str, _Edges]
    activationRecomputation: bool  # noqa: N815
    optimizerAlgorithm: Literal["SGD", "Adam"]  # noqa: N815
    # what other solvers of the format take as given
    fixedPP: Any = None  # noqa: N815
    fixedTMPC: Any = None  # noqa: N815
    fixedDP: Any = None  # noqa: N815
    numTransformerLayers: Any = None  # noqa: N815


def read_chain(path: Path | str) -> Chain:
    """The instance a file holds."""
    return chain_of(read_document(path), str(path))


def chain_of(document: Mapping[str, Any], where: str) -> Chain:
    """The same for a document that is already a mapping."""
    file = validate(_File, document, where)
    try:
        layers = tuple(_layers(width, nodes, file.edges.get(width, ())) for width, nodes in file.nodes.items())
    except InputError as error:
        raise InputError(f"{where}: {error.where}", error.what, error.fix) from None
    return Chain(
        layers=tuple(sorted(layers, key=lambda each: each.width)),
        device_bytes=file.maxMemoryPerDevice,
        devices=file.maxDevices,
        bytes_per_s=file.bandwidth,
        microbatches=file.mbsInBatch,
        recompute=file.activationRecomputation,
        state=3.0 if file.optimizerAlgorithm == "Adam" else 2.0,
    )


def _layers(text: str, nodes: Sequence[_Node], edges: Sequence[_Edge]) -> Layers:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MAX_WIDTH:
        raise InputError("nodes", f"have the width {quoted(text)}", "it should be a whole number of 1 or more")
    order, incoming = _in_order(text, nodes, edges)
    return Layers(
        width=int(text),
        ids=tuple(node.id for node in order),
        forward_s=np.array([node.optimalLatencyFw for node in order]),
        backward_s=np.array([node.optimalLatencyBw for node in order]),
        parameter_bytes=np.array([node.parameterSize for node in order]),
        activation_bytes=np.array([node.activationSize for node in order]),
        input_bytes=np.array([0.0, *incoming]),
        sharded=np.array([node.isTensorParallelized for node in order]),
    )


def _in_order(width: str, nodes: Sequence[_Node], edges: Sequence[_Edge]) -> tuple[list[_Node], list[float]]:
    """Nodes from the first to the last along the edges, and the bytes of each edge."""
    by_id = {node.id: node for node in nodes}
    after = {edge.sourceId: edge for edge in edges}
    wrong = InputError(f"edges.{width}", "do not join the nodes to one chain", "each node but the last has one edge on")
    if len(by_id) != len(nodes) or len(after) != len(edges) or len(edges) != len(nodes) - 1:
        raise wrong
    firsts = by_id.keys() - {edge.destId for edge in edges}
    if len(firsts) != 1:
        raise wrong
    order, incoming = [by_id[firsts.pop()]], list[float]()
    while order[-1].id in after:
        edge = after[order[-1].id]
        if edge.destId not in by_id or len(order) > len(nodes):
            raise wrong
        order.append(by_id[edge.destId])
        incoming.append(edge.communicationCost)
    if len(order) != len(nodes):
        raise wrong
    return order, incoming
