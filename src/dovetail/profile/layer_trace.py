"""What a layer allocates and frees, tensor by tensor, in the order of its forward and its backward."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dovetail.arrays import Floats
from dovetail.profile.layer import LayerProfile
from dovetail.profile.recompute_space import Choice, RecomputeSpace
from dovetail.profile.saving import Saving

#: What a layer takes from the one before it, and the gradient it hands back; what it hands on, and that one's gradient.
TAKEN, TAKEN_GRADIENT, HANDED, HANDED_GRADIENT = "x", "x.grad", "out", "out.grad"


class Change(NamedTuple):
    """A tensor of a layer that is allocated, or freed where it has no bytes."""

    tensor: str
    bytes: int
    operator: str


@dataclass(frozen=True)
class TracedLayer:
    """A layer under a recompute choice; figures of one plan."""

    profile: LayerProfile
    space: RecomputeSpace
    choice: Choice
    saving: Saving
    #: recomputed one by one as the backward reads them, instead of together before it
    when_read: bool = False
    #: the layer takes a stream, and hands one on
    takes: bool = True
    hands: bool = True
    #: operators whose tensors are counted by their logits
    losses: frozenset[str] = frozenset()

    @cached_property
    def forward(self) -> tuple[Change, ...]:
        """Every tensor of the forward; what is saved stays."""
        return tuple(self._run(self.space.operators, set(self.choice.saved), saved_inner=True, mark=""))

    @cached_property
    def backward(self) -> tuple[Change, ...]:
        """What is recomputed, then the backward of each operator."""
        return tuple(self._backward())

    def _backward(self) -> Iterator[Change]:
        again, mark = self.choice.recomputed, " again"
        if again and not self.when_read:
            yield from self._run(again, set(self.choice.returned), saved_inner=False, mark=mark)
        saved = {self._name(i): i for i in self.choice.saved}
        returned = {self._name(i) + mark: i for i in self.choice.returned}
        last, first = self._readers()
        ends = {name: last.get(self.space.versions[i].tensor, len(self.profile.nodes) - 1) for name, i in saved.items()}
        ends |= {name: last.get(self.space.versions[i].tensor, 0) for name, i in returned.items()}
        for number, node in enumerate(self.profile.nodes):
            if self.when_read:
                for name, index in returned.items():
                    if first.get(self.space.versions[index].tensor) == number:
                        yield Change(name, _whole(self.space.saved_bytes(index)), node.operator)
            for place, each in enumerate(self.profile.lifetimes):
                if each.start == number:
                    yield Change(self._gradient(place), _whole(each.bytes), node.operator)
            for place, each in enumerate(self.profile.lifetimes):
                if each.end == number and self._gradient(place) != TAKEN_GRADIENT:
                    yield Change(self._gradient(place), 0, node.operator)
            for name, end in ends.items():
                if end == number:
                    yield Change(name, 0, node.operator)
            inner = _inner(node.operator)
            if node.operator in self.space.inner_bytes:
                yield Change(inner + (mark if node.operator in again else ""), 0, node.operator)

    def _gradient(self, place: int) -> str:
        each, nodes = self.profile.lifetimes[place], len(self.profile.nodes)
        if each.start < 0 and self.hands:
            return HANDED_GRADIENT if place == self._seed else f"gradient {place}"
        if self.takes and place == self._result and each.end == nodes - 1:
            return TAKEN_GRADIENT
        return f"gradient {place}"

    @cached_property
    def _seed(self) -> int:
        """The lifetime of the gradient that arrives."""
        return next((i for i, each in enumerate(self.profile.lifetimes) if each.start < 0 and each.written), -1)

    @cached_property
    def _result(self) -> int:
        """The lifetime of the gradient that is handed back: the last that begins and is there at the end."""
        count = len(self.profile.nodes)
        ending = [(each.start, i) for i, each in enumerate(self.profile.lifetimes) if each.end == count - 1]
        return max(ending, default=(0, -1))[1]

    def _readers(self) -> tuple[dict[str, int], dict[str, int]]:
        reads = [(number, node.reads) for number, node in enumerate(self.profile.nodes)]
        last = {tensor: number for number, tensors in reads for tensor in tensors}
        first = {tensor: number for number, tensors in reversed(reads) for tensor in tensors}
        return last, first

    def _name(self, index: int) -> str:
        version = self.space.versions[index]
        if index in self.space.handed and version.tensor == TAKEN:
            return TAKEN
        return f"{version.tensor} {version.number}"

    def _run(self, operators: Collection[str], stays: set[int], *, saved_inner: bool, mark: str) -> Iterator[Change]:
        """Operators in order: each allocates what it reads in another layout and what it writes."""
        space, wanted = self.space, set(operators)
        remaining = {i: sum(reader in wanted for reader in version.readers) for i, version in enumerate(space.versions)}
        alive: set[int] = set()
        # statistics are of the layer alone
        outputs = space.writes[space.operators[-1]][:1] if self.hands else ()
        for name in (n for n in space.operators if n in wanted):
            label = f"{name}, recomputed" if mark else name
            made = [i for i in space.reads[name] if i not in alive and space.versions[i].made_of is not None]
            written = () if name in self.losses else space.writes[name]
            for i in (*made, *(i for i in written if space.versions[i].made_of is None)):
                alive.add(i)
                yield Change(self._called(i, outputs, mark), _whole(space.versions[i].bytes), label)
            if name in space.inner_bytes and (saved_inner is (name not in self.choice.recomputed)):
                yield Change(_inner(name) + mark, _whole(space.inner_bytes[name]), label)
            for i in space.reads[name]:
                remaining[i] -= 1
            for i in sorted(alive):
                if remaining[i] <= 0 and i not in stays and not (i in outputs and not mark):
                    alive.discard(i)
                    yield Change(self._called(i, outputs, mark), 0, label)

    def _called(self, index: int, outputs: Collection[int], mark: str) -> str:
        return HANDED if index in outputs and not mark else self._name(index) + mark


def _inner(operator: str) -> str:
    return f"{operator} inner"


def _whole(size: Floats) -> int:
    return round(float(np.ravel(size)[0]))
