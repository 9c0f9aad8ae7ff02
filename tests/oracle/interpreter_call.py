"""An operator about to run, and arrays over named dims: what every rule of the interpreter is written with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from string import ascii_letters
from typing import Any

import numpy as np

from dovetail.graph import Mask, Operator, Span

Array = np.ndarray
Dims = tuple[str, ...]
Rule = Callable[..., tuple[Array, ...]]


@dataclass(frozen=True)
class Call:
    """One operator with the sizes of its dims; rules take it and the arrays of the operator's inputs."""

    operator: Operator
    sizes: Mapping[str, int]

    @property
    def inputs(self) -> tuple[Dims, ...]:
        return tuple(o.indices for o in self.operator.inputs)

    @property
    def outputs(self) -> tuple[Dims, ...]:
        return tuple(o.indices for o in self.operator.outputs)

    @property
    def position(self) -> int:
        """The forward input a gradient is for: `einsum.grad1` is for input 1."""
        return int(self.operator.function.rsplit(".grad", 1)[1])

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.operator.attributes.get(name, default)

    def shape(self, dims: Dims) -> tuple[int, ...]:
        return tuple(self.sizes[d] for d in dims)

    def spread(self, array: Array, dims: Dims, space: Dims) -> Array:
        """The array over a larger space, repeated along the dims it lacks."""
        return np.broadcast_to(align(array, dims, space), self.shape(space))

    def gather(self, array: Array, space: Dims, dims: Dims) -> Array:
        """The adjoint of `spread`: sums along the dims of the space that the result lacks."""
        full = np.broadcast_to(array, self.shape(space))
        kept = tuple(d for d in space if d in dims)
        summed = full.sum(axis=tuple(i for i, d in enumerate(space) if d not in dims))
        return np.transpose(summed, [kept.index(d) for d in dims])

    def select(self, targets: tuple[Dims, ...], gradients: tuple[Array | None, ...]) -> tuple[Array, ...]:
        """Of the gradients of all inputs those this operator writes, found by the indices of its outputs."""
        matches = [
            chosen
            for chosen in combinations(range(len(targets)), len(self.outputs))
            if all(targets[i] == out for i, out in zip(chosen, self.outputs, strict=True))
        ]
        assert len(matches) == 1, f"{self.operator.name}: which inputs it is for has {len(matches)} answers"
        found = [gradients[i] for i in matches[0]]
        return tuple(g for g in found if g is not None)


def align(array: Array, dims: Dims, space: Dims) -> Array:
    """The array with its axes in the order of the space, length one along the dims it lacks."""
    assert set(dims) <= set(space), f"{dims} does not fit into {space}"
    ordered = np.transpose(array, [dims.index(d) for d in space if d in dims])
    return np.expand_dims(ordered, tuple(i for i, d in enumerate(space) if d not in dims))


def contract(left: Array, left_dims: Dims, right: Array, right_dims: Dims, out: Dims) -> Array:
    """Einsum over names."""
    letters: dict[str, str] = {}
    for dim in (*left_dims, *right_dims, *out):
        letters.setdefault(dim, ascii_letters[len(letters)])
    a, b, c = ("".join(letters[d] for d in dims) for dims in (left_dims, right_dims, out))
    return np.einsum(f"{a},{b}->{c}", left, right)


def only(dims: Dims, absent_from: Dims) -> str:
    """The one dim that the other operand lacks."""
    (found,) = (d for d in dims if d not in absent_from)
    return found


def visible(mask: Mask, queries: int, keys: int) -> Array:
    """Query × key pairs inside a mask (a top-k mask is left to the keys chosen)."""
    i, j = np.arange(queries)[:, None], np.arange(keys)[None, :]
    seen = (j <= i) if mask.causal else np.ones((queries, keys), dtype=bool)
    if mask.span is Span.WINDOW:
        seen = seen & (np.abs(i - j) < mask.width)
    if mask.span is Span.CHUNK:
        seen = seen & (i // mask.width == j // mask.width)
    return seen
