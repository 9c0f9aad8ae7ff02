"""Axes that layers are profiled along: plans with the same kinds of parallelism have them in common."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from dovetail.graph import ModelGraph
from dovetail.layout import Collective, CollectivePhase, Layout, Mesh, PlacedLayer, Strategy
from dovetail.layout.axes import AtomicAxes
from dovetail.plans.arrange import Arrangement
from dovetail.step.profiles import group_name, placed_layer

#: What axes of a mesh are in use.
_Kinds = tuple[object, ...]


class Structures:
    """For each arrangement the axes its layers are profiled along: all that arrangements of its kinds have.

    An axis that a plan does not have is there with one chip. Where a layer is then not what it is along the plan's own
    axes, these are taken. One profile of many stage degrees takes little more than that of one.
    """

    def __init__(self, graph: ModelGraph, arranged: Iterable[Arrangement]) -> None:
        self._layers = list(graph.layers.values())
        self._along: dict[Strategy, Arrangement] = {}
        alike: dict[_Kinds, dict[Strategy, Arrangement]] = {}
        for each in arranged:
            alike.setdefault(_kinds(each.strategy), {})[each.strategy] = each
        self._widest = {kinds: _widest(list(members.values())) for kinds, members in alike.items()}

    def along(self, arranged: Arrangement) -> Arrangement:
        """One with the axes that an arrangement is profiled along."""
        if arranged.strategy not in self._along:
            widest = self._widest.get(_kinds(arranged.strategy), arranged)
            self._along[arranged.strategy] = widest if self._serves(widest, arranged) else arranged
        return self._along[arranged.strategy]

    def _serves(self, widest: Arrangement, own: Arrangement) -> bool:
        absent = set(widest.strategy.mesh.axes) - set(own.strategy.mesh.axes)
        return all(
            placements(placed_layer(layer, widest.strategy), widest.axes, absent)
            == placements(placed_layer(layer, own.strategy), own.axes, ())
            for layer in self._layers
        )


def _kinds(strategy: Strategy) -> _Kinds:
    mesh = strategy.mesh
    used = (mesh.tensor, mesh.group, mesh.context, mesh.expert, mesh.expert_tensor, mesh.zero)
    return replace(strategy, mesh=Mesh()), *map(bool, used)


def _widest(arranged: Sequence[Arrangement]) -> Arrangement:
    """An arrangement with the axes of all of these, each of one chip, from the innermost on."""
    first, meshes = arranged[0], [each.strategy.mesh for each in arranged]
    order = sorted({axis: _rank(axis, mesh) for mesh in meshes for axis in mesh.axes}.items(), key=lambda item: item[1])

    def together(kind: str) -> tuple[str, ...]:
        return tuple(axis for axis, _ in order if any(axis in getattr(mesh, kind) for mesh in meshes))

    mesh = Mesh(**{kind: together(kind) for kind in Mesh.__dataclass_fields__})
    ways = {axis: joins for each in arranged for axis, joins in each.joins.items()}
    one = {axis: (1,) * len(ways[axis]) for axis, _ in order}
    axes = AtomicAxes(mesh, dict.fromkeys(one, 1), one)
    return Arrangement(axes, replace(first.strategy, mesh=mesh), one, one)


def _rank(axis: str, mesh: Mesh) -> tuple[bool, ...]:
    """Where an axis is: tensor, then context, then data; of each those that shard an expert, then spread experts."""
    return (
        axis in mesh.data,
        axis in mesh.context,
        axis in mesh.group,
        axis not in mesh.expert_tensor,
        axis not in mesh.expert,
        axis not in mesh.zero,
    )


def placements(placed: PlacedLayer, axes: AtomicAxes, absent: Collection[str]) -> tuple[object, ...]:
    """All that a micro-batch's profile reads of a placed layer, without some axes."""

    def layout(whole: Layout | None) -> Layout | None:
        return whole and Layout(tuple(placement for placement in whole.placements if placement[0] not in absent))

    def collectives(several: Iterable[Collective]) -> list[tuple[object, ...]]:
        return [
            (
                each.kind,
                tuple(axis for axis in each.axes if axis not in absent),
                each.tensor,
                tuple(axis for axis in each.sharded_by if axis not in absent),
                (each.user, each.phase, each.values, each.streamed, group_name(each, axes)),
            )
            for each in several
            if each.phase is not CollectivePhase.STEP
        ]

    operators = [
        (p.operator.name, {axis: dim for axis, dim in p.shards.items() if axis not in absent})
        for p in (*placed.forward, *placed.backward)
    ]
    versions = [
        (v.tensor.name, layout(v.layout), layout(v.made_of), collectives(v.collectives), v.readers, v.saved)
        for v in (*placed.versions, *placed.backward_versions)
    ]
    return (
        operators,
        collectives(placed.collectives),
        versions,
        [(w.tensor.name, layout(w.use), layout(w.home)) for w in placed.weights],
        {name: layout(written) for name, written in placed.written.items()},
        [(tensor.name, layout(handed)) for tensor, handed in placed.handed_on],
    )
