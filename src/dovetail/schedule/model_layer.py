"""A layer of a model as work to schedule: one direction, under tensor parallelism with sequence parallelism."""

from __future__ import annotations

from typing import Literal

from dovetail.cost.operators import PlacedWork, local_sizes
from dovetail.errors import InputError, one_of, quoted
from dovetail.graph.size import as_array
from dovetail.layout import Strategy, place_layer
from dovetail.layout.mesh import Mesh
from dovetail.models import Job

Direction = Literal["forward", "backward"]


def commonest_layer(job: Job) -> str:
    """The most frequent layer class of a model."""
    counts = job.graph().counts()
    return max(counts, key=lambda name: counts[name])


def model_layer_work(job: Job, layer: str, direction: Direction, tensor_parallel: int, micro_batch: int) -> PlacedWork:
    """The operators of a layer class on one chip, with their local sizes."""
    layers = job.graph().layers
    if layer not in layers:
        raise InputError("layer", f"{quoted(layer)} is not a layer class of {job.model.name}", one_of(layers, layer))
    graph, axes = layers[layer], {"tensor": tensor_parallel} if tensor_parallel > 1 else {}
    placed = place_layer(graph, Strategy(Mesh(tensor=tuple(axes)), sequence_parallel=bool(axes)))
    operators = placed.forward if direction == "forward" else placed.backward
    sizes = graph.resolve(batch=micro_batch, seq=job.seq_len)
    for local in (local_sizes(operator, sizes, axes) for operator in operators):
        uneven = next((dim for dim, size in local.items() if float(as_array(size)) % 1), None)
        if uneven is not None:
            what = f"{tensor_parallel} does not divide {uneven}, {float(as_array(sizes[uneven])):,.0f}"
            raise InputError("tensor_parallel", what, "give a divisor of this dim")
    return PlacedWork(operators, placed.tensors, sizes, axes, job.element_bytes())
