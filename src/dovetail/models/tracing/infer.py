"""Which axes of a trace are one dim: each operator says what it knows, the rest is union-find."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from dovetail.models.tracing.axes import Atoms, Axes, Axis
from dovetail.models.tracing.flow import POINTWISE, Flow, Source
from dovetail.models.tracing.trace import Node, Value

Rule: TypeAlias = "Callable[[Inference, Node], None]"

#: Functions of one value that rewriting names.
NAMED = frozenset({"gelu", "gelu_tanh", "softcap", "silu", "quick_gelu", "relu2", "pointwise", "softplus", "dropout",
                   "native_dropout", "rotary", "softmax", "_softmax", "cumsum", "tril", "triu", "flip", "_log_softmax",
                   "log_softmax", "bernoulli", "masked_fill", "roll", "skipped"})  # fmt: skip


class Inference:
    """Axes of every value; `broken` are nodes that read or write in a way axes cannot say."""

    def __init__(self, flow: Flow, rules: Mapping[str, Rule]) -> None:
        self.flow, self._rules = flow, rules
        self.atoms = Atoms()
        self.axes: dict[int, Axes] = {}
        self._selected = 0
        self.broken: dict[int, str] = {}
        self.batch = self.atoms.new(flow.trace.batch, free=True)
        self.sequences: list[int] = []
        #: places of an image that its pixels are given by
        self.patches: list[int] = []
        #: keys of self-attention where a tensor of pairs names both
        self.keys: dict[int, int] = {}
        #: dims with a cap, as the keys an indexer chooses → their size without it
        self.uncapped: dict[int, int] = {}
        #: whether the module goes over its tokens one by one
        self.unrolled = False
        #: a sequence and a length → the number of its chunks and one chunk
        self.chunks: dict[tuple[int, int], tuple[int, int]] = {}
        for value in flow.trace.inputs:
            self._declare_input(value)
        for node in flow.nodes:
            if flow.of(node.result) >= Source.INDEX or node.target == "arange":
                self._visit(node)

    def of(self, value: Value) -> Axes:
        """The axes of a value; fresh ones where nothing is known."""
        if value.id not in self.axes:
            self.axes[value.id] = self.atoms.fresh(value.shape)
        return self.axes[value.id]

    def _declare_input(self, value: Value) -> None:
        axes: list[Axis] = [self._rows(value.shape[0])] if value.shape else []
        for position, size in enumerate(value.shape[1:]):
            is_tokens = position == 0 and self.flow.source[value.id] is Source.INDEX and len(value.shape) == 2
            if is_tokens and size > 1:
                first = self.sequences[0] if self.sequences and "decoder" not in value.name else None
                known = first if first is not None and self.atoms.size(first) == size else None
                atom = self.atoms.new(size, free=True) if known is None else known
                if known is None:
                    self.sequences.append(atom)
                axes.append((atom,))
            else:
                axes.append(self.atoms.axis(size))
        self.axes[value.id] = tuple(axes)

    def _rows(self, size: int) -> Axis:
        """The first axis of an input: the batch, or as many places of each sample, one sample behind another."""
        places, rest = divmod(size, self.flow.trace.batch)
        if places == 1 or rest:
            return (self.batch,)
        self.patches.append(self.atoms.new(places, fixed=True))
        return self.batch, self.patches[-1]

    def _visit(self, node: Node) -> None:
        rule = self._rules.get(node.target)
        if rule is not None:
            rule(self, node)
        elif node.target in POINTWISE or (node.target in NAMED and len(list(node.inputs())) > 1):
            pointwise(self, node)
        elif node.target in NAMED and len(node.results[0].shape) == len(node.args[0].shape):
            self.axes[node.result.id] = self.of(node.args[0])
        else:
            self.broken[id(node)] = f"{node.target} is not known"
            self._same_lengths(node)
        for result in node.results:
            self._fitted(node, result)
        self._count_parts(node)

    def _count_parts(self, node: Node) -> None:
        """Whether a sequence is taken apart into its tokens."""
        source: object = node.args[0] if node.args else None
        if not isinstance(source, Value):
            return
        grows = [self.grows(axis) for axis in self.of(source)]
        self._selected += node.target == "select" and grows[int(node.args[1])]
        many = max(len(node.results), self._selected) >= (self.flow.trace.seq or 1) > 1
        self.unrolled = self.unrolled or (many and any(grows))

    def _same_lengths(self, node: Node) -> None:
        """What is not known keeps the axes that are as long as those of what it reads."""
        data = sorted(node.inputs(), key=lambda v: (-self.flow.of(v), -len(v.shape)))
        for result in node.results if data else ():
            axes, same_rank = self.of(data[0]), len(data[0].shape) == len(result.shape)
            fresh = self.atoms.fresh(result.shape)
            fits = [self.atoms.length(a) == n for a, n in zip(axes, result.shape, strict=False)]
            # of another rank, the axes before the first that is of another length
            kept = [i for i, fit in enumerate(fits) if fit and (same_rank or all(fits[:i]))]
            self.axes[result.id] = tuple(axes[i] if i in kept else axis for i, axis in enumerate(fresh))

    def sized(self, like: Axis, size: int) -> Axis:
        """An axis cut from or added to one a job sizes: it grows with the job too."""
        (atom,) = self.atoms.leaves(like)
        known = [atom, *self.sequences, *(n for n, _ in self.chunks.values())]
        same = next((a for a in known if self.atoms.size(a) == size), None)
        return (self.atoms.new(size, free=True) if same is None else same,)

    def grows(self, axis: Axis) -> bool:
        """Whether an axis is one that a job sizes."""
        leaves = self.atoms.leaves(axis)
        return len(leaves) == 1 and self.atoms.is_free(leaves[0])

    def _fitted(self, node: Node, value: Value) -> None:
        """Axes that are not as long as the value's shape says are fresh ones, and the node is noted."""
        axes = self.of(value)
        if len(axes) != len(value.shape):
            axes = self.atoms.fresh(value.shape)
        fits = [self.atoms.length(a) == n for a, n in zip(axes, value.shape, strict=True)]
        if not all(fits) or len(self.of(value)) != len(value.shape):
            self.broken.setdefault(id(node), f"the axes of {node.target} do not fit")
        self.axes[value.id] = tuple(
            a if fit else self.atoms.axis(n) for a, fit, n in zip(axes, fits, value.shape, strict=True)
        )

    def same(self, one: Axis, other: Axis, node: Node) -> None:
        """Two axes are one; where they cannot be, the node is noted."""
        if self.atoms.leaves(one) and self.atoms.leaves(other) and not self.atoms.unify(one, other):
            self.broken.setdefault(id(node), f"the axes of {node.target} do not fit")


def by_sample(inf: Inference, value: Value, rows: int, otherwise: Axis) -> Axis:
    """The first axis of what is made of a value whose first axis has one sample behind another, as this has then."""
    batch = inf.atoms.find(inf.batch)
    places, rest = divmod(rows, inf.atoms.size(batch))
    leads = inf.atoms.leaves(inf.of(value)[0])[:1] == (batch,) and batch not in inf.atoms.leaves(otherwise)
    if rest or not places or not leads:
        return otherwise
    return (batch, inf.atoms.new(places, fixed=True)) if places > 1 else (batch,)


def pointwise(inf: Inference, node: Node) -> None:
    """Axes meet from the right; those of size 1 are broadcast."""
    shape = node.result.shape
    result: list[Axis] = [()] * len(shape)
    values = sorted(node.inputs(), key=lambda v: (-inf.flow.of(v), -len(v.shape)))
    for value in values:
        if inf.flow.of(value) <= Source.INDEX and inf.flow.of(node.result) is not inf.flow.of(value):
            continue
        axes = inf.of(value)
        for back in range(1, len(axes) + 1):
            axis = axes[-back]
            if not inf.atoms.leaves(axis):
                continue
            if not inf.atoms.leaves(result[-back]):
                result[-back] = axis
            elif inf.atoms.length(axis) == inf.atoms.length(result[-back]):
                inf.same(result[-back], axis, node)
    for position, size in enumerate(shape):
        if inf.atoms.length(result[position]) != size:
            result[position] = inf.atoms.axis(size)
    inf.axes[node.result.id] = inf.atoms.distinct(tuple(result))
