"""The recompute frontier of a layer: every choice of operators to compute again that no other choice beats.

A choice is judged by the bytes it keeps per microbatch in flight, by what the layer holds while its backward runs
(what is kept and what is there again), and by the seconds it adds to the backward, collectives that run again
included. Comparing what is held then, instead of the workspace alone, loses nothing: a stage has at least the
microbatch at work in flight, so its memory grows with both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.graph import LayerGraph
from dovetail.profile.layer import LayerProfile
from dovetail.profile.operator_bits import MAX_OPERATORS, members
from dovetail.profile.recompute_space import RecomputeSpace


@dataclass(frozen=True, slots=True)
class Frontier:
    """Choices in order of bytes kept; arrays over choices."""

    saved_bytes: Floats
    workspace_bytes: Floats
    seconds: Floats
    #: operators from the last to the first, and which of them run again: bits of two words per choice
    operators: tuple[str, ...]
    words: Ints

    @property
    def footprint_bytes(self) -> Floats:
        """What the layer holds of one microbatch while its backward runs."""
        return self.saved_bytes + self.workspace_bytes

    def again(self, index: int) -> tuple[str, ...]:
        """The operators a choice runs again, in the order of the forward."""
        return tuple(reversed(members(self.words[index].tolist(), self.operators)))


def recompute_frontier(
    graph: LayerGraph,
    profile: LayerProfile,
    operand_share: float = 1.0,
    exposed: Mapping[str, float] | None = None,
) -> Frontier:
    """The frontier of one layer; of a profile of several variants, the first's.

    `exposed` is the part of a collective's seconds that computation does not hide, by kind of group; all where it says
    nothing.
    """
    # numba is imported where it is used: that takes longer than all that a command without it needs
    from dovetail.profile.frontier_kernels import search

    problem = FrontierProblem(RecomputeSpace(graph, profile, operand_share), profile, exposed or {})
    labels, chosen = search(*problem.tables())
    return Frontier(
        saved_bytes=labels[:, 0],
        workspace_bytes=labels[:, 1] - labels[:, 0],
        seconds=labels[:, 2],
        operators=problem.steps,
        words=chosen,
    )


class FrontierProblem:
    """A layer's choices as tables of numbers.

    Operators are decided from the last to the first, so all that could want an operator's results is decided before it.
    A state has a bit for every version that is wanted, or not, of operators still to come; bits are used again.
    """

    def __init__(self, space: RecomputeSpace, profile: LayerProfile, exposed: Mapping[str, float]) -> None:
        assert len(space.operators) <= MAX_OPERATORS, f"{len(space.operators)} operators in one layer"
        self.space = space
        self.steps = tuple(reversed(space.operators))
        self._exposed = exposed
        self._bytes = [_number(space.saved_bytes(i)) for i in range(len(space.versions))]
        self._made_s = [self._seconds(version.made_s) for version in space.versions]
        self._again_s = {
            name: _number(profile.operator_s[name]) + self._seconds(profile.exchange_s.get(name, {}))
            for name in space.operators
        }
        self._bits = self._places()

    def _seconds(self, by_group: Mapping[str, Floats]) -> float:
        return sum(_number(s) * self._exposed.get(group, 1.0) for group, s in by_group.items())

    def _asked(self, versions: Iterable[int]) -> list[int]:
        """Those of an operator's results that only repeated operators may want: what the backward reads it gets."""
        return [i for i in versions if i not in self.space.needed and i in self._bits]

    def _places(self) -> dict[int, int]:
        """Version → its bit in a state, from the first operator that may want it to the one that writes it."""
        places: dict[int, int] = {}
        free: list[int] = []
        width = 0
        for name in self.steps:
            free += [places[i] for i in self.space.writes[name] if i in places]
            for i in self.space.reads[name]:
                if i not in places and i not in self.space.needed:
                    places[i] = free.pop() if free else width
                    width = max(width, places[i] + 1)
        assert width < 62, f"{width} results wanted at once"
        return places

    def tables(self) -> tuple[Ints, Floats, Ints, Floats, Ints]:
        """What the kernel takes: bits, tables and reads of every step, and table and bits of what is handed in."""
        asked = [self._asked(self.space.writes[name]) for name in self.steps]
        handed = self._asked(self.space.handed)
        width = max(len(found) for found in (*asked, handed))
        bits = np.full((len(self.steps), width), -1, np.int64)
        tables = np.zeros((len(self.steps), 1 << width, 5))
        reads = np.zeros(len(self.steps), np.int64)
        for k, name in enumerate(self.steps):
            bits[k, : len(asked[k])] = [self._bits[i] for i in asked[k]]
            needed = [i for i in self.space.writes[name] if i in self.space.needed]
            for row in range(1 << len(asked[k])):
                wanted = needed + [i for n, i in enumerate(asked[k]) if row >> n & 1]
                tables[k, row] = self._costs(name, wanted)
            reads[k] = sum(1 << self._bits[i] for i in self.space.reads[name] if i not in self.space.needed)
        last_bits = np.array([self._bits[i] for i in handed], np.int64)
        last = np.zeros((1 << len(handed), 5))
        needed = [i for i in self.space.handed if i in self.space.needed]
        for row in range(len(last)):
            last[row] = self._costs(None, needed + [i for n, i in enumerate(handed) if row >> n & 1])
        return bits, tables, reads, last, last_bits

    def _costs(self, name: str | None, wanted: list[int]) -> list[float]:
        """Whether anything is wanted, and what holding and repeating an operator cost then."""
        held, gathered = self.space.hold(wanted)
        keeping = [sum(self._bytes[i] for i in held), sum(self._made_s[i] for i in gathered)]
        if name is None or not wanted:
            return [0.0, *keeping, 0.0, 0.0]
        returned = sum(self._bytes[i] for i in wanted if i in self.space.needed)
        again = self._again_s[name] + sum(self._made_s[i] for i in self.space.remake(wanted))
        return [1.0, *keeping, returned, again]


def _number(value: Floats) -> float:
    return float(np.ravel(value)[0])
