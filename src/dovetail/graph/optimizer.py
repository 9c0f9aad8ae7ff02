"""The optimizer step as operators: one update per weight, reading its gradient and state."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dovetail.frozen import frozen
from dovetail.graph.layer import LayerGraph
from dovetail.graph.operator import Kind, Operand, Operator, Phase, Unit, Work, vector_work
from dovetail.graph.size import as_array, product
from dovetail.graph.tensor import Element, Role, Tensor
from dovetail.graph.verify import verify


@frozen
class UpdateRule:
    """What an optimizer keeps per parameter and how much it computes."""

    states: tuple[str, ...]
    flops: int
    #: bytes of an element of a state, where a framework does not keep it narrower
    state_bytes: float = 4.0
    #: the optimizer of embedding, head and vectors, where matrices of blocks alone have this one
    others: str = ""


OPTIMIZERS: Mapping[str, UpdateRule] = MappingProxyType(
    {
        "sgd": UpdateRule((), 3),
        "momentum": UpdateRule(("momentum",), 5),
        "adamw": UpdateRule(("first_moment", "second_moment"), 14),
        "lion": UpdateRule(("momentum",), 9),
        "adamw_bf16": UpdateRule(("first_moment", "second_moment"), 14, 2.0),
        # a byte, and a float32 scale for each block of 256 elements (Dettmers et al. 2022)
        "adamw_8bit": UpdateRule(("first_moment", "second_moment"), 14, 1 + 4 / 256),
        "muon": UpdateRule(("momentum",), 9, others="adamw"),
    }
)

#: Newton-Schulz iterations that make a momentum orthogonal (Jordan 2024; Liu et al. 2025).
NEWTON_SCHULZ = 5


@frozen
class Orthogonalized:
    """A weight that Muon takes as a matrix: the dims that stay together, and the FLOPs for each parameter."""

    dims: tuple[str, ...]
    flops_per_parameter: float


def orthogonalized(layer: LayerGraph) -> dict[str, Orthogonalized]:
    """The weights of a layer that Muon takes as matrices: those of products, but for embedding and head.

    Each expert has its own. An iteration on m rows and n columns, m of them the fewer, is X·Xᵀ, its square, and one
    product with X: 4·m²·n + 2·m³ FLOPs.
    """
    matrices: dict[str, Orthogonalized] = {}
    for operator in (o for o in layer.operators if o.kind is Kind.CONTRACTION):
        for operand in (o for o in operator.inputs if layer.tensors[o.tensor].role is Role.WEIGHT):
            read = {dim for other in operator.inputs if other is not operand for dim in other.indices}
            written = {dim for output in operator.outputs for dim in output.indices}
            rows = tuple(dim for dim in operand.indices if dim not in written)
            cols = tuple(dim for dim in operand.indices if dim in written and dim not in read)
            if rows and cols and "vocab" not in operand.indices:
                sides = [float(as_array(product(layer.fixed_sizes(), dims))) for dims in (rows, cols)]
                m, n = min(sides), max(sides)
                matrices[operand.tensor] = Orthogonalized(rows + cols, NEWTON_SCHULZ * (4 * m + 2 * m * m / n))
    return matrices


def optimizer_step(forward: LayerGraph, optimizer: str) -> LayerGraph:
    """The graph that updates every trained weight of a layer once."""
    matrices = orthogonalized(forward) if OPTIMIZERS[optimizer].others else {}
    tensors: dict[str, Tensor] = {}
    operators: list[Operator] = []
    inputs: list[str] = []
    for weight in (w for w in forward.weights() if not w.frozen):
        matrix = matrices.get(weight.name)
        name = optimizer if matrix else OPTIMIZERS[optimizer].others or optimizer
        rule, work = OPTIMIZERS[name], vector_work(weight.dims, OPTIMIZERS[name].flops)
        if matrix is not None:
            work += (Work(weight.dims, round(matrix.flops_per_parameter), Unit.MATRIX),)
        gradient = Tensor(f"{weight.name}.grad", weight.dims, Role.WEIGHT_GRADIENT, Element.FLOAT32)
        states = [
            Tensor(f"{weight.name}.{s}", weight.dims, Role.OPTIMIZER_STATE, Element.FLOAT32)
            for s in ("master", *rule.states)
        ]
        results = [Tensor(f"{t.name}.next", t.dims, t.role, t.element) for t in (weight, *states)]
        inputs += [weight.name, gradient.name, *(s.name for s in states)]
        tensors |= {t.name: t for t in (weight, gradient, *states)}
        # the updated tensors take the place of the old ones: declared as activations of this small graph
        tensors |= {t.name: Tensor(t.name, t.dims, Role.ACTIVATION, t.element) for t in results}
        operators.append(
            Operator(
                f"{weight.name}.update",
                Kind.OPTIMIZER,
                name,
                tuple(Operand(t.name, t.dims) for t in (gradient, *states)),
                tuple(Operand(t.name, t.dims) for t in results),
                work=work,
                indivisible=() if matrix is None else matrix.dims,
                phase=Phase.OPTIMIZER,
            )
        )
    outputs = tuple(o.tensor for operator in operators for o in operator.outputs)
    return verify(
        LayerGraph(f"{forward.name}.{optimizer}", forward.sizes, tensors, tuple(operators), tuple(inputs), outputs)
    )
