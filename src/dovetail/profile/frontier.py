"""The recompute frontier of a layer: every set of operators to recompute that no other set beats.

A choice has three costs: the bytes it saves per micro-batch in flight, the footprint while the layer's backward runs
(saved and recomputed tensors), and the seconds it adds to the backward, recomputed collectives included. We compare
footprints instead of workspaces alone and lose nothing: a stage has at least the current micro-batch in flight, so its
memory grows with both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.graph import LayerGraph
from dovetail.profile.layer import LayerProfile
from dovetail.profile.operator_bits import MAX_OPERATORS, WORD, members
from dovetail.profile.recompute_space import RecomputeSpace
from dovetail.profile.saving import Saving


@frozen
class RecomputeFrontier:
    """Choices in order of saved bytes; arrays over choices."""

    saved_bytes: Floats
    workspace_bytes: Floats
    seconds: Floats
    #: operators from the last to the first, and which of them are recomputed: bits of two words per choice
    operators: tuple[str, ...]
    words: Ints

    @property
    def footprint_bytes(self) -> Floats:
        """Bytes of one micro-batch while the layer's backward runs."""
        return self.saved_bytes + self.workspace_bytes

    def recomputed(self, index: int) -> tuple[str, ...]:
        """The operators a choice recomputes, in the order of the forward."""
        return tuple(reversed(members(self.words[index].tolist(), self.operators)))


def recompute_frontier(
    graph: LayerGraph,
    profile: LayerProfile,
    operand_share: float = 1.0,
    exposed: Mapping[str, float] | None = None,
) -> RecomputeFrontier:
    """The frontier of one layer; of the first variant where a profile has several.

    `exposed` is the share of a collective's seconds that computation does not hide, by kind of group; 1 by default.
    """
    # importing numba takes longer than everything a command without it does
    from dovetail.profile.frontier_kernels import search

    problem = FrontierProblem(
        RecomputeSpace(graph, profile, Saving(operand_share=operand_share)), profile, exposed or {}
    )
    labels, words = search(*problem.tables())
    return RecomputeFrontier(
        saved_bytes=labels[:, 0],
        workspace_bytes=labels[:, 1] - labels[:, 0],
        seconds=labels[:, 2],
        operators=problem.steps,
        words=words,
    )


def _too_large(what: str, most: int) -> InputError:
    """Layers of traced models alone have so many parts."""
    what = f"has {what}, and what to recompute is chosen from at most {most}"
    return InputError("job: model", what, "give the plan one choice for all blocks: none or full")


class FrontierProblem:
    """A layer's choices as tables of numbers.

    Operators are decided from the last to the first, so every reader of a result is decided before its writer. A state
    has a bit for each version of undecided operators that a recomputed operator may need; bits are reused.
    """

    def __init__(self, space: RecomputeSpace, profile: LayerProfile, exposed: Mapping[str, float]) -> None:
        if len(space.operators) > MAX_OPERATORS:
            raise _too_large(f"a layer of {len(space.operators)} operators", MAX_OPERATORS)
        self.space = space
        self.steps = tuple(reversed(space.operators))
        self._exposed = exposed
        self._bytes = [_number(space.saved_bytes(i)) for i in range(len(space.versions))]
        self._made_s = [self._seconds(version.made_s) for version in space.versions]
        self._recompute_s = {
            name: _number(profile.operator_s[name]) + self._seconds(profile.exchange_s.get(name, {}))
            for name in space.operators
        }
        self._bits = self._places()

    def _seconds(self, by_group: Mapping[str, Floats]) -> float:
        return sum(_number(s) * self._exposed.get(group, 1.0) for group, s in by_group.items())

    def _asked(self, versions: Iterable[int]) -> list[int]:
        """Results that only recomputed operators may need: what the backward reads is always there."""
        return [i for i in versions if i not in self.space.needed and i in self._bits]

    def _places(self) -> dict[int, int]:
        """Version → its bit in a state, from the first operator that may need it to the one that writes it."""
        places: dict[int, int] = {}
        free: list[int] = []
        width = 0
        for name in self.steps:
            free += [places[i] for i in self.space.writes[name] if i in places]
            for i in self.space.reads[name]:
                if i not in places and i not in self.space.needed:
                    places[i] = free.pop() if free else width
                    width = max(width, places[i] + 1)
        if width >= WORD:
            raise _too_large(f"a layer that needs {width} results at once", WORD - 1)
        return places

    def tables(self) -> tuple[Ints, Floats, Ints, Floats, Ints]:
        """The kernel's arguments: bits, tables and reads of every step, and table and bits of the layer's inputs."""
        asked = [self._asked(self.space.writes[name]) for name in self.steps]
        handed = self._asked(self.space.handed)
        width = max(len(versions) for versions in (*asked, handed))
        bits = np.full((len(self.steps), width), -1, np.int64)
        tables = np.zeros((len(self.steps), 1 << width, 5))
        reads = np.zeros(len(self.steps), np.int64)
        for k, name in enumerate(self.steps):
            bits[k, : len(asked[k])] = [self._bits[i] for i in asked[k]]
            needed = [i for i in self.space.writes[name] if i in self.space.needed]
            for row in range(1 << len(asked[k])):
                requested = needed + [i for n, i in enumerate(asked[k]) if row >> n & 1]
                tables[k, row] = self._costs(name, requested)
            reads[k] = sum(1 << self._bits[i] for i in self.space.reads[name] if i not in self.space.needed)
        last_bits = np.array([self._bits[i] for i in handed], np.int64)
        last = np.zeros((1 << len(handed), 5))
        needed = [i for i in self.space.handed if i in self.space.needed]
        for row in range(len(last)):
            last[row] = self._costs(None, needed + [i for n, i in enumerate(handed) if row >> n & 1])
        return bits, tables, reads, last, last_bits

    def _costs(self, name: str | None, requested: list[int]) -> list[float]:
        """Whether anything is needed, and the cost of saving it and of recomputing the operator."""
        saved, gathered = self.space.save(requested)
        saving = [sum(self._bytes[i] for i in saved), sum(self._made_s[i] for i in gathered)]
        if name is None or not requested:
            return [0.0, *saving, 0.0, 0.0]
        returned = sum(self._bytes[i] for i in requested if i in self.space.needed)
        recomputed_s = self._recompute_s[name] + sum(self._made_s[i] for i in self.space.remake(requested))
        return [1.0, *saving, returned, recomputed_s]


def _number(value: Floats) -> float:
    return float(np.ravel(value)[0])
