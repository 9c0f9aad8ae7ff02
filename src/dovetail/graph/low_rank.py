"""Low-rank adaptation of a layer: its weights frozen, small trained products beside some of its linear layers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from dovetail.graph.differentiate import needing_gradient
from dovetail.graph.function import FUNCTIONS
from dovetail.graph.layer import LayerGraph
from dovetail.graph.operator import Kind, Operand, Operator, matrix_work, union, vector_work
from dovetail.graph.tensor import Element, Role, Tensor
from dovetail.graph.verify import verify

#: The dim between the two products of an adapter.
RANK = "lora_rank"


def linear_layers(graph: LayerGraph) -> dict[str, Operator]:
    """The products with a weight of their own that a gradient comes back to, by name."""
    return {o.name: o for o in graph.reached() if o.kind is Kind.CONTRACTION and f"{o.name}.weight" in _read(o, graph)}


def adapted(graph: LayerGraph, targets: Collection[str], rank: int, *, quantized: bool) -> LayerGraph:
    """A layer with adapters of a rank beside its `targets`, and all other weights frozen (Hu et al. 2021).

    `quantized`: linear layers store their frozen weights in 4 bits (Dettmers et al. 2023).
    """
    linear = linear_layers(graph)
    narrow = {f"{name}.weight" for name in linear} if quantized else set[str]()
    tensors = {name: _frozen(tensor, narrow) for name, tensor in graph.tensors.items()}
    operators: list[Operator] = []
    renamed: dict[str, str] = {}
    for operator in graph.operators:
        operators.append(_renamed(operator, renamed))
        name = operator.name.removesuffix(".biased")
        biased = f"{name}.biased" in graph.tensors
        if name in linear and name in targets and operator.name == (f"{name}.biased" if biased else name):
            added = _adapter(replace(linear[name], inputs=_renamed(linear[name], renamed).inputs), operator, tensors)
            operators += added
            renamed[operator.outputs[0].tensor] = added[-1].name
    sizes = {**graph.sizes, RANK: rank} if renamed else graph.sizes
    outputs = tuple(renamed.get(name, name) for name in graph.outputs)
    result = replace(graph, sizes=sizes, tensors=tensors, operators=tuple(operators), outputs=outputs)
    needed = needing_gradient(result)
    return verify(replace(result, operators=tuple(_saving(o, tensors, needed) for o in operators)))


def _read(operator: Operator, graph: LayerGraph) -> set[str]:
    return {o.tensor for o in operator.inputs if graph.tensors[o.tensor].role is Role.WEIGHT}


def _frozen(tensor: Tensor, narrow: Collection[str]) -> Tensor:
    if tensor.role is not Role.WEIGHT:
        return tensor
    return replace(tensor, frozen=True, element=Element.NF4 if tensor.name in narrow else tensor.element)


def _renamed(operator: Operator, names: Mapping[str, str]) -> Operator:
    """An operator that reads and saves what took the place of some tensors."""
    inputs = tuple(replace(o, tensor=names.get(o.tensor, o.tensor)) for o in operator.inputs)
    return replace(operator, inputs=inputs, saves=tuple(names.get(name, name) for name in operator.saves))


def _adapter(product: Operator, last: Operator, tensors: dict[str, Tensor]) -> list[Operator]:
    """The products to the rank and back, scaled and added to what the linear layer made; their tensors are declared."""
    name, (source, weight), result = product.name, product.inputs, last.outputs[0]
    grown = tuple(d for d in weight.indices if d not in source.indices)
    each = tuple(d for d in weight.indices if d in source.indices and d in result.indices)
    summed = tuple(d for d in weight.indices if d in source.indices and d not in result.indices)
    outer = tuple(d for d in result.indices if d not in grown)
    share = tensors[weight.tensor].active_share
    operators: list[Operator] = []
    before = source
    for part, dims, out in (
        ("lora_a", (*each, *summed, RANK), (*outer, RANK)),
        ("lora_b", (*each, RANK, *grown), result.indices),
    ):
        matrix = Tensor(f"{name}.{part}.weight", dims, Role.WEIGHT, active_share=share)
        made = Tensor(f"{name}.{part}", out)
        tensors |= {matrix.name: matrix, made.name: made}
        inputs, after = (before, Operand(matrix.name, dims)), Operand(made.name, out)
        work = matrix_work(union(o.indices for o in inputs))
        saves = (before.tensor,)
        operators.append(Operator(made.name, Kind.CONTRACTION, "einsum", inputs, (after,), work=work, saves=saves))
        before = after
    operators += _scaled_sum(name, result, before, tensors)
    return operators


def _scaled_sum(name: str, result: Operand, change: Operand, tensors: dict[str, Tensor]) -> Iterator[Operator]:
    element = tensors[result.tensor].element
    scaled, both = (Operand(f"{name}.{word}", result.indices) for word in ("lora_scaled", "adapted"))
    for function, inputs, output in (("scale", (change,), scaled), ("add", (result, scaled), both)):
        tensors[output.tensor] = Tensor(output.tensor, output.indices, element=element)
        work = vector_work(output.indices, FUNCTIONS[function].flops)
        yield Operator(output.tensor, Kind.ELEMENTWISE, function, inputs, (output,), work=work)


def _saving(operator: Operator, tensors: Mapping[str, Tensor], needed: Collection[str]) -> Operator:
    """An operator without what it saved for the gradients of frozen weights."""
    if not any(o.tensor in needed for o in operator.inputs):
        return replace(operator, saves=())
    linear = operator.kind in (Kind.CONTRACTION, Kind.CONVOLUTION) or operator.function == "multiply"
    if linear and any(tensors[o.tensor].frozen for o in operator.inputs):
        return replace(operator, saves=())
    return operator
