"""State tables: where the state of weights is for every replica count and sharding, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from dovetail.arrays import Floats, Ints, summed
from dovetail.frameworks.framework import AxisOrder
from dovetail.frozen import frozen
from dovetail.graph import LayerGraph
from dovetail.graph.size import SettledSizes, Sizes, as_array
from dovetail.graph.tensor import Element
from dovetail.layout import Collective, CollectiveKind, CollectivePhase
from dovetail.layout.derive import gather_collectives, state_collectives, with_state_axes
from dovetail.layout.strategy import Strategy
from dovetail.plans.arrange import Arrangement, arrange
from dovetail.plans.plan import Plan
from dovetail.plans.stage_degrees import StageDegrees
from dovetail.profile import LayerSizes
from dovetail.profile.layer import UpdateWork, update_work
from dovetail.profile.version import by_group
from dovetail.step.layer_rows import KINDS, WORK, work_array
from dovetail.step.layer_tables import Setting
from dovetail.step.profiles import (
    UPDATED_WEIGHTS,
    Arrangements,
    LayerPrice,
    Pricing,
    group_name,
    matrices_of,
    placed_layer,
)
from dovetail.step.times import LayerWork


@frozen
class StateSharding:
    """Stage degrees by number, replicas, stages, and how the state is sharded among the replicas."""

    degrees: int
    replicas: int
    stages: int
    axis_order: AxisOrder
    zero_stage: int
    zero_group: int

    @property
    def sharded_work(self) -> bool:
        """Whether every micro-batch gathers weights or reduces gradients."""
        return self.zero_stage == 3 or (self.zero_stage == 2 and self.stages == 1)


@frozen
class _Class:
    """One layer class of a batch of keys: arrays over keys."""

    home: Floats
    trained_home: Floats
    tied_home: Mapping[str, Floats]
    update: UpdateWork
    reduction_s: Floats
    gathering_s: Floats
    #: in every micro-batch
    work: LayerWork


class StateTable:
    """Rows for states, made when they are first asked for; columns are arrays of rows × classes."""

    def __init__(
        self, setting: Setting, degrees: Sequence[StageDegrees], poll: Callable[[], None] = lambda: None
    ) -> None:
        self.setting = setting
        #: called from time to time while rows are made
        self.poll = poll
        self.degrees = degrees
        graph = setting.graph
        #: weights that several classes share
        self.tied_weights = tuple(
            sorted({w.tied for layer in graph.layers.values() for w in layer.weights() if w.tied})
        )
        self._rows: dict[StateSharding, int] = {}
        self._sizes: dict[str, SettledSizes] = {}
        #: kinds of context parallelism share a row
        self._rows_of_plans: dict[Plan, int] = {}
        self.keys: list[StateSharding] = []
        count = len(graph.layers)
        #: classes of which trained parameters are told apart: none where all are trained
        self.trained_columns = 0 if setting.job.adapters is None else count
        #: of every row: ZeRO stage and group, one stage or several (2), and whether every micro-batch has collectives
        self.zero_stages, self.zero_groups, self.staged = (np.zeros(0, np.int64) for _ in range(3))
        self.sharded_work = np.zeros(0, np.bool_)
        self.home = np.zeros((0, count))
        self.trained_home = np.zeros((0, self.trained_columns))
        self.tied_home = np.zeros((0, count, len(self.tied_weights)))
        self.vectors, self.flops = np.zeros((0, count)), np.zeros((0, count))
        self.reduction_s = np.zeros((0, count))
        self.gathering_s = np.zeros((0, count))
        #: what states add to every micro-batch (`work_array`)
        self.work = np.zeros((len(WORK) + 2 * len(KINDS), 0, count))

    def rows(self, keys: Sequence[StateSharding]) -> Ints:
        """The rows of states, in order."""
        groups: dict[tuple[Strategy, Strategy, bool], list[tuple[StateSharding, Arrangement]]] = {}
        new: dict[Plan, list[StateSharding]] = {}
        for key in dict.fromkeys(keys):
            if key not in self._rows:
                new.setdefault(self._plan(key), []).append(key)
        for plan, (key, *_) in new.items():
            if plan in self._rows_of_plans:
                continue
            rule = self.setting.framework.tensor_rule
            arranged = arrange(plan, self.setting.graph, self.setting.cluster, rule)
            base = replace(self.degrees[key.degrees].arranged.strategy, context="all_gather")
            groups.setdefault((arranged.strategy, base, key.stages > 1), []).append((key, arranged))
        for members in groups.values():
            self.poll()
            self._add([key for key, _ in members], [arranged for _, arranged in members])
        for plan, alike in new.items():
            self._rows |= dict.fromkeys(alike, self._rows_of_plans[plan])
        return np.array([self._rows[key] for key in keys], np.int64)

    def _plan(self, key: StateSharding) -> Plan:
        return replace(
            self.degrees[key.degrees].plan,
            data_parallel=key.replicas,
            pipeline_parallel=key.stages,
            axis_order=key.axis_order,
            zero_stage=key.zero_stage,
            zero_group=key.zero_group,
            # kinds of context parallelism differ in activations alone
            context_kind="all_gather",
        )

    def _add(self, keys: Sequence[StateSharding], arranged: Sequence[Arrangement]) -> None:
        together = Arrangements.of(arranged, [1] * len(keys))
        graph = self.setting.graph
        classes = {name: self._class(graph.layers[name], keys[0], together) for name in self.setting.classes}
        first, count = len(self.keys), len(keys)
        self._rows_of_plans |= {self._plan(key): first + number for number, key in enumerate(keys)}
        self.keys += keys
        self.zero_stages = np.concatenate([self.zero_stages, [key.zero_stage for key in keys]])
        self.zero_groups = np.concatenate([self.zero_groups, [key.zero_group for key in keys]])
        self.staged = np.concatenate([self.staged, [min(key.stages, 2) for key in keys]])
        self.sharded_work = np.concatenate([self.sharded_work, [key.sharded_work for key in keys]])
        self.work = np.concatenate([self.work, work_array([each.work for each in classes.values()], count)], axis=1)
        columns = [_columns(each, self.tied_weights, count) for each in classes.values()]
        parts = (np.stack(part, axis=1) for part in zip(*columns, strict=True))
        home, trained, tied, vectors, flops, reduction, gathering = parts
        self.home = np.concatenate([self.home, home])
        self.trained_home = np.concatenate([self.trained_home, trained[:, : self.trained_columns]])
        self.tied_home = np.concatenate([self.tied_home, tied])
        self.vectors = np.concatenate([self.vectors, vectors])
        self.flops = np.concatenate([self.flops, flops])
        self.reduction_s = np.concatenate([self.reduction_s, reduction])
        self.gathering_s = np.concatenate([self.gathering_s, gathering])

    def _sizes_of(self, layer: LayerGraph) -> SettledSizes:
        """Those of one sequence, which say how many parameters a layer has."""
        if layer.name not in self._sizes:
            self._sizes[layer.name] = SettledSizes(layer.resolve(batch=1, seq=self.setting.job.seq_len))
        return self._sizes[layer.name]

    def _class(self, layer: LayerGraph, key: StateSharding, together: Arrangements) -> _Class:
        setting, strategy = self.setting, together.strategy
        base = replace(self.degrees[key.degrees].arranged.strategy, context="all_gather")
        placed = placed_layer(layer, base)
        base_axes = set(base.mesh.axes)
        axes = {axis: source if (source := _without_zero(axis)) in base_axes else None for axis in strategy.mesh.axes}
        zero = strategy.mesh.zero if strategy.zero_stage else ()
        weights = with_state_axes(placed.weights, axes, zero)
        sizes = self._sizes_of(layer)
        pricing = setting.pricing(key.stages, key.zero_stage)

        state = state_collectives(weights, strategy.zero_stage)
        gathers = strategy.zero_stage == 3
        forward = gather_collectives(weights, CollectivePhase.FORWARD) if gathers else []
        backward = gather_collectives(weights, CollectivePhase.BACKWARD) if gathers else []
        backward += [c for c in state if c.phase is CollectivePhase.BACKWARD]
        widths = setting.job.element_bytes()
        at = LayerSizes(sizes, together.axis_sizes, widths)

        def seconds(collectives: Sequence[Collective]) -> dict[str, Floats]:
            return _by_group(collectives, together, pricing, sizes, widths)

        launches, none = LayerPrice(pricing, together).launches, np.zeros(())
        step = seconds([c for c in state if c.phase is CollectivePhase.STEP])
        updated = step.pop(UPDATED_WEIGHTS, none)
        home = [at.stored(w, w.home) for w in weights]
        update = update_work(weights, home, matrices_of(layer, setting.job))
        return _Class(
            home=summed(home),
            trained_home=summed(n for n, w in zip(home, weights, strict=True) if not w.tensor.frozen),
            tied_home={w.tensor.tied: at.stored(w, w.home) for w in weights if w.tensor.tied},
            update=update,
            reduction_s=summed(step.values()),
            gathering_s=updated,
            work=LayerWork(
                none, none, none, launches(forward), launches(backward), seconds(forward), seconds(backward)
            ),
        )


def _by_group(
    collectives: Sequence[Collective],
    together: Arrangements,
    pricing: Pricing,
    sizes: Sizes,
    widths: Mapping[Element, int],
) -> dict[str, Floats]:
    """Seconds by kind of group; collectives that differ in bytes alone are priced side by side."""
    alike: dict[tuple[str, CollectiveKind, tuple[str, ...], str], list[Collective]] = {}
    for c in collectives:
        user = c.user if c.user in pricing.widening else ""
        alike.setdefault((group_name(c, together.axes), c.kind, c.axes, user), []).append(c)
    by_kind: list[tuple[str, Floats]] = []
    for (group, *_), members in alike.items():
        bytes_of = [as_array(c.bytes(sizes, together.axis_sizes, widths)) for c in members]
        if pricing.bucket(members[0]) is not None:
            by_kind.append((group, pricing.bucket_time(together, members[0], summed(bytes_of))[0].seconds))
            continue
        stacked = np.stack(np.broadcast_arrays(*bytes_of)).reshape(len(members), -1)
        by_kind.append((group, pricing.seconds(together, members[0], stacked).sum(axis=0)))
    return by_group(by_kind)


def _wide(values: Floats, count: int) -> Floats:
    return np.broadcast_to(np.asarray(values, np.float64), (count,))


def _columns(layer: _Class, tied_weights: Sequence[str], count: int) -> tuple[Floats, ...]:
    tied = [_wide(layer.tied_home.get(weight, np.zeros(())), count) for weight in tied_weights]
    return (
        _wide(layer.home, count),
        _wide(layer.trained_home, count),
        np.stack(tied, axis=1) if tied else np.zeros((count, 0)),
        _wide(layer.update.vectors, count),
        _wide(layer.update.flops, count),
        _wide(layer.reduction_s, count),
        _wide(layer.gathering_s, count),
    )


def _without_zero(axis: str) -> str:
    return "+".join(role for role in axis.split("+") if role != "zero")
