"""What choices of operators to compute again lead to, written from the definition alone, for many choices at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.cost.operators import runs_narrow
from dovetail.graph import Kind, LayerGraph
from dovetail.profile.layer import LayerProfile

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Entry:
    """A version on its own: plain numbers, and the other versions it hangs on by their place in a list."""

    tensor: str
    made_of: int | None
    gathered: bool
    needed: bool
    readers: frozenset[str]
    bytes: float
    made_s: float


class Forward:
    """A layer's operators in order, each with the versions it writes, and the versions the layer is handed."""

    def __init__(
        self,
        graph: LayerGraph,
        profile: LayerProfile,
        exposed: Mapping[str, float] | None = None,
        operand_share: float = 1.0,
    ) -> None:
        weigh = exposed or {}

        def seconds(parts: Mapping[str, NDArray[np.float64]]) -> float:
            return sum(float(s) * weigh.get(group, 1.0) for group, s in parts.items())

        places = {(v.tensor, v.number): place for place, v in enumerate(profile.versions)}
        widths = _widths(graph, operand_share)
        # of what the layer hands on, its own name is among the readers: an operator of that name need not be one
        inputs = {t: {o.name for o in graph.operators if any(i.tensor == t for i in o.inputs)} for t in graph.tensors}
        self.entries = [
            Entry(
                tensor=v.tensor,
                made_of=None if v.made_of is None else places[v.tensor, v.made_of],
                gathered=v.gathered,
                needed=v.saved and widths[v.tensor] > 0,
                readers=frozenset(v.readers) & inputs[v.tensor],
                bytes=float(v.bytes) * (widths[v.tensor] if v.saved and widths[v.tensor] > 0 else 1.0),
                made_s=seconds(v.made_s),
            )
            for v in profile.versions
        ]
        self.operators = [operator.name for operator in graph.operators]
        self.operator_s = {
            name: float(profile.operator_s[name]) + seconds(profile.exchange_s.get(name, {})) for name in self.operators
        }
        maker = {operand.tensor: operator.name for operator in graph.operators for operand in operator.outputs}
        #: the versions of what an operator writes; under None those of what the layer is handed
        self.written: dict[str | None, list[int]] = {name: [] for name in (*self.operators, None)}
        for place, entry in enumerate(self.entries):
            self.written[maker.get(entry.tensor)].append(place)

    def way_back(self, place: int) -> list[int]:
        """A version, what it is made of, and so on to the one that is made of none."""
        way = [place]
        while (before := self.entries[way[-1]].made_of) is not None:
            way.append(before)
        return way

    def held_by(self, place: int) -> tuple[list[int], int]:
        """Of a version that is wanted of a held tensor: the versions made again, and the one that stays."""
        again: list[int] = []
        for step in self.way_back(place):
            if not self.entries[step].gathered or self.entries[step].needed:
                return again, step
            again.append(step)
        raise AssertionError("a tensor as it was written is not gathered")

    def labels(self, again: Mapping[str, Bools], count: int) -> Floats:
        """Kept bytes, footprint and seconds of `count` choices, a row each; `again`: of each operator, in which."""
        wanted = [np.full(count, entry.needed) for entry in self.entries]
        held = [np.zeros(count, dtype=bool) for _ in self.entries]
        paid = [np.zeros(count, dtype=bool) for _ in self.entries]
        workspace, seconds = np.zeros(count), np.zeros(count)
        nothing = np.zeros(count, dtype=bool)
        for name in (*reversed(self.operators), None):
            own = self.written[name]
            any_wanted = np.logical_or.reduce([nothing, *(wanted[place] for place in own)])
            repeated = nothing if name is None else again[name] & any_wanted
            for place in own:
                for step in self.way_back(place):
                    paid[step] |= wanted[place] & repeated
                made, kept = self.held_by(place)
                for step in made:
                    paid[step] |= wanted[place] & ~repeated
                held[kept] |= wanted[place] & ~repeated
                if self.entries[place].needed:
                    workspace += repeated * self.entries[place].bytes
            if name is not None:
                seconds += repeated * self.operator_s[name]
                for place, entry in enumerate(self.entries):
                    if name in entry.readers:
                        wanted[place] |= repeated
        saved_bytes = sum((h * e.bytes for h, e in zip(held, self.entries, strict=True)), np.zeros(count))
        seconds = sum((p * e.made_s for p, e in zip(paid, self.entries, strict=True)), seconds)
        return np.column_stack([saved_bytes, saved_bytes + workspace, seconds])

    def label(self, again: Iterable[str]) -> tuple[float, float, float]:
        """Kept bytes, footprint and seconds of one choice."""
        chosen = set(again)
        (row,) = self.labels({name: np.array([name in chosen]) for name in self.operators}, 1).tolist()
        return row[0], row[1], row[2]

    def every_label(self) -> Floats:
        """One row of labels for each subset of the operators."""
        subsets = np.arange(2 ** len(self.operators))
        again = {name: (subsets >> bit & 1).astype(bool) for bit, name in enumerate(self.operators)}
        return self.labels(again, len(subsets))


def _widths(graph: LayerGraph, operand_share: float) -> dict[str, float]:
    """The width each tensor is kept in for the backward, over the width it is written in.

    A product that only combining reads in the backward is not kept: its gradient is had without it. Products with
    weights keep a narrower copy of what they multiply, beside what others keep.
    """
    maker = {operand.tensor: operator for operator in graph.operators for operand in operator.outputs}
    widths: dict[str, float] = {}
    for name in graph.tensors:
        savers = [operator for operator in graph.operators if name in operator.saves]
        narrow = [runs_narrow(operator, graph.tensors) for operator in savers]
        combined = bool(savers) and all(operator.kind is Kind.COMBINE for operator in savers)
        if combined and name in maker and maker[name].kind is Kind.CONTRACTION:
            widths[name] = 0.0
        elif operand_share == 1.0:
            widths[name] = 1.0
        else:
            widths[name] = (not all(narrow)) * 1.0 + any(narrow) * operand_share
    return widths


def undominated(rows: Floats) -> Floats:
    """The rows that no other row is below or equal to in every column; equal rows once."""
    left = np.unique(rows, axis=0)  # in order of the first column, then the second, ...: none is dominated by a later
    found: list[Floats] = []
    while len(left):
        best = left[0]
        found.append(best)
        left = left[~(best <= left).all(axis=1)]
    return np.array(found)
