"""The optimizer step as operators: one update per weight, reading its gradient and state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dovetail.graph.layer import LayerGraph
from dovetail.graph.operator import Kind, Operand, Operator, Phase, vector_work
from dovetail.graph.tensor import Element, Role, Tensor
from dovetail.graph.verify import verify


@dataclass(frozen=True, slots=True)
class UpdateRule:
    """What an optimizer keeps per parameter (float32 each) and how much it computes."""

    states: tuple[str, ...]
    flops: int


OPTIMIZERS: Mapping[str, UpdateRule] = MappingProxyType(
    {
        "sgd": UpdateRule((), 3),
        "momentum": UpdateRule(("momentum",), 5),
        "adamw": UpdateRule(("first_moment", "second_moment"), 14),
        "lion": UpdateRule(("momentum",), 9),
    }
)


def optimizer_step(forward: LayerGraph, optimizer: str) -> LayerGraph:
    """The graph that updates every trained weight of a layer once."""
    rule = OPTIMIZERS[optimizer]
    tensors: dict[str, Tensor] = {}
    operators: list[Operator] = []
    inputs: list[str] = []
    for weight in (w for w in forward.weights() if not w.frozen):
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
                optimizer,
                tuple(Operand(t.name, t.dims) for t in (gradient, *states)),
                tuple(Operand(t.name, t.dims) for t in results),
                work=vector_work(weight.dims, rule.flops),
                phase=Phase.OPTIMIZER,
            )
        )
    outputs = tuple(o.tensor for operator in operators for o in operator.outputs)
    return verify(
        LayerGraph(f"{forward.name}.{optimizer}", forward.sizes, tensors, tuple(operators), tuple(inputs), outputs)
    )
