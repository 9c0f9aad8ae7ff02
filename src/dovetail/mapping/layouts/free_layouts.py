"""The best free layouts of a layer class on a tile: seconds, bytes of state and bytes saved against each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dovetail.arrays import Floats
from dovetail.graph import Backward, differentiate
from dovetail.hardware import Cluster
from dovetail.layout import Mesh, Strategy
from dovetail.layout.axes import AtomicAxes
from dovetail.layout.encoding import OperatorEncoding
from dovetail.mapping.elimination import frontier
from dovetail.mapping.layouts.groups import Together
from dovetail.mapping.layouts.layer_problem import MOST_ENTRIES, layer_problem
from dovetail.mapping.layouts.options import Allowed
from dovetail.mapping.layouts.setting import LayerSetting
from dovetail.mapping.layouts.tile import LayerTile
from dovetail.profile.layer import CollectivePrice
from dovetail.step.profiles import Arrangements, Pricing


@dataclass(frozen=True, slots=True)
class LayoutPoint:
    """A layout of a layer that no other beats in all of seconds, bytes of state and bytes saved."""

    seconds: float
    state_bytes: float
    saved_bytes: float
    tile: LayerTile
    encoding: Mapping[str, OperatorEncoding]
    #: operators that are computed again where the backward needs what they write
    again: tuple[str, ...]
    stream: Mapping[str, str]

    @property
    def costs(self) -> tuple[float, float, float]:
        """The objectives in order."""
        return self.seconds, self.state_bytes, self.saved_bytes


def free_layouts(
    setting: LayerSetting,
    tiles: Iterable[LayerTile],
    price_on: Callable[[LayerTile], CollectivePrice] | None = None,
    *,
    stream: Mapping[str, str] | None = None,
    allowed: Allowed | None = None,
    recompute: bool = True,
    together: Together | None = None,
    epsilon: float = 0.0,
    most: Sequence[float] | None = None,
    most_entries: int = MOST_ENTRIES,
    backward: Backward | None = None,
) -> tuple[LayoutPoint, ...]:
    """The frontier over all tiles given; `price_on` prices collectives on each, where they are not priced alike.

    With an `epsilon` every layout has a point that is at most 1 + epsilon times worse in each objective; layouts beyond
    `most` in any objective do not count.
    """
    backward = backward or differentiate(setting.graph)
    found: list[LayoutPoint] = []
    for tile in tiles:
        here = setting if price_on is None else replace(setting, price=price_on(tile))
        problem = layer_problem(
            here,
            tile,
            stream=stream,
            allowed=allowed,
            recompute=recompute,
            together=together,
            most_entries=most_entries,
            backward=backward,
        )
        best = frontier(problem.problem, epsilon=epsilon, most=most)
        for costs, chosen in zip(best.points, best.choices, strict=True):
            choice = np.asarray(chosen, np.int64)
            seconds, state, saved = (float(cost) for cost in costs)
            encoding, again = problem.encoding(choice), problem.recomputed(choice)
            found.append(LayoutPoint(seconds, state, saved, tile, encoding, again, problem.stream(choice)))
        found = _undominated(found)
    return tuple(found)


def tile_price(pricing: Pricing, cluster: Cluster, tile: LayerTile, replicas: float = 1.0) -> CollectivePrice:
    """What collectives along the axes of a tile take on a cluster."""
    joins, strides = tile.ways(cluster)
    by_way = [{a: np.array(of[a], np.float64) for a in tile.names} for of in (joins, strides)]
    mesh = Mesh(tensor=tile.names)
    axes = AtomicAxes(mesh, tile.sizes, {axis: joins[axis] for axis in tile.names})
    arranged = Arrangements(axes, Strategy(mesh), tile.sizes, *by_way, batch=1)
    return partial(pricing.seconds, arranged, copies=replicas)


def _undominated(points: list[LayoutPoint]) -> list[LayoutPoint]:
    """Those no other is at least as good as in everything; of equal ones the first."""
    ordered = sorted(points, key=lambda point: point.costs)
    front: list[LayoutPoint] = []
    costs: Floats = np.zeros((0, 3))
    for point in ordered:
        if not (costs <= np.array(point.costs)).all(axis=1).any():
            front.append(point)
            costs = np.vstack([costs, point.costs])
    return front
