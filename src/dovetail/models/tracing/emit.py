"""Writes the layer graph of one segment of a trace: operators over the named dims that inference found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TypeAlias

from dovetail.frozen import frozen
from dovetail.graph import DerivedSize, Element, Kind, LayerBuilder, LayerGraph, Operand, Operator, Role
from dovetail.graph.operator import matrix_work, union
from dovetail.models.tracing.flow import Source
from dovetail.models.tracing.infer import Inference
from dovetail.models.tracing.infer_views import taken
from dovetail.models.tracing.trace import Node, Value

Emission: TypeAlias = "Callable[[Emitter, Node], None]"


@frozen
class Pieces:
    """The tensors that hold a traced value: one, or several that each cover a part of one atom."""

    pieces: tuple[tuple[str, int], ...]
    over: int | None = None
    #: cut out of one product, so that operators work on each piece
    fused: bool = False

    @property
    def tensor(self) -> str:
        """The one tensor."""
        assert self.over is None
        return self.pieces[0][0]


def one(tensor: str) -> Pieces:
    """A value held by one tensor."""
    return Pieces(((tensor, -1),))


class Emitter:
    """Collects the operators of one segment."""

    def __init__(
        self, inf: Inference, name: str, dims: Mapping[int, str], between: Mapping[int, str],
        emissions: Mapping[str, Emission],
    ) -> None:  # fmt: skip
        self.inf, self.atoms, self.flow = inf, inf.atoms, inf.flow
        self._dims, self._between = dims, between
        self._emissions = emissions
        self.builder = LayerBuilder(name, {})
        self.held: dict[int, Pieces] = {}
        #: activations that a product is expected to take in
        self.waiting: dict[int, tuple[str, Value]] = {}
        self._leaves: dict[str, tuple[int, ...]] = {}
        self._names: dict[str, int] = {}
        self._slices: dict[tuple[str, int], str] = {}
        self.approximated: dict[str, str] = {}
        self._module = ""

    # names and sizes

    def dim(self, atom: int) -> str:
        """The name of an atom, sized."""
        root = self.atoms.find(atom)
        name = self._dims.get(root, f"d{root}")
        if name not in ("batch", "seq"):
            if self.atoms.is_free(root):
                self.builder.size(name, self.follows(root))
            else:
                self.builder.size(name, self.atoms.size(root))
        return name

    def between(self, atom: int) -> str:
        """The name of an atom in what layers hand to each other, where layers of a kind agree."""
        own = self.dim(atom)
        name = self._between.get(self.atoms.find(atom), own)
        if name != own and name not in ("batch", "seq"):
            self.builder.size(name, self.builder.sizes[own])
        return name

    def follows(self, atom: int) -> DerivedSize:
        """The size of a free dim that is not batch or sequence itself."""
        base = self.inf.sequences[0] if self.inf.sequences else self.inf.batch
        size = self.atoms.size(atom)
        longest = self.inf.uncapped.get(self.atoms.find(atom), size)
        factor = Fraction(longest, self.atoms.size(base))
        at_most = size if size < longest else None
        return DerivedSize(("seq" if self.inf.sequences else "batch",), factor=factor, at_most=at_most)

    def unique(self, name: str) -> str:
        """A name no operator has yet."""
        own, number = name, self._names.get(name, 1)
        while own in self._names:
            number += 1
            own = f"{name}.{number}"
        self._names[name] = number
        self._names.setdefault(own, 1)
        return own

    def name(self, node: Node) -> str:
        """What a node's operator is called until roles are known: its module and what it does."""
        path = node.path[-1] if node.path else ""
        tail = path.removeprefix(self._module).strip(".")
        # gradients are called sums where they are one
        target = "total" if node.target == "sum" else node.target.strip("_")
        return self.unique(f"{tail}.{target}".strip("."))

    def below(self, module: str) -> None:
        """Names are told from this module on."""
        self._module = module

    # tensors

    def remember(self, tensor: str, leaves: Iterable[int]) -> str:
        """Which atoms the dims of a tensor are."""
        self._leaves[tensor] = tuple(leaves)
        return tensor

    def leaves(self, tensor: str) -> tuple[int, ...]:
        """The atoms of a tensor's dims."""
        return self._leaves[tensor]

    def operand(self, tensor: str, rename: Mapping[int, str] | None = None) -> Operand:
        """A tensor as an operand, some atoms under another name."""
        names = rename or {}
        return Operand(tensor, tuple(names.get(a, self.dim(a)) for a in self._leaves[tensor]))

    def flat(self, value: Value) -> tuple[int, ...]:
        """The atoms of a value in order."""
        return self.atoms.leaves(a for axis in self.inf.of(value) for a in axis)

    def hold(self, value: Value, tensor: str) -> None:
        """A value is this tensor."""
        self.held[value.id] = one(tensor)

    def input(self, value: Value, name: str, order: tuple[int, ...] | None) -> None:
        """A value the segment is handed, its dims in the order in which it was made."""
        leaves = self.flat(value) if order is None else order
        role = Role.ACTIVATION if self.flow.is_data(value) else Role.INDEX
        self.builder.input(name, tuple(self.between(a) for a in leaves), role)
        self.hold(value, self.remember(name, leaves))

    def get(self, value: Value) -> Pieces:
        """The tensors of a value: declared where nothing made them."""
        if value.id in self.held:
            return self.held[value.id]
        if self.flow.of(value) is Source.WEIGHT:
            return one(self.weight(value))
        name = self.unique(value.name or ("positions" if self.flow.of(value) is Source.CONSTANT else "given"))
        leaves = self.flat(value)
        role = Role.INDEX
        if value.dtype.startswith(("float", "bfloat")):
            self.builder.constant(name, tuple(self.dim(a) for a in leaves))
        else:
            self.builder.input(name, tuple(self.dim(a) for a in leaves), role)
        self.hold(value, self.remember(name, leaves))
        return self.held[value.id]

    def whole(self, value: Value) -> str:
        """The value as one tensor; its pieces are joined where it has several."""
        held = self.get(value)
        if held.over is None:
            return held.tensor
        return self._joined(held)

    def by_sample(self, value: Value) -> str:
        """The value as one tensor, written out for every sample of the batch where all have the same."""
        tensor, batch = self.whole(value), self.atoms.find(self.inf.batch)
        return self.full(value) if batch in self.flat(value) and batch not in self.leaves(tensor) else tensor

    def full(self, value: Value) -> str:
        """The value as one tensor that has all its dims: what is broadcast is written out."""
        tensor = self.whole(value)
        leaves = self.flat(value)
        missing = [a for a in leaves if a not in self.leaves(tensor)]
        if not missing or self.held[value.id].over is not None or not set(self.leaves(tensor)) <= set(leaves):
            return tensor
        dims = tuple(self.dim(a) for a in leaves)
        name = self.unique("expanded")
        made = self.builder.movement(name, "expand", (self.operand(tensor),), dims, ())
        self.hold(value, self.remember(made, leaves))
        return made

    def _joined(self, held: Pieces) -> str:
        assert held.over is not None
        key = ("+".join(t for t, _ in held.pieces), held.over)
        if key in self._slices:
            return self._slices[key]
        outer = [a for tensor, atom in held.pieces for a in self._outside(tensor, atom)]
        at = max(self._place(tensor, atom) for tensor, atom in held.pieces)
        rest = list(dict.fromkeys(outer))
        leaves = (*rest[:at], held.over, *rest[at:])
        dims = tuple(self.dim(a) for a in leaves)
        inside = [a for tensor, _ in held.pieces for a in self.leaves(tensor) if a not in rest]
        along = union([(self.dim(held.over),), (self.dim(a) for a in inside)])
        name = self.unique("joined")
        operands = tuple(self.operand(tensor) for tensor, _ in held.pieces)
        made = self.builder.movement(name, "concatenate", operands, dims, along)
        self._slices[key] = self.remember(made, leaves)
        return made

    def _outside(self, tensor: str, atom: int) -> list[int]:
        inside = {*self.atoms.leaves((atom,)), self.atoms.find(atom)}
        return [a for a in self.leaves(tensor) if a not in inside]

    def _place(self, tensor: str, atom: int) -> int:
        inside = {*self.atoms.leaves((atom,)), self.atoms.find(atom)}
        found = [i for i, a in enumerate(self.leaves(tensor)) if a in inside]
        return found[0] if found else 0

    def piece(self, value: Value, over: int, number: int) -> str:
        """The tensor of a value that covers one part of an atom; the whole where the value does not have the atom."""
        held = self.get(value) if self.flow.of(value) is not Source.WEIGHT else None
        if held is None:
            return self.weight(value, over, number)
        if held.over == over:
            return held.pieces[number][0]
        tensor = self.whole(value)
        return (
            self.sliced(tensor, over, self.atoms.parts(over)[number], number) if over in self.leaves(tensor) else tensor
        )

    def sliced(self, tensor: str, over: int, part: int, number: int) -> str:
        """A part of a tensor, copied out; `number` tells equal parts apart."""
        key = (f"{tensor}/{part}", number)
        if key not in self._slices:
            leaves = tuple(b for a in self.leaves(tensor) for b in (self.atoms.leaves((part,)) if a == over else (a,)))
            dims = tuple(self.dim(a) for a in leaves)
            along = (self.dim(over), *(self.dim(a) for a in self.atoms.leaves((part,))))
            name = self.unique("slice")
            made = self.builder.movement(name, "slice", (self.operand(tensor),), dims, along)
            self._slices[key] = self.remember(made, leaves)
        return self._slices[key]

    def weight(self, value: Value, over: int | None = None, number: int = -1, *, name: str = "") -> str:
        """The parameter a value is, or the part of it that belongs to a part of an atom; declared at its first use."""
        parameter = self.flow.parameter(value)
        if parameter is None:
            return self.whole_constant(value)
        leaves, key = self.atoms.leaves(a for axis in self.inf.of(parameter) for a in axis), (str(parameter.id), -1)
        for whole, at in (self._part_of(value, parameter), (over, number)):
            found = self._place_of_part(leaves, whole, at)
            if found is not None:
                whole, at = found
                part = self.atoms.leaves((self.atoms.parts(whole)[at],))
                leaves = tuple(b for a in leaves for b in (part if a == whole else (a,)))
                key = (f"{key[0]}/{whole}/{at}", at)
        if key in self._slices:
            return self._slices[key]
        dims: list[str] = []
        for atom in leaves:
            dim = self.dim(atom)
            while dim in dims:
                dim = self.builder.size(f"{dim}_too", self.atoms.size(atom))
            dims.append(dim)
        own = name or parameter.name.removeprefix(self._module).strip(".")
        made = self.builder.weight(self.unique(own), tuple(dims), tied=self.flow.tied.get(parameter.name, ""))
        if parameter.name in self.flow.trace.frozen:
            self.builder.tensors[made] = replace(self.builder.tensors[made], frozen=True)
        self._slices[key] = self.remember(made, leaves)
        return made

    def _place_of_part(self, leaves: Sequence[int], over: int | None, number: int) -> tuple[int, int] | None:
        """Of which of these atoms a part of an atom is a part, and which."""
        if over is None or over in leaves:
            return None if over is None else (over, number)
        part = self.atoms.parts(over)[number]
        found = (a for a in leaves if self.atoms.is_sum(a) and part in self.atoms.parts(a))
        return next(((a, self.atoms.parts(a).index(part)) for a in found), None)

    def _part_of(self, value: Value, parameter: Value) -> tuple[int | None, int]:
        """The part of a parameter that a value is cut out of it as: an atom and the number of its part."""
        while value.id != parameter.id and (node := self.flow.maker.get(value.id)) is not None:
            source = next(v for v in node.inputs() if self.flow.of(v) is Source.WEIGHT)
            place = taken(node, value)
            if place is not None:
                dim, start, stop = place
                axis = self.atoms.leaves(self.inf.of(source)[dim])
                inner, at = self.atoms.length(axis[1:]), 0
                for number, part in enumerate(self.atoms.parts(axis[0])):
                    if (at * inner, (at + self.atoms.size(part)) * inner) == (start, stop):
                        return axis[0], number
                    at += self.atoms.size(part)
                return None, -1
            value = source
        return None, -1

    def whole_constant(self, value: Value) -> str:
        """A tensor computed from several weights alone: kept as a constant of the layer."""
        name, leaves = self.unique("derived"), self.flat(value)
        self.builder.constant(name, tuple(self.dim(a) for a in leaves))
        self.hold(value, self.remember(name, leaves))
        return name

    # operators

    def run(self, nodes: Sequence[Node]) -> None:
        """Emits the nodes in order."""
        for node in nodes:
            self._emissions.get(node.target, self._emissions["unknown"])(self, node)

    def build(self, outputs: Sequence[Value]) -> LayerGraph:
        """The finished layer."""
        names = [self.full(v) for v in outputs]
        for name in names:
            tensor = self.builder.tensors[name]
            if tensor.role is Role.ACTIVATION:
                self.builder.tensors[name] = replace(tensor, dims=tuple(self.between(a) for a in self.leaves(name)))
        return self.builder.build(*names)

    def product(
        self, name: str, left: str, right: str, wanted: Sequence[int], summed: Iterable[int], *,
        renames: Mapping[int, int] | None = None, element: Element = Element.COMPUTE, fusion: str = "",
    ) -> str:  # fmt: skip
        """A contraction over atoms; `renames` are the atoms as which those of the right side count."""
        gone, other = set(summed), renames or {}
        a, b = self.operand(left), self.twice(right, {x: self.dim(y) for x, y in other.items()})
        found: dict[int, str] = {}
        for atom in self.leaves(left):
            if atom not in gone:
                found[atom] = self.dim(atom)
        for atom, index in zip(self.leaves(right), b.indices, strict=True):
            if index not in {self.dim(g) for g in gone}:
                found.setdefault(other.get(atom, atom), index)
        leaves = sorted(found, key=wanted.index) if set(found) <= set(wanted) else list(found)
        indices = tuple(found[atom] for atom in leaves)
        self.builder.tensor(name, tuple(self.dim(x) for x in leaves), element=element)
        # only the gradient of the other operand reads an operand
        tensors = self.builder.tensors
        pairs = ((tensors[a.tensor], tensors[b.tensor]), (tensors[b.tensor], tensors[a.tensor]))
        saves = [one.name for one, other in pairs if one.role is Role.ACTIVATION and not other.frozen]
        operator = Operator(
            name, Kind.CONTRACTION, "einsum", (a, b), (Operand(name, indices),),
            work=matrix_work(union((a.indices, b.indices))), saves=tuple(dict.fromkeys(saves)), fusion=fusion,
        )  # fmt: skip
        return self.remember(self.builder.append(operator), leaves)

    def twice(self, right: str, rename: Mapping[int, str] | None = None) -> Operand:
        """A weight that may have one dim twice: the axis that is summed takes the dim's name, the other its second."""
        dims = list(self.builder.tensors[right].dims)
        leaves = self.leaves(right)
        doubled = {a for a in leaves if leaves.count(a) > 1}
        if not doubled:
            return self.operand(right, rename)
        indices: list[str] = []
        for position, atom in enumerate(leaves):
            if atom in doubled:
                # PyTorch's weights have the axis that is summed last
                last = max(i for i, a in enumerate(leaves) if a == atom)
                other = next(d for i, d in enumerate(dims) if leaves[i] == atom and d != self.dim(atom))
                indices.append(self.dim(atom) if position == last else other)
            else:
                indices.append(self.dim(atom))
        return Operand(right, tuple(indices))

    def point(
        self, name: str, function: str, tensors: Sequence[str], *, fusion: str = "",
        renames: Sequence[Mapping[int, int]] = (),
    ) -> str:  # fmt: skip
        """A function of FUNCTIONS point by point, over the dims of all; `renames` are twins they stand for."""
        given: Sequence[Mapping[int, int]] = renames or [{} for _ in tensors]
        own = [tuple(r.get(a, a) for a in self.leaves(t)) for t, r in zip(tensors, given, strict=True)]
        leaves = tuple(dict.fromkeys(a for group in (max(own, key=len), *own) for a in group))
        dims = tuple(self.dim(a) for a in leaves)
        operands = [
            self.operand(t, {a: self.dim(b) for a, b in r.items()}) for t, r in zip(tensors, given, strict=True)
        ]
        made = self.builder.elementwise(name, function, *operands, dims=dims, fusion=fusion)
        return self.remember(made, leaves)

    def twins(self, value: Value, result: Value) -> dict[int, int]:
        """Atoms of an operand that stand under another name in the result, position by position from the right."""
        found: dict[int, int] = {}
        for mine, theirs in zip(self.inf.of(value)[::-1], self.inf.of(result)[::-1], strict=False):
            a, b = self.atoms.leaves(mine), self.atoms.leaves(theirs)
            if len(a) == len(b):
                found.update(
                    (x, y) for x, y in zip(a, b, strict=True) if x != y and self.atoms.size(x) == self.atoms.size(y)
                )
        return found
