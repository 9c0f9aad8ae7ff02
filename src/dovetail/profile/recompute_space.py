"""What recomputing part of a layer means: what is saved instead, which operators and collectives are recomputed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from dovetail.arrays import Floats, largest
from dovetail.cost.operators import runs_narrow
from dovetail.frozen import frozen
from dovetail.graph import Kind, LayerGraph, Operator
from dovetail.profile.layer import LayerProfile
from dovetail.profile.saving import PLANNED, Saving
from dovetail.profile.version import Version


@frozen
class Choice:
    """What follows from a list of operators to recompute; versions by their place in the profile."""

    #: saved from the forward to the backward
    saved: tuple[int, ...]
    #: recomputed operators, in the order of the forward
    recomputed: tuple[str, ...]
    #: versions that collectives rebuild
    remade: tuple[int, ...]
    #: what the backward reads after it was recomputed
    returned: tuple[int, ...]


class RecomputeSpace:
    """The operators of a layer, and the versions of tensors each writes and reads.

    An operator whose results nobody needs is dropped. Of the others, either the needed results are saved, or the
    operator is recomputed, and what it reads is needed in turn. The layer's inputs can only be saved.
    """

    def __init__(self, graph: LayerGraph, profile: LayerProfile, saving: Saving = PLANNED) -> None:
        self.operators = tuple(operator.name for operator in graph.operators)
        self.norms = frozenset(o.name for o in graph.operators if o.kind is Kind.NORMALISATION)
        self.versions = profile.versions
        self._index = {(v.tensor, v.number): i for i, v in enumerate(self.versions)}
        widths = saved_widths(graph, saving.operand_share)
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
        written = {i for versions in self.writes.values() for i in versions}
        #: inputs of the layer
        self.handed = tuple(i for i in range(len(self.versions)) if i not in written)
        #: operator → bytes its backward reads beyond what a fused kernel's does
        self.inner_bytes = {
            operator.name: copies * largest(self.versions[i].bytes for i in self.reads[operator.name])
            for operator in graph.operators
            if (copies := saving.extra_saved(operator))
        }
        #: operators beside frozen weights that are recomputed for these bytes alone, though nothing saves their results
        self._for_inner = frozenset(self.inner_bytes) if profile.frozen_weights else frozenset[str]()

    def saved_bytes(self, index: int) -> Floats:
        """Bytes to save a version: products save what they multiplied, which can be narrower."""
        version: Version = self.versions[index]
        return version.bytes * self._width[index] if index in self.needed else version.bytes

    def save(self, needed: Iterable[int]) -> tuple[set[int], set[int]]:
        """What to save for these versions of an operator's results, and what to gather from it again."""
        saved: set[int] = set()
        remade: set[int] = set()
        for index in needed:
            version, place = self.versions[index], index
            while version.gathered and place not in self.needed:
                assert version.made_of is not None
                remade.add(place)
                place = self._index[version.tensor, version.made_of]
                version = self.versions[place]
            saved.add(place)
        return saved, remade

    def remake(self, needed: Iterable[int]) -> set[int]:
        """The versions rebuilt from what a recomputed operator writes."""
        remade: set[int] = set()
        for index in needed:
            version, place = self.versions[index], index
            while version.made_of is not None:
                remade.add(place)
                place = self._index[version.tensor, version.made_of]
                version = self.versions[place]
        return remade

    def choose(
        self,
        operators: Collection[str],
        functions: Sequence[frozenset[str]] = (),
        results: Collection[str] = (),
    ) -> Choice:
        """What follows from recomputing these operators: each where something needs it, and nothing else.

        Checkpointed `functions` are groups of operators that are recomputed as a whole, however little is missing; the
        results that operators outside save are saved all the same. `results` of operators are saved even if nothing
        reads them, and then those of reduce-scatters too.
        """
        whole = {name: function for function in functions for name in function}
        needed = set(self.needed)
        saved: set[int] = set()
        remade: set[int] = set()
        recomputed: list[str] = []
        for name in reversed(self.operators):
            asked = needed.intersection(self.writes[name])
            if name in whole:
                stays = {i for i in asked if not self._savers(i) <= whole[name]}
                asked.update(self.writes[name])
            else:
                stays = set[int]() if name in operators else asked
            stored, gathered = self.save(stays)
            saved |= stored
            remade |= gathered
            if asked > stays or (name in operators and name in self._for_inner):
                recomputed.append(name)
                remade |= self.remake(asked - stays)
                needed.update(self.reads[name])
        stored, gathered = self.save(needed.intersection(self.handed))
        saved |= stored
        saved.update(self.writes[name][0] for name in results if saved.isdisjoint(self.writes[name]))
        saved.update(i for i, version in enumerate(self.versions) if results and version.scattered)
        returned = {i for name in recomputed for i in self.writes[name]} & self.needed - saved
        return Choice(_sorted(saved), tuple(reversed(recomputed)), _sorted(remade | gathered), _sorted(returned))

    def _savers(self, index: int) -> frozenset[str]:
        """The operators that save a version's tensor for their backward."""
        return self._saved_by.get(self.versions[index].tensor, frozenset())


def _sorted(indices: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(indices))


def saved_widths(graph: LayerGraph, operand_share: float) -> dict[str, float]:
    """The width in which tensors are saved over the width in which they are written, where these differ.

    Experts' results are not saved to weigh them: frameworks weigh the input of the last product instead, which is saved
    anyway. The input of a product is saved as it was multiplied, in addition to what other operators save of it.
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
