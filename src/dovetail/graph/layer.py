"""A layer class as a graph: operators in order over named tensors, analysed once however often it repeats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dovetail.frozen import frozen
from dovetail.graph.operator import Operator, union
from dovetail.graph.size import DimSize, Size, Sizes, resolve
from dovetail.graph.tensor import Role, Tensor

#: The dims whose sizes a job sets; every other dim is the model's.
FREE_DIMS = ("batch", "seq")


@frozen
class LayerGraph:
    """Operators in an order in which they can run; every tensor is written once."""

    name: str
    sizes: Mapping[str, DimSize]
    tensors: Mapping[str, Tensor]
    operators: tuple[Operator, ...]
    #: what the layer is handed (weights apart) and what it hands on
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def resolve(self, **free: Size) -> dict[str, Size]:
        """Every dim's size for a batch and a sequence length."""
        return resolve(self.sizes, free)

    def weights(self) -> Iterator[Tensor]:
        """Trained and frozen weights, in order of definition."""
        return (t for t in self.tensors.values() if t.role is Role.WEIGHT)

    def saved(self) -> tuple[Tensor, ...]:
        """What stays in memory from forward to backward when nothing is recomputed."""
        names = union(operator.saves for operator in self.operators)
        return tuple(self.tensors[name] for name in names)

    def stream(self, names: tuple[str, ...]) -> tuple[Tensor, ...]:
        """Those of the layer's inputs or outputs that the chain of layers hands on."""
        return tuple(self.tensors[n] for n in names if self.tensors[n].role is Role.ACTIVATION)

    def reached(self) -> tuple[Operator, ...]:
        """The operators a gradient comes back to: not an indexer, nor what serves an indexer alone."""
        differentiable, reached = (Role.ACTIVATION, Role.LOSS), set(self.outputs)
        operators: list[Operator] = []
        for operator in reversed(self.operators):
            written = {o.tensor for o in operator.outputs} & reached
            if any(self.tensors[name].role in differentiable for name in written):
                reached |= {o.tensor for o in operator.inputs}
                operators.append(operator)
        return tuple(reversed(operators))

    def fixed_sizes(self) -> Sizes:
        """The dims whose size needs no job: enough to count weights."""
        return {dim: size for dim, size in self.sizes.items() if isinstance(size, int)}
