"""Random layers as the recompute frontier sees them: operators, versions of tensors, bytes and seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from hypothesis import strategies as st

from dovetail.graph import Kind, LayerGraph, Operand, Operator, Role, Tensor
from dovetail.profile.layer import LayerProfile
from dovetail.profile.version import Version

Draw = Callable[..., Any]

#: Seconds are whole multiples, so that their sums are exact whatever the order.
TICK = 2.0**-20
GROUPS = ("tensor", "context")
MOST = 12


def minimal_profile(**known: Any) -> LayerProfile:
    """A profile that knows these fields; the others are zero or empty."""
    mappings = {field.name for field in fields(LayerProfile) if "Mapping" in str(field.type)}
    zeros = {f.name: {} if f.name in mappings else np.zeros(()) for f in fields(LayerProfile)}
    return LayerProfile(**{**zeros, **known})


class Sketch:
    """A layer under construction: which tensors each operator reads and writes."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.handed = [f"x{number}" for number in range(draw(st.integers(1, 2)))]
        self.reads: list[list[str]] = []
        self.writes: list[list[str]] = []

    def operator(self, sources: Sequence[str]) -> str:
        """One more operator; what it hands on is its first result."""
        number = len(self.reads)
        self.reads.append(list(dict.fromkeys(sources)))
        self.writes.append([f"t{number}.{part}" for part in range(self.draw(st.sampled_from([1, 1, 1, 2, 3])))])
        return self.draw(st.sampled_from(self.writes[-1]))

    def anything(self) -> str:
        """A tensor that is there by now."""
        return self.draw(st.sampled_from([*self.handed, *(name for names in self.writes for name in names)]))

    def series_parallel(self, count: int, source: str) -> str:
        """`count` operators from a tensor to the one returned: in series, or in branches that join."""
        if count == 1:
            return self.operator([source])
        first = self.draw(st.integers(1, count - 1))
        if count == 2 or self.draw(st.booleans()):
            return self.series_parallel(count - first, self.series_parallel(first, source))
        first = min(first, count - 2)
        ends = [self.series_parallel(part, source) for part in (first, count - 1 - first)]
        return self.operator(ends)

    def arbitrary(self, count: int) -> None:
        """Operators that read any one to three tensors before them, the last ones more often."""
        for _ in range(count):
            newest = self.writes[-1][0] if self.writes and self.draw(st.booleans()) else self.anything()
            self.operator([newest, *(self.anything() for _ in range(self.draw(st.integers(0, 2))))])


def versions_of(draw: Draw, tensor: str, readers: list[str], saved: bool, largest: int) -> list[Version]:
    """The tensor as it is written, and up to two layouts made of it or of each other."""
    count = draw(st.sampled_from([1, 1, 2, 3]))
    read = [set(draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=2))) for _ in readers]
    kept = draw(st.sets(st.integers(0, count - 1), min_size=1)) if saved else set[int]()
    made_of = [None, *(draw(st.integers(0, number - 1)) for number in range(1, count))]
    return [
        Version(
            tensor=tensor,
            number=number,
            made_of=before,
            gathered=before is not None and draw(st.booleans()),
            readers=tuple(name for name, numbers in zip(readers, read, strict=True) if number in numbers),
            saved=number in kept,
            bytes=np.array(float(draw(st.integers(largest // 10, largest)))),
            made_s={} if before is None else _seconds(draw),
        )
        for number, before in enumerate(made_of)
    ]


def _seconds(draw: Draw) -> dict[str, Any]:
    groups = draw(st.sets(st.sampled_from(GROUPS)))
    return {group: np.array(draw(st.integers(0, 5)) * TICK) for group in sorted(groups)}


def _graph(draw: Draw, sketch: Sketch) -> LayerGraph:
    """Kinds and saved tensors: of what was read or written by the operator that saves it."""
    operators: list[Operator] = []
    weights: list[Tensor] = []
    for number, (reads, writes) in enumerate(zip(sketch.reads, sketch.writes, strict=True)):
        kind = draw(st.sampled_from([Kind.CONTRACTION, Kind.COMBINE, Kind.ELEMENTWISE]))
        saves = [name for name in (*reads, *writes) if draw(st.sampled_from([True, True, False]))]
        if kind is Kind.CONTRACTION and draw(st.booleans()):
            weights.append(Tensor(f"w{number}", (), Role.WEIGHT))
            reads = [*reads, weights[-1].name]
        inputs, outputs = (tuple(Operand(name, ()) for name in names) for names in (reads, writes))
        operators.append(Operator(f"o{number}", kind, "", inputs, outputs, saves=tuple(saves)))
    names = [*sketch.handed, *(name for writes in sketch.writes for name in writes)]
    tensors = {tensor.name: tensor for tensor in (*(Tensor(name, ()) for name in names), *weights)}
    handed_on = dict.fromkeys([sketch.anything(), sketch.writes[-1][0]])
    return LayerGraph("layer", {}, tensors, tuple(operators), tuple(sketch.handed), tuple(handed_on))


@st.composite
def random_layers(draw: Draw, most: int = MOST) -> tuple[LayerGraph, LayerProfile]:
    sketch, count = Sketch(draw), draw(st.integers(4, most) | st.integers(1, most))
    # small numbers make equal labels, where a mistake would hide; large ones make long frontiers
    largest = draw(st.sampled_from([4, 60]))
    if draw(st.booleans()):
        sketch.series_parallel(count, sketch.handed[0])
    else:
        sketch.arbitrary(count)
    graph = _graph(draw, sketch)
    saved = {name for operator in graph.operators for name in operator.saves}
    versions: list[Version] = []
    for name in (tensor.name for tensor in graph.tensors.values() if tensor.role is not Role.WEIGHT):
        readers = [o.name for o in graph.operators if name in (i.tensor for i in o.inputs)]
        # what a layer hands on is read by what is no operator of it
        readers += [graph.name] if name in graph.outputs else []
        versions += versions_of(draw, name, readers, name in saved, largest)
    if draw(st.booleans()):
        versions.sort(key=lambda version: version.number)
    names = [o.name for o in graph.operators]
    exchanging = draw(st.sets(st.sampled_from(names), max_size=2))
    profile = minimal_profile(
        versions=tuple(versions),
        operator_s={name: np.array(draw(st.integers(largest // 10, largest)) * TICK) for name in names},
        exchange_s={name: _seconds(draw) for name in sorted(exchanging)},
        kernels={name: np.ones(()) for name in names},
    )
    return graph, profile


#: How much of a group's collectives costs time; None: all of it.
EXPOSED: st.SearchStrategy[Mapping[str, float] | None] = st.sampled_from(
    [None, {}, {"tensor": 0.5}, {"tensor": 0.0, "context": 1.0}, {"tensor": 0.25, "context": 0.0}]
)

#: The width products keep their inputs in, over the width these are written in.
OPERAND_SHARES = st.sampled_from([1.0, 0.5])
