"""Invariants every graph keeps; run between stages, so a broken graph never reaches a cost model."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.graph.layer import FREE_DIMS, LayerGraph
from dovetail.graph.operator import Kind, Operand, Operator, Phase
from dovetail.graph.size import Size, product, total
from dovetail.graph.tensor import Role


class GraphError(AssertionError):
    """A graph breaks an invariant: a fault of the builder, never of the user."""


#: Sizes that model dims hardly have, so that a rename to a wrong dim shows.
_PROBE: Mapping[str, Size] = {"batch": 3, "seq": 8191}


def verify(graph: LayerGraph, free: Mapping[str, Size] = _PROBE) -> LayerGraph:
    """The same graph, once every invariant has been checked."""
    sizes = graph.resolve(**free)
    for dim, size in graph.sizes.items():
        if dim in FREE_DIMS or (isinstance(size, int) and size < 1):
            raise GraphError(f"{graph.name}: dim {dim} has size {size}, and free dims have none")
    written = set(graph.inputs) | {t.name for t in graph.tensors.values() if _is_given(t.role)}
    names: set[str] = set()
    for operator in graph.operators:
        if operator.name in names:
            raise GraphError(f"{graph.name}: two operators are called {operator.name}")
        names.add(operator.name)
        _check_operator(graph, operator, sizes)
        for operand in operator.inputs:
            if operand.tensor not in written:
                raise GraphError(f"{graph.name}: {operator.name} reads {operand.tensor} before it is written")
        for operand in operator.outputs:
            if operand.tensor in written:
                raise GraphError(f"{graph.name}: {operator.name} writes {operand.tensor} a second time")
            written.add(operand.tensor)
    for name in (*graph.inputs, *graph.outputs, *graph.tensors):
        if name not in written:
            raise GraphError(f"{graph.name}: {name} is never written")
    return graph


def _is_given(role: Role) -> bool:
    return role in (Role.WEIGHT, Role.CONSTANT, Role.OPTIMIZER_STATE)


def _check_operator(graph: LayerGraph, operator: Operator, sizes: Mapping[str, Size]) -> None:
    for operand in (*operator.inputs, *operator.outputs):
        _check_operand(graph, operator, operand, sizes)
    space = set(operator.dims)
    stated = [d for w in operator.work for d in w.dims]
    stated += [d for e in operator.exchanges for d in (e.dim, *e.dims)]
    stated += [*operator.indivisible, *(d for pair in operator.regroups for d in pair)]
    for dim in stated:
        if dim not in space and dim not in graph.sizes:
            raise GraphError(f"{graph.name}: {operator.name} speaks of dim {dim}, which nothing sizes")
    operands = {o.tensor for o in (*operator.inputs, *operator.outputs)}
    for name in operator.saves:
        if name not in operands or graph.tensors[name].role in (Role.WEIGHT, Role.CONSTANT):
            raise GraphError(f"{graph.name}: {operator.name} cannot save {name}")
    if operator.kind is Kind.CONTRACTION:
        _check_contraction(graph, operator)
    if operator.kind in (Kind.CONTRACTION, Kind.ELEMENTWISE, Kind.NORMALISATION, Kind.SOFTMAX):
        missing = set(operator.outputs[0].indices) - {d for o in operator.inputs for d in o.indices}
        if missing:
            raise GraphError(f"{graph.name}: {operator.name} broadcasts over {sorted(missing)}")
    if operator.kind is Kind.MOVEMENT and operator.function == "concatenate":
        _check_concatenation(graph, operator, sizes)


def _check_operand(graph: LayerGraph, operator: Operator, operand: Operand, sizes: Mapping[str, Size]) -> None:
    tensor = graph.tensors.get(operand.tensor)
    if tensor is None:
        raise GraphError(f"{graph.name}: {operator.name} names an unknown tensor {operand.tensor}")
    if len(tensor.dims) != len(operand.indices) or len(set(operand.indices)) != len(operand.indices):
        raise GraphError(f"{graph.name}: {operator.name} indexes {tensor.name}{tensor.dims} by {operand.indices}")
    for tensor_dim, seen in zip(tensor.dims, operand.indices, strict=True):
        if tensor_dim not in sizes or seen not in sizes or sizes[tensor_dim] != sizes[seen]:
            renamed = f"{tensor_dim} of {tensor.name} to {seen}"
            raise GraphError(f"{graph.name}: {operator.name} renames {renamed} of another size")


def _check_contraction(graph: LayerGraph, operator: Operator) -> None:
    output = set(operator.outputs[0].indices)
    for position, operand in enumerate(operator.inputs):
        others = {d for i, o in enumerate(operator.inputs) if i != position for d in o.indices}
        alone = set(operand.indices) - others - output
        # A gradient whose forward input does not have a dim sums it alone; a forward contraction never does.
        if alone and operator.phase is Phase.FORWARD:
            raise GraphError(f"{graph.name}: {operator.name} sums {sorted(alone)} of one operand alone")


def _check_concatenation(graph: LayerGraph, operator: Operator, sizes: Mapping[str, Size]) -> None:
    output = operator.outputs[0].indices
    parts = [product(sizes, (d for d in o.indices if d in operator.indivisible)) for o in operator.inputs]
    whole = product(sizes, (d for d in output if d in operator.indivisible))
    if total(parts) != whole:
        raise GraphError(f"{graph.name}: {operator.name} joins parts of {parts} into {whole}")
