"""Writes a layer graph operator by operator; each method knows one kind's work, splits and saved tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import TypeAlias

from dovetail.graph.function import FUNCTIONS
from dovetail.graph.layer import LayerGraph
from dovetail.graph.mask import Mask
from dovetail.graph.operator import (
    Attribute,
    Exchange,
    Kind,
    Operand,
    Operator,
    matrix_work,
    union,
    vector_work,
)
from dovetail.graph.size import DimSize
from dovetail.graph.tensor import Element, Role, Tensor
from dovetail.graph.verify import verify

Reference: TypeAlias = "str | Operand"
Dims: TypeAlias = "tuple[str, ...]"


class LayerBuilder:
    """Collects tensors and operators; `build` returns the verified graph."""

    def __init__(self, name: str, sizes: Mapping[str, DimSize]) -> None:
        self._name = name
        self.sizes: dict[str, DimSize] = dict(sizes)
        self.tensors: dict[str, Tensor] = {}
        self._operators: list[Operator] = []
        self._inputs: list[str] = []

    def build(self, *outputs: str) -> LayerGraph:
        """The finished graph, verified."""
        used = {d for t in self.tensors.values() for d in t.dims}
        used |= {d for o in self._operators for w in o.work for d in w.dims}
        used |= {d for o in self._operators for operand in (*o.inputs, *o.outputs) for d in operand.indices}
        sizes = {d: s for d, s in self.sizes.items() if d in used or isinstance(s, int)}
        operators, inputs = tuple(self._operators), tuple(self._inputs)
        graph = LayerGraph(self._name, sizes, self.tensors, operators, inputs, outputs)
        # what no gradient reaches (an indexer's projections) saves nothing for a backward
        trained = {o.name for o in graph.reached()}
        trimmed = tuple(o if o.name in trained else replace(o, saves=()) for o in operators)
        return verify(replace(graph, operators=trimmed))

    def size(self, dim: str, size: DimSize) -> str:
        """Gives a dim its size; the same name must always mean the same size."""
        assert self.sizes.setdefault(dim, size) == size, f"{dim} has two sizes"
        return dim

    def tensor(self, name: str, dims: Dims, role: Role = Role.ACTIVATION, element: Element = Element.COMPUTE) -> str:
        """Declares a tensor an operator will write."""
        return self._declare(Tensor(name, dims, role, element))

    def input(self, name: str, dims: Dims, role: Role = Role.ACTIVATION) -> str:
        """Declares what the layer is handed."""
        self._inputs.append(name)
        return self.tensor(name, dims, role, Element.INT64 if role is Role.INDEX else Element.COMPUTE)

    def weight(self, name: str, dims: Dims, *, tied: str = "", active_share: Fraction = Fraction(1)) -> str:
        """Declares a trained tensor."""
        return self._declare(Tensor(name, dims, Role.WEIGHT, tied=tied, active_share=active_share))

    def constant(self, name: str, dims: Dims) -> str:
        """Declares a tensor that is neither computed nor trained by gradients."""
        return self.tensor(name, dims, Role.CONSTANT, Element.FLOAT32)

    def use(self, reference: Reference, renamed: Mapping[str, str] | None = None, **rename: str) -> Operand:
        """The tensor as an operand, some of its dims under another name."""
        if isinstance(reference, Operand):
            return reference
        names = {**(renamed or {}), **rename}
        dims = self.tensors[reference].dims
        return Operand(reference, tuple(names.get(d, d) for d in dims))

    def contraction(
        self,
        name: str,
        left: Reference,
        right: Reference,
        dims: Dims,
        *,
        mask: Mask | None = None,
        element: Element = Element.COMPUTE,
        fusion: str = "",
    ) -> str:
        """Multiplies and sums over the dims the output does not have (einsum)."""
        inputs = (self.use(left), self.use(right))
        output = Operand(self.tensor(name, dims, element=element), dims)
        return self.append(
            Operator(
                name,
                Kind.CONTRACTION,
                "einsum",
                inputs,
                (output,),
                work=matrix_work(union(o.indices for o in inputs)),
                # a constant has no gradient, so what it is multiplied by need not be saved
                saves=self._differentiable(
                    o.tensor
                    for o, other in zip(inputs, inputs[::-1], strict=True)
                    if self.tensors[other.tensor].role is not Role.CONSTANT
                ),
                mask=mask,
                fusion=fusion,
            )
        )

    def elementwise(
        self,
        name: str,
        function: str,
        *references: Reference,
        dims: Dims | None = None,
        element: Element = Element.COMPUTE,
        fusion: str = "",
        attributes: Mapping[str, Attribute] | None = None,
    ) -> str:
        """Applies a function of FUNCTIONS point by point; dims an operand does not have are broadcast."""
        rule = FUNCTIONS[function]
        inputs = tuple(self.use(r) for r in references)
        dims = dims or inputs[0].indices
        outputs = [Operand(self.tensor(name, dims, element=element), dims)]
        saved = [inputs[i].tensor for i in rule.saves_inputs] + ([name] if rule.saves_output else [])
        if rule.saves_mask:
            mask = self.tensor(f"{name}.mask", dims, Role.MASK, Element.BYTE)
            outputs.append(Operand(mask, dims))
            saved.append(mask)
        return self.append(
            Operator(
                name,
                Kind.ELEMENTWISE,
                function,
                inputs,
                tuple(outputs),
                work=vector_work(dims, rule.flops),
                saves=self._differentiable(saved),
                indivisible=dims[-1:] if rule.whole_last_dim else (),
                fusion=fusion,
                attributes=dict(attributes or {}),
            )
        )

    def normalisation(
        self,
        name: str,
        function: str,
        reference: Reference,
        over: Dims,
        weights: tuple[Reference, ...] = (),
        epsilon: float = 1e-5,
    ) -> str:
        """RMS or layer normalisation over dims; saves its statistics in float32."""
        values = {"rms": 1, "layer": 2}[function]
        source = self.use(reference)
        rest = tuple(d for d in source.indices if d not in over)
        outputs = [Operand(self.tensor(name, source.indices), source.indices)]
        saved = [source.tensor]
        for statistic_name in ("scale", "mean")[:values]:
            statistic = self.tensor(f"{name}.{statistic_name}", rest, Role.STATISTIC, Element.FLOAT32)
            outputs.append(Operand(statistic, rest))
            saved.append(statistic)
        return self.append(
            Operator(
                name,
                Kind.NORMALISATION,
                function,
                (source, *(self.use(w) for w in weights)),
                tuple(outputs),
                work=vector_work(source.indices, 4 + 3 * (values - 1)),
                saves=tuple(saved),
                exchanges=tuple(Exchange(d, rest, values) for d in over),
                attributes={"epsilon": epsilon},
            )
        )

    def softmax(
        self, name: str, reference: Reference, over: str, *, mask: Mask | None = None, scale: float = 1.0
    ) -> str:
        """Softmax over one dim (scores outside the mask count as minus infinity)."""
        source = self.use(reference)
        rest = tuple(d for d in source.indices if d != over)
        output = Operand(self.tensor(name, source.indices), source.indices)
        return self.append(
            Operator(
                name,
                Kind.SOFTMAX,
                "softmax",
                (source,),
                (output,),
                work=vector_work(source.indices, 5),
                saves=(name,),
                exchanges=(Exchange(over, rest, 2),),
                mask=mask,
                attributes={"scale": scale},
            )
        )

    def embedding(self, name: str, table: Reference, ids: Reference, dims: Dims) -> str:
        """Looks rows of a table up; splitting the rows leaves partial sums."""
        inputs = (self.use(ids), self.use(table))
        output = Operand(self.tensor(name, dims), dims)
        saved = self._differentiable(o.tensor for o in inputs)
        return self.append(Operator(name, Kind.EMBEDDING, "lookup", inputs, (output,), saves=saved))

    def movement(self, name: str, function: str, references: tuple[Reference, ...], dims: Dims, along: Dims) -> str:
        """Concatenates along a dim or slices it: bytes move, nothing is computed."""
        inputs = tuple(self.use(r) for r in references)
        output = Operand(self.tensor(name, dims), dims)
        return self.append(Operator(name, Kind.MOVEMENT, function, inputs, (output,), indivisible=along))

    def loss(self, name: str, logits: Reference, labels: Reference, vocab: str) -> str:
        """Mean cross entropy; saves float32 probabilities, as stock frameworks do."""
        inputs = (self.use(logits), self.use(labels))
        points = inputs[0].indices
        self.tensor(name, (), Role.LOSS, Element.FLOAT32)
        probabilities = self.tensor(f"{name}.probabilities", points, element=Element.FLOAT32)
        rest = tuple(d for d in points if d != vocab)
        return self.append(
            Operator(
                name,
                Kind.LOSS,
                "cross_entropy",
                inputs,
                (Operand(name, ()), Operand(probabilities, points)),
                work=vector_work(points, 5),
                saves=(probabilities, inputs[1].tensor),
                exchanges=(Exchange(vocab, rest, 3),),
            )
        )

    def append(self, operator: Operator) -> str:
        """Adds an operator made by hand; returns the name of its first output."""
        self._operators.append(operator)
        return operator.outputs[0].tensor

    def _declare(self, tensor: Tensor) -> str:
        assert tensor.name not in self.tensors, f"{tensor.name} is declared twice"
        self.tensors[tensor.name] = tensor
        return tensor.name

    def _differentiable(self, names: Iterable[str]) -> tuple[str, ...]:
        given = (Role.WEIGHT, Role.CONSTANT)
        return tuple(n for n in dict.fromkeys(names) if self.tensors[n].role not in given)
