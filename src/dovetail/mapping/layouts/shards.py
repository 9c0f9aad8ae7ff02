"""What every operator of a layer shards and the layouts it reads and writes tensors in, for all options at once.

The rules are those of `layout.derive` and `layout.encoding.shards`, along each axis; arrays contain codes of dims.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from dovetail.arrays import Ints
from dovetail.graph import Backward, LayerGraph, Operand, Operator, Role, Tensor
from dovetail.layout.derive import SUMS, is_term, tensor_dim_of
from dovetail.layout.encoding.shards import owner
from dovetail.layout.strategy import is_of_weights
from dovetail.mapping.layouts.conversion_kernels import FIRST_DIM, FLAT_SHARD, OPEN, WHOLE
from dovetail.mapping.layouts.options import Labels, Variable
from dovetail.mapping.layouts.scoped import OptionScope, Scoped, constant, union
from dovetail.mapping.layouts.tile import LayerTile


class LayerShards:
    """Sharded dims of the operators and layouts of the tensors of a layer and its backward."""

    def __init__(self, graph: LayerGraph, backward: Backward, tile: LayerTile, variables: Sequence[Variable]) -> None:
        self.graph = graph
        self.backward = backward
        self.tile = tile
        self.tensors: dict[str, Tensor] = {**backward.graph.tensors, **graph.tensors}
        operators = (*graph.operators, *backward.graph.operators)
        dims = dict.fromkeys(d for o in operators for d in o.dims) | dict.fromkeys(
            d for t in self.tensors.values() for d in t.dims
        )
        self.dims = tuple(dims)
        self.code = {dim: FIRST_DIM + number for number, dim in enumerate(dims)}
        self.stream = Scoped(OptionScope.of(0), self._codes(variables[0].stream))
        #: forward operator → the dims it is told to shard
        self.told = {
            name: Scoped(OptionScope.of(number), self._codes([option[name] for option in variable.options]))
            for number, variable in enumerate(variables)
            for name in variable.operators
        }
        #: operator → the dims it shards; tensor → the layout it is written in
        self.by_operator: dict[str, Scoped] = {}
        self.written: dict[str, Scoped] = {}
        self._writer = {o.tensor: (op, o) for op in graph.operators for o in op.outputs}
        self._readers: dict[str, list[tuple[Operator, Operand]]] = {}
        for operator in graph.operators:
            for operand in operator.inputs:
                self._readers.setdefault(operand.tensor, []).append((operator, operand))
        self._run()

    def _codes(self, labels: Iterable[Labels]) -> Ints:
        rows = [[WHOLE if dim is None else self.code[dim] for dim in each] for each in labels]
        return np.array(rows, np.int64).reshape(len(rows), len(self.tile.names))

    def _run(self) -> None:
        tokens = self._tokens()
        for name in self.graph.inputs:
            tensor = self.tensors[name]
            self.written[name] = self.limited(tensor, tokens if tensor.role is Role.INDEX else self.stream)
        for operator in self.graph.operators:
            self._place(operator, self.told[operator.name])
        for output, seed in self.backward.seeds.items():
            tensor = self.graph.tensors[output]
            whole = constant(np.full(len(self.tile.names), WHOLE, np.int64))
            self.written[seed] = whole if tensor.role is Role.LOSS else self.gradient_of_stream(tensor)
        for operator in self.backward.graph.operators:
            name = owner(self.graph, operator)
            self._place(operator, self._of_sum(operator) if name is None else self.told[name])

    def _place(self, operator: Operator, told: Scoped) -> None:
        table = np.zeros(FIRST_DIM + len(self.dims), np.int64)
        for dim, code in self.code.items():
            table[code] = code if operator.split(dim) is not None else WHOLE
        shards = self._with_open_sums(operator, Scoped(told.scope, table[told.values]))
        self.by_operator[operator.name] = shards
        for operand in operator.outputs:
            self.written[operand.tensor] = Scoped(shards.scope, self._result(operator, operand)[shards.values])

    def _with_open_sums(self, operator: Operator, shards: Scoped) -> Scoped:
        """A sum leaves an axis open (partial) if all its terms are partial sums along it."""
        axes = np.ones(len(self.tile.names), np.bool_)
        if operator.function not in SUMS:
            keys = "kv_heads" in operator.dims and "group" not in operator.dims
            of_weights = is_of_weights(operator)
            axes = np.array([of_weights or (keys and axis in self.tile.group_axes) for axis in self.tile.names])
        terms = [o.tensor for o in operator.inputs if is_term(operator, self.tensors[o.tensor])]
        if not terms or not axes.any():
            return shards
        opened: list[Scoped] = []
        for name in terms:
            if name not in self.written:
                return shards
            partial = (self.written[name].values == OPEN) & axes
            if not partial.any():
                return shards
            opened.append(Scoped(self.written[name].scope, partial).compressed())
        scope = union(each.scope for each in opened)
        all_open = np.logical_and.reduce(np.broadcast_arrays(*(each.over(scope) for each in opened)))
        # if query groups are sharded along some axes under every option, nothing more depends on the terms' writers
        together = Scoped(scope, all_open).compressed()
        if not together.values.any():
            return shards
        scope = union((shards.scope, together.scope))
        return Scoped(scope, np.where(together.over(scope), OPEN, shards.over(scope)))

    def _of_sum(self, operator: Operator) -> Scoped:
        """The layout of the sum of a tensor's gradients: `layout.encoding.shards.sum_shards`."""
        name = operator.name.removesuffix(".grad.sum")
        if name in self.graph.inputs:
            return self.written[name]
        writer, operand = self._writer[name]
        told = self.told[writer.name]
        if writer.regroups:
            return self._first_reader(name, with_writer=True)
        result = self._result(writer, operand)[self._possible(writer, told.values)]
        if not (result == OPEN).any():
            return Scoped(told.scope, result)
        read = self._first_reader(name, with_writer=True)
        scope = union((told.scope, read.scope))
        mine = Scoped(told.scope, result).over(scope)
        return Scoped(scope, np.where(mine == OPEN, read.over(scope), mine))

    def _possible(self, operator: Operator, told: Ints) -> Ints:
        table = np.zeros(FIRST_DIM + len(self.dims), np.int64)
        for dim, code in self.code.items():
            table[code] = code if operator.split(dim) is not None else WHOLE
        return table[told]

    def _first_reader(self, name: str, *, with_writer: bool) -> Scoped:
        """How the first user that shards a tensor shards it, axis by axis."""
        users = [*self._readers.get(name, ()), *([self._writer[name]] if with_writer and name in self._writer else [])]
        layout: Scoped | None = None
        for operator, operand in users:
            told = self.told[operator.name]
            placements = self._placements(operator, operand)[self._possible(operator, told.values)]
            if layout is None:
                layout = Scoped(told.scope, placements)
                continue
            scope = union((layout.scope, told.scope))
            first = layout.over(scope)
            layout = Scoped(scope, np.where(first == WHOLE, Scoped(told.scope, placements).over(scope), first))
        return layout or constant(np.full(len(self.tile.names), WHOLE, np.int64))

    def _tokens(self) -> Scoped:
        """The layout of token ids and labels: `layout.encoding.encoded_strategy.token_shards`."""
        names = [n for n in self.graph.inputs if self.tensors[n].role is Role.INDEX]
        seen = [self._first_reader(name, with_writer=False) for name in names]
        scope = union(each.scope for each in seen)
        shards: Ints = np.full(len(self.tile.names), WHOLE, np.int64)
        for each in seen:
            here = each.over(scope)
            shards = np.where(here == WHOLE, shards, here)
        for name, each in zip(names, seen, strict=True):
            has_dim = np.isin(shards, [self.code[d] for d in self.tensors[name].dims])
            shards = np.where(has_dim & (each.over(scope) == WHOLE), WHOLE, shards)
        return Scoped(scope, shards).compressed()

    def limited(self, tensor: Tensor, layout: Scoped) -> Scoped:
        """A layout without the dims a tensor does not have."""
        table = np.zeros(FIRST_DIM + len(self.dims), np.int64)
        for dim in tensor.dims:
            table[self.code[dim]] = self.code[dim]
        return Scoped(layout.scope, table[layout.values])

    def gradient_of_stream(self, tensor: Tensor) -> Scoped:
        """How layers hand on the gradient of a tensor between them: `layout.layout.gradient_of_stream`."""
        placed = self.limited(tensor, self.stream)
        if "batch" in tensor.dims or "batch" not in self.code:
            return placed
        return Scoped(placed.scope, np.where(self.stream.values == self.code["batch"], OPEN, placed.values))

    def needed(self, operator: Operator, operand: Operand) -> Scoped:
        """The layout an operator needs an operand in."""
        table = self._placements(operator, operand)
        table[OPEN] = OPEN if is_term(operator, self.tensors[operand.tensor]) else WHOLE
        shards = self.by_operator[operator.name]
        return Scoped(shards.scope, table[shards.values])

    def sharded_home(self, use: Scoped) -> Scoped:
        """A weight's ZeRO-sharded home: flat shards along all axes that replicate it."""
        return Scoped(use.scope, np.where(use.values == WHOLE, FLAT_SHARD, use.values))

    def _placements(self, operator: Operator, operand: Operand) -> Ints:
        """The placement of an operand, by code of the sharded dim."""
        table = np.zeros(FIRST_DIM + len(self.dims), np.int64)
        for dim in operator.dims:
            tensor_dim = tensor_dim_of(operator, operand, self.tensors[operand.tensor], dim)
            table[self.code[dim]] = WHOLE if tensor_dim is None else self.code[tensor_dim]
        return table

    def _result(self, operator: Operator, operand: Operand) -> Ints:
        """The placement of a result, by code of the sharded dim."""
        table = self._placements(operator, operand)
        table[OPEN] = OPEN
        for dim in operator.dims:
            split = operator.split(dim)
            if table[self.code[dim]] == WHOLE and split is not None and operand.tensor in split.partial:
                table[self.code[dim]] = OPEN
        return table
