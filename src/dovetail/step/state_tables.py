"""State tables: where the state of weights is for every replica count and sharding, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from dovetail.arrays import Floats, Ints, summed
from dovetail.frameworks.framework import AxisOrder
from dovetail.frozen import frozen
from dovetail.graph import LayerGraph
from dovetail.graph.size import SettledSizes
from dovetail.layout import PlacedWeight
from dovetail.layout.strategy import Strategy
from dovetail.plans.arrange import Arrangement, arrange
from dovetail.plans.plan import Plan
from dovetail.plans.stage_degrees import StageDegrees
from dovetail.profile import LayerSizes
from dovetail.profile.layer import UpdateWork, update_work
from dovetail.step.arrangements import Arrangements
from dovetail.step.layer_rows import KINDS, WORK, work_array
from dovetail.step.layer_tables import Setting
from dovetail.step.profiles import UPDATED_WEIGHTS, matrices_of, placed_layer
from dovetail.step.state_moves import StateMoves, launches, seconds_by_group, sent
from dovetail.step.times import LayerWork

#: Stage degrees whatever their context parallelism, replicas, stages, rank order, ZeRO stage and group.
_Effect = tuple[int, int, int, AxisOrder, int, int]


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
    #: of the untied ones, those with a gradient
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
        self._rows_of_effects: dict[_Effect, int] = {}
        self._first_of: dict[Plan, int] = {}
        self._bases: dict[int, tuple[int, Strategy]] = {}
        self.keys: list[StateSharding] = []
        count = len(graph.layers)
        #: classes of which trained parameters are told apart: none where all are trained
        self.trained_columns = 0 if graph.trains_all() else count
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
        new: dict[_Effect, list[StateSharding]] = {}
        for key in dict.fromkeys(keys):
            if key not in self._rows:
                new.setdefault(self._effect(key), []).append(key)
        for effect, (key, *_) in new.items():
            if effect in self._rows_of_effects:
                continue
            rule = self.setting.framework.tensor_rule
            arranged = arrange(self._plan(key), self.setting.graph, self.setting.cluster, rule)
            base = self._base(key.degrees)[1]
            groups.setdefault((arranged.strategy, base, key.stages > 1), []).append((key, arranged))
        made: list[tuple[Floats, ...]] = []
        for members in groups.values():
            self.poll()
            made.append(self._columns([key for key, _ in members], [arranged for _, arranged in members]))
        if made:
            self._add([key for members in groups.values() for key, _ in members], made)
        for effect, alike in new.items():
            self._rows |= dict.fromkeys(alike, self._rows_of_effects[effect])
        return np.array([self._rows[key] for key in keys], np.int64)

    def _effect(self, key: StateSharding) -> _Effect:
        """What of a state makes a difference."""
        number = self._base(key.degrees)[0]
        return number, key.replicas, key.stages, key.axis_order, key.zero_stage, key.zero_group

    def _base(self, degrees: int) -> tuple[int, Strategy]:
        """The first stage degrees that are these but for the kind of context parallelism, and their strategy."""
        if degrees not in self._bases:
            each = self.degrees[degrees]
            strategy = replace(each.arranged.strategy, context="all_gather")
            first = self._first_of.setdefault(replace(each.plan, context_kind="all_gather"), degrees)
            self._bases[degrees] = first, strategy
        return self._bases[degrees]

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

    def _columns(self, keys: Sequence[StateSharding], arranged: Sequence[Arrangement]) -> tuple[Floats, ...]:
        """Columns of states along the same axes: what each adds to micro-batches, then `_wide_columns`."""
        base, pricing = self._base(keys[0].degrees)[1], self.setting.pricing(keys[0].stages, keys[0].zero_stage)
        count = len(keys)
        moves = StateMoves(Arrangements.of(arranged, [1] * count), base, pricing)
        classes = self._classes(moves, base, count)
        columns = [_wide_columns(each, self.tied_weights, count) for each in classes]
        parts = (np.stack(part, axis=1) for part in zip(*columns, strict=True))
        return work_array([each.work for each in classes], count), *parts

    def _add(self, keys: Sequence[StateSharding], made: Sequence[tuple[Floats, ...]]) -> None:
        first = len(self.keys)
        self._rows_of_effects |= {self._effect(key): first + number for number, key in enumerate(keys)}
        self.keys += keys
        self.zero_stages = np.concatenate([self.zero_stages, [key.zero_stage for key in keys]])
        self.zero_groups = np.concatenate([self.zero_groups, [key.zero_group for key in keys]])
        self.staged = np.concatenate([self.staged, [min(key.stages, 2) for key in keys]])
        self.sharded_work = np.concatenate([self.sharded_work, [key.sharded_work for key in keys]])
        work, home, trained, tied, vectors, flops, reduction, gathering = zip(*made, strict=True)
        self.work = np.concatenate([self.work, *work], axis=1)
        self.home = np.concatenate([self.home, *home])
        self.trained_home = np.concatenate([self.trained_home, *(part[:, : self.trained_columns] for part in trained)])
        self.tied_home = np.concatenate([self.tied_home, *tied])
        self.vectors = np.concatenate([self.vectors, *vectors])
        self.flops = np.concatenate([self.flops, *flops])
        self.reduction_s = np.concatenate([self.reduction_s, *reduction])
        self.gathering_s = np.concatenate([self.gathering_s, *gathering])

    def _sizes_of(self, layer: LayerGraph) -> SettledSizes:
        """Those of one sequence, which say how many parameters a layer has."""
        if layer.name not in self._sizes:
            self._sizes[layer.name] = SettledSizes(layer.resolve(batch=1, seq=self.setting.job.seq_len))
        return self._sizes[layer.name]

    def _classes(self, moves: StateMoves, base: Strategy, count: int) -> list[_Class]:
        """All layer classes, with the moves of their weights under strategies that are `base` but for the state."""
        setting, widths = self.setting, self.setting.job.element_bytes()
        layers = [setting.graph.layers[name] for name in setting.classes]
        placed = [placed_layer(layer, base).weights for layer in layers]
        of = [[moves.of(weight) for weight in weights] for weights in placed]
        parts = [
            sent(weights, each, self._sizes_of(layer), widths)
            for layer, weights, each in zip(layers, placed, of, strict=True)
        ]
        seconds = seconds_by_group([part for each in parts for part in each], moves.together, moves.pricing, count)
        classes: list[_Class] = []
        for number, layer in enumerate(layers):
            weights = [PlacedWeight(w.tensor, m.use, m.home) for w, m in zip(placed[number], of[number], strict=True)]
            at = LayerSizes(self._sizes_of(layer), moves.together.axis_sizes, widths)
            home = [at.stored(weight, weight.home) for weight in weights]
            owned = [(n, weight.tensor) for n, weight in zip(home, weights, strict=True)]
            none, (_, in_forward, in_backward) = np.zeros(()), parts[number]
            step, forward, backward = seconds[3 * number : 3 * number + 3]
            gathering = step.pop(UPDATED_WEIGHTS, none)
            classes.append(
                _Class(
                    home=summed(home),
                    trained_home=summed(n for n, w in owned if not (w.frozen or w.tied)),
                    tied_home={w.tied: n for n, w in owned if w.tied},
                    update=update_work(weights, home, matrices_of(layer, setting.job)),
                    reduction_s=summed(step.values()),
                    gathering_s=gathering,
                    work=LayerWork(none, none, none, launches(in_forward), launches(in_backward), forward, backward),
                )
            )
        return classes


def _wide(values: Floats, count: int) -> Floats:
    return np.broadcast_to(np.asarray(values, np.float64), (count,))


def _wide_columns(layer: _Class, tied_weights: Sequence[str], count: int) -> tuple[Floats, ...]:
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
