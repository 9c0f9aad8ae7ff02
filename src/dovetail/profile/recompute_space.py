"""What computing part of a layer again means: what is kept instead, which operators and collectives run again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from dovetail.arrays import Floats
from dovetail.cost.operators import runs_narrow
from dovetail.graph import Kind, LayerGraph, Operator
from dovetail.profile.layer import LayerProfile
from dovetail.profile.version import Version


@dataclass(frozen=True, slots=True)
class Choice:
    """What a list of operators to compute again leads to; versions by their place in the profile."""

    #: kept from the forward to the backward
    held: tuple[int, ...]
    #: operators that run again, in the order of the forward
    repeated: tuple[str, ...]
    #: versions made again by their collectives
    remade: tuple[int, ...]
    #: what the backward reads and finds computed again
    returned: tuple[int, ...]


class RecomputeSpace:
    """The operators of a layer, and the versions of tensors each writes and reads.

    An operator whose results nobody needs is dropped. Of the others each is either kept, that is what is needed of its
    results is held, or repeated: then what it reads is needed in its turn. What a layer is handed can only be held.
    """

    def __init__(self, graph: LayerGraph, profile: LayerProfile, operand_share: float = 1.0) -> None:
        self.operators = tuple(operator.name for operator in graph.operators)
        self.versions = profile.versions
        self._index = {(v.tensor, v.number): i for i, v in enumerate(self.versions)}
        widths = saved_widths(graph, operand_share)
        self._width = [widths.get(v.tensor, 1.0) for v in self.versions]
        #: what the backward reads
        self.needed = frozenset(i for i, v in enumerate(self.versions) if v.saved and self._width[i] > 0)
        savers: dict[str, set[str]] = {}
        for operator in graph.operators:
            for tensor in operator.saves:
                savers.setdefault(tensor, set()).add(operator.name)
        self._saved_by = {tensor: frozenset(names) for tensor, names in savers.items()}
        by_tensor: dict[str, list[int]] = {}
        by_reader: dict[str, list[int]] = {}
        for i, version in enumerate(self.versions):
            by_tensor.setdefault(version.tensor, []).append(i)
            for reader in version.readers:
                by_reader.setdefault(reader, []).append(i)
        #: operator → what it writes, in every layout, and what it reads
        self.writes = {
            operator.name: tuple(i for o in operator.outputs for i in by_tensor.get(o.tensor, ()))
            for operator in graph.operators
        }
        self.reads = {name: tuple(by_reader.get(name, ())) for name in self.operators}
        written = {i for found in self.writes.values() for i in found}
        #: what the layer is handed
        self.handed = tuple(i for i in range(len(self.versions)) if i not in written)

    def saved_bytes(self, index: int) -> Floats:
        """What holding a version takes: products keep what they multiplied, which can be narrower."""
        version: Version = self.versions[index]
        return version.bytes * self._width[index] if index in self.needed else version.bytes

    def hold(self, wanted: Iterable[int]) -> tuple[set[int], set[int]]:
        """What is held so that these versions of an operator's results are there, and what is gathered again of it."""
        held: set[int] = set()
        remade: set[int] = set()
        for index in wanted:
            version, place = self.versions[index], index
            while version.gathered and place not in self.needed:
                assert version.made_of is not None
                remade.add(place)
                place = self._index[version.tensor, version.made_of]
                version = self.versions[place]
            held.add(place)
        return held, remade

    def remake(self, wanted: Iterable[int]) -> set[int]:
        """The versions that are made again of what an operator writes again."""
        remade: set[int] = set()
        for index in wanted:
            version, place = self.versions[index], index
            while version.made_of is not None:
                remade.add(place)
                place = self._index[version.tensor, version.made_of]
                version = self.versions[place]
        return remade

    def choose(self, again: Collection[str], functions: Sequence[frozenset[str]] = ()) -> Choice:
        """What follows from computing these operators again: each where something needs it, and nothing else.

        Checkpointed `functions` are groups of operators that run again as a whole, however little of it is missing;
        of their results what operators outside keep is held all the same.
        """
        whole = {name: function for function in functions for name in function}
        wanted = set(self.needed)
        held: set[int] = set()
        remade: set[int] = set()
        repeated: list[str] = []
        for name in reversed(self.operators):
            asked = wanted.intersection(self.writes[name])
            if name in whole:
                stays = {i for i in asked if not self._savers(i) <= whole[name]}
                asked.update(self.writes[name])
            else:
                stays = set[int]() if name in again else asked
            found, gathered = self.hold(stays)
            held |= found
            remade |= gathered
            if asked > stays:
                repeated.append(name)
                remade |= self.remake(asked - stays)
                wanted.update(self.reads[name])
        found, gathered = self.hold(wanted.intersection(self.handed))
        held |= found
        returned = {i for name in repeated for i in self.writes[name]} & self.needed - held
        return Choice(_sorted(held), tuple(reversed(repeated)), _sorted(remade | gathered), _sorted(returned))

    def _savers(self, index: int) -> frozenset[str]:
        """The operators that keep a version's tensor for their backward."""
        return self._saved_by.get(self.versions[index].tensor, frozenset())


def _sorted(indices: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(indices))


def saved_widths(graph: LayerGraph, operand_share: float) -> dict[str, float]:
    """Widths tensors are kept in, over the widths they are written in, where these differ.

    Experts' results are not kept to weigh them: frameworks weigh what goes into the last product instead, which is
    kept anyway. The input of a product is kept as it was multiplied, beside what other operators keep of it.
    """
    savers: dict[str, list[Operator]] = {}
    for operator in graph.operators:
        for name in operator.saves:
            savers.setdefault(name, []).append(operator)
    makers = {o.tensor: operator for operator in graph.operators for o in operator.outputs}
    widths: dict[str, float] = {}
    for name, operators in savers.items():
        maker = makers.get(name)
        if maker is not None and maker.kind is Kind.CONTRACTION and all(o.kind is Kind.COMBINE for o in operators):
            widths[name] = 0.0
        elif operand_share < 1.0:
            products = [o for o in operators if runs_narrow(o, graph.tensors)]
            others = len(products) < len(operators)
            widths[name] = (1.0 if others else 0.0) + (operand_share if products else 0.0)
    return widths
