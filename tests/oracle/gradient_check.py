"""Checks a layer's derived backward: gradients against finite differences, saved tensors, phases."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from interpreter import execute, run_sizes

from dovetail.graph import Backward, Kind, LayerGraph, Operand, Operator, Phase, Role, differentiate

Array = np.ndarray
Values = dict[str, Array]

STEP = 3e-5
RELATIVE = 1e-6
#: rounding of the differences, as a part of the sum they are taken of
ABSOLUTE = 1e-10
BATCH, SEQ = 2, 5


def check(graph: LayerGraph, seed: int = 0, *, size: float = 1.0, batch: int = BATCH, seq: int = SEQ) -> None:
    """Everything at once; inputs are normal with standard deviation `size`."""
    backward = differentiate(graph)
    check_saved(graph, backward)
    check_phases(backward)
    check_gradients(graph, backward, seed, size=size, batch=batch, seq=seq)


def check_saved(graph: LayerGraph, backward: Backward) -> None:
    """The backward reads exactly what the forward saves, beside weights, constants and seeds."""
    given = (Role.WEIGHT, Role.CONSTANT)
    read = {o.tensor for operator in backward.graph.operators for o in operator.inputs} & set(graph.tensors)
    read -= {n for n in read if graph.tensors[n].role in given}
    saved = {t.name for t in graph.saved()}
    assert read == saved, f"{graph.name}: reads unsaved {sorted(read - saved)}, saves unread {sorted(saved - read)}"
    assert read == set(backward.graph.inputs) - set(backward.seeds.values()), graph.name


def check_phases(backward: Backward) -> None:
    """An operator that writes nothing but weight gradients belongs to their phase, any other does not."""
    for operator in backward.graph.operators:
        roles = {backward.graph.tensors[o.tensor].role for o in operator.outputs}
        only_weights = roles == {Role.WEIGHT_GRADIENT}
        assert operator.phase is (Phase.WEIGHT_GRADIENT if only_weights else Phase.INPUT_GRADIENT), operator.name


def check_gradients(graph: LayerGraph, backward: Backward, seed: int, *, size: float, batch: int, seq: int) -> None:
    """Along a random direction of each input and weight, its gradient is the slope of a random projection."""
    rng = np.random.default_rng(seed)
    sizes = run_sizes(graph, batch, seq)
    given = given_values(graph, sizes, rng, size)
    values = execute(graph, given, sizes)
    weights = {n: rng.standard_normal(values[n].shape) for n in backward.seeds}
    seeds = {backward.seeds[n]: w for n, w in weights.items()}
    # a backward graph gets no more than it says it reads
    readable = (set(backward.graph.inputs) | set(given)) & set(backward.graph.tensors)
    kept = {n: v for n, v in values.items() if n in readable}
    gradients = execute(backward.graph, kept | seeds, sizes)
    magnitude = 1 + sum(float(np.abs(w * values[n]).sum()) for n, w in weights.items())
    for name in (*graph.inputs, *(w.name for w in graph.weights())):
        if graph.tensors[name].role is Role.INDEX:
            continue
        direction = rng.standard_normal(given[name].shape)
        direction /= max(float(np.linalg.norm(direction)), 1e-300)
        slope = _slope(graph, given, sizes, (name, direction), weights, _choices(graph, values))
        gradient = gradients[backward.gradients[name]] if name in backward.gradients else np.zeros(())
        assert gradient.shape in (given[name].shape, ()), name
        found = float((gradient * direction).sum())
        tolerance = RELATIVE * max(abs(slope), abs(found)) + ABSOLUTE * magnitude
        assert abs(found - slope) <= tolerance, f"{graph.name}: {name}: {found} derived, {slope} measured"


def _slope(
    graph: LayerGraph,
    given: Values,
    sizes: Mapping[str, int],
    along: tuple[str, Array],
    weights: Mapping[str, Array],
    choices: Values,
) -> float:
    """Central differences of fourth order of Σ weights · outputs."""
    name, direction = along
    total = 0.0
    for steps, factor in ((1, 8 / 12), (-1, -8 / 12), (2, -1 / 12), (-2, 1 / 12)):
        moved = given | {name: given[name] + steps * STEP * direction}
        values = execute(graph, moved, sizes)
        for tensor, choice in choices.items():
            assert np.array_equal(values[tensor], choice), f"{graph.name}: {tensor} flips: choose another seed"
        total += factor * sum(float((w * values[n]).sum()) for n, w in weights.items())
    return total / STEP


def _choices(graph: LayerGraph, values: Values) -> Values:
    return {n: v for n, v in values.items() if graph.tensors[n].role in (Role.INDEX, Role.MASK)}


def given_values(graph: LayerGraph, sizes: Mapping[str, int], rng: np.random.Generator, size: float) -> Values:
    """Random inputs, weights and constants; an index is drawn from the rows it looks up."""
    values: Values = {}
    for tensor in graph.tensors.values():
        if tensor.name not in graph.inputs and tensor.role not in (Role.WEIGHT, Role.CONSTANT):
            continue
        shape = tuple(sizes[d] for d in tensor.dims)
        if tensor.role is Role.INDEX:
            values[tensor.name] = rng.integers(0, sizes[_rows(graph, tensor.name)], shape)
        else:
            values[tensor.name] = size * rng.standard_normal(shape)
    return values


def _rows(graph: LayerGraph, index: str) -> str:
    """The dim an index input points into: a table's rows, or the classes of a loss."""
    for operator in graph.operators:
        for operand in operator.inputs:
            if operand.tensor == index:
                return _pointed_into(operator, operand)
    raise AssertionError(f"{graph.name}: nothing reads {index}")


def _pointed_into(operator: Operator, ids: Operand) -> str:
    ids_dims, out = set(ids.indices), set(operator.outputs[0].indices)
    other = next(o for o in operator.inputs if o.tensor != ids.tensor)
    if operator.kind is Kind.LOSS:
        return next(d for d in other.indices if d not in ids_dims)
    return next(d for d in other.indices if d not in out)
