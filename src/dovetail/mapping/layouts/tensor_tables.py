"""Cost tables of a layer: one per tensor over its writer and readers, and one per operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from dovetail.arrays import Array, Floats
from dovetail.frameworks.parameter_bytes import state_bytes
from dovetail.graph import Backward, Operator, Role, Tensor
from dovetail.graph.size import as_array, product
from dovetail.layout import CollectiveKind, CollectivePhase
from dovetail.mapping.layouts.options import Variable
from dovetail.mapping.layouts.policies import Policies
from dovetail.mapping.layouts.scoped import OptionScope, Scoped, union
from dovetail.mapping.layouts.setting import LayerSetting
from dovetail.mapping.layouts.shards import LayerShards
from dovetail.mapping.layouts.tensor_flow import TensorFlow
from dovetail.mapping.layouts.tensor_layouts import TensorLayouts, as_bits
from dovetail.mapping.layouts.tile import LayerTile
from dovetail.mapping.layouts.times import seconds_of
from dovetail.mapping.layouts.versions import Versions

#: Seconds, bytes of state and bytes saved.
SECONDS, STATE, SAVED = range(3)


#: A table whose options are told apart by class has more entries than this otherwise, and so many times more.
FEW_ENTRIES, FEWER = 4096, 3


class TableTooLargeError(Exception):
    """A table would have more entries than allowed."""


class LayerCosts:
    """All costs of a layer as tables over variables."""

    def __init__(
        self,
        setting: LayerSetting,
        tile: LayerTile,
        variables: Sequence[Variable],
        chains: Sequence[Sequence[str]],
        backward: Backward,
        *,
        recompute: bool,
    ) -> None:
        self.setting = setting
        self.backward = backward
        self.shards = LayerShards(setting.graph, backward, tile, variables)
        groups = _all_operators(setting, chains)
        self.policies = Policies(setting.graph, groups, len(variables), may_recompute=recompute)
        self._lengths = [len(v.options) for v in variables] + [len(options) for options in self.policies.options]
        self._of = TensorLayouts(setting, self.shards)
        self._pending: list[tuple[OptionScope, int, Callable[[OptionScope], Array]]] = []

    def tables(self, most: int) -> dict[OptionScope, Floats]:
        """OptionScope → costs, objectives first; raises an error before building anything if a table is too large."""
        self._operators()
        graph = self.setting.graph
        for tensor in graph.tensors.values():
            if tensor.role in (Role.WEIGHT, Role.CONSTANT):
                self._weight(tensor)
            else:
                self._activation(tensor)
        for tensor in self.backward.graph.tensors.values():
            if tensor.name not in graph.tensors:
                self._gradient(tensor)
        pending = [(self._table_scope(scope), objective, make) for scope, objective, make in self._pending]
        largest = max(scope.entries(self._lengths) for scope, _, _ in pending)
        if largest > most:
            raise TableTooLargeError(str(largest))
        self._of.prices.prepare(
            {self._of.bytes(t) for t in self.shards.tensors.values() if t.role is not Role.WEIGHT_GRADIENT}
        )
        tables: dict[OptionScope, Floats] = {}
        for scope, objective, make in pending:
            if scope not in tables:
                tables[scope] = np.zeros((3, *scope.shape(self._lengths)))
            tables[scope][objective] += make(scope)
        return tables

    def _table_scope(self, scope: OptionScope) -> OptionScope:
        """Options told apart only where that makes a large table much smaller: classes are more variables to solve."""
        full = scope.plain().entries(self._lengths)
        is_worth = full > FEW_ENTRIES and full >= FEWER * scope.entries(self._lengths)
        return scope if is_worth else scope.plain()

    def _add(self, objective: int, cost: Scoped) -> None:
        cost = cost.compressed() if len(cost.scope.variables) > 1 else cost
        self._pending.append((cost.scope, objective, cost.over))

    # operators

    def _operators(self) -> None:
        """Seconds of every operator and of the exchanges inside it, in the forward and when it is recomputed."""
        setting, graph = self.setting, self.setting.graph
        forward = seconds_of(graph.operators, graph, self.shards, setting.sizes, setting.chip, setting.widths)
        later = self.backward.graph.operators
        backward = seconds_of(later, graph, self.shards, setting.sizes, setting.chip, setting.widths) if later else {}
        for operator in graph.operators:
            seconds = forward[operator.name]
            self._add(SECONDS, seconds)
            self._add(SECONDS, Scoped(seconds.scope, self._exchanges(operator, CollectivePhase.FORWARD)))
            recomputed = self.policies.recomputed[operator.name]
            if recomputed.values.any():
                scope = union((seconds.scope, recomputed.scope))
                recompute_s = seconds.values + self._exchanges(operator, CollectivePhase.BACKWARD)
                self._add(
                    SECONDS, Scoped(scope, Scoped(seconds.scope, recompute_s).over(scope) * recomputed.over(scope))
                )
        for operator in later:
            seconds = backward[operator.name]
            told = self._exchanges(operator, CollectivePhase.BACKWARD)
            self._add(SECONDS, Scoped(seconds.scope, seconds.values + told))

    def _exchanges(self, operator: Operator, phase: CollectivePhase) -> Array:
        codes = self.shards.by_operator[operator.name].values
        total: Array = np.zeros(codes.shape[:-1])
        for exchange in operator.exchanges:
            axes = as_bits(codes == self.shards.code[exchange.dim])
            inside = np.isin(codes, [self.shards.code[d] for d in exchange.dims if d != exchange.dim])
            kind = CollectiveKind.PERMUTE if exchange.passed_on else CollectiveKind.ALL_REDUCE
            size = 4.0 * exchange.values * float(as_array(product(self.setting.sizes, exchange.dims)))
            share = self._of.share(kind, Tensor("", ()), operator.name, phase)
            total = total + share * self._of.prices.of(kind, size)[axes, as_bits(inside)]
        return total

    # layouts of tensors

    def _reads(self, operators: Iterable[Operator], name: str) -> list[tuple[str, Scoped]]:
        """The readers of a tensor and the layouts they need, in order."""
        return [
            (o.name, self.shards.needed(o, i).compressed()) for o in operators for i in o.inputs if i.tensor == name
        ]

    def _gradient(self, tensor: Tensor) -> None:
        """Conversions of a tensor that the backward writes."""
        events = [layout for _, layout in self._reads(self.backward.graph.operators, tensor.name)]
        events += [
            self.shards.gradient_of_stream(source)
            for source in self.setting.graph.stream(self.setting.graph.inputs)
            if self.backward.gradients.get(source.name) == tensor.name
        ]
        self._converted(tensor, [self.shards.written[tensor.name].compressed()], events, CollectivePhase.BACKWARD)

    def _converted(self, tensor: Tensor, given: list[Scoped], events: list[Scoped], phase: CollectivePhase) -> None:
        """Conversions of a tensor that is not saved."""
        if not events:
            return
        scope = union(each.scope for each in (*given, *events))

        def seconds(scope: OptionScope) -> Array:
            indexed, conversions = self._of.conversions(tensor, (*given, *events), [phase])
            versions = Versions(conversions)
            for each in indexed[: len(given)]:
                versions.give(each.over(scope))
            for each in indexed[len(given) :]:
                versions.require(each.over(scope))
            return versions.seconds(0)

        self._pending.append((scope, SECONDS, seconds))

    def _weight(self, tensor: Tensor) -> None:
        """A weight's all-gather, the reduction of its gradient, and its state; or a constant."""
        setting, shards = self.setting, self.shards
        forward = [layout for _, layout in self._reads(setting.graph.operators, tensor.name)]
        backward = [layout for _, layout in self._reads(self.backward.graph.operators, tensor.name)]
        if tensor.role is Role.CONSTANT:
            for events, phase in ((forward, CollectivePhase.FORWARD), (backward, CollectivePhase.BACKWARD)):
                self._converted(tensor, events[:1], events, phase)
            return
        if not forward:
            return
        use = forward[0]
        home = shards.sharded_home(use) if setting.zero_stage else use
        given = home if setting.zero_stage == 3 else use
        self._converted(tensor, [given], forward, CollectivePhase.FORWARD)
        self._converted(tensor, [given], [*backward, use], CollectivePhase.BACKWARD)
        gradient = self.backward.gradients.get(tensor.name)
        if gradient is not None:
            phase = CollectivePhase.BACKWARD if setting.zero_stage >= 2 else CollectivePhase.STEP
            written, of = shards.written[gradient].compressed(), self.backward.graph.tensors[gradient]
            self._step(of, written, home, "gradient", phase)
            if setting.zero_stage == 1:
                self._step(tensor, home, use, "updated", CollectivePhase.STEP)
        elements = float(as_array(tensor.points(setting.sizes)))
        used, stored = (elements / self._of.parts(each.values) for each in (use, home))
        parts = state_bytes(used, stored, setting.zero_stage, setting.parameter_bytes)
        self._add(STATE, Scoped(use.scope, sum(parts, setting.working_bytes * used)))

    def _step(self, tensor: Tensor, before: Scoped, after: Scoped, user: str, phase: CollectivePhase) -> None:
        scope = union((before.scope, after.scope))

        def seconds(scope: OptionScope) -> Array:
            (old, new), conversions = self._of.conversions(tensor, (before, after), [phase], user)
            return conversions.seconds[0][old.over(scope), new.over(scope)]

        self._pending.append((scope, SECONDS, seconds))

    def _activation(self, tensor: Tensor) -> None:
        """A tensor of the forward: its conversions, what is saved or recomputed of it, and its backward readers."""
        graph, shards, name = self.setting.graph, self.shards, tensor.name
        reads = self._reads(graph.operators, name)
        if name in graph.outputs and tensor.role is Role.ACTIVATION:
            reads.append(("", shards.limited(tensor, shards.stream)))
        later = self._reads(self.backward.graph.operators, name)
        written = shards.written[name].compressed()
        needed = name in self.policies.needed
        savers = [o.name for o in graph.operators if name in o.saves]
        flags = [self.policies.recomputed[reader] for reader, _ in reads if reader]
        writers = [o.name for o in graph.operators if any(i.tensor == name for i in o.outputs)]
        flags += [self.policies.recomputed[writer] for writer in writers]
        layouts = [written, *(layout for _, layout in reads), *(layout for _, layout in later)]
        if len(layouts) == 1 and not needed:
            return
        plain = union(each.scope for each in layouts)
        scope = union((plain, *(flag.scope for flag in flags))) if needed or reads else plain
        flow = TensorFlow(self._of, self.policies, tensor, reads, later, savers, layouts)
        self._pending.append((plain, SECONDS, flow.seconds))
        if needed or any(flag.values.any() for flag in flags):
            self._pending.append((scope, SECONDS, flow.recompute_seconds))
            self._pending.append((scope, SAVED, flow.saved_bytes))
        if later:
            self._pending.append((plain, SECONDS, flow.later_seconds))


def _all_operators(setting: LayerSetting, chains: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    grouped = {name for group in chains for name in group}
    return [*chains, *([o.name] for o in setting.graph.operators if o.name not in grouped)]
