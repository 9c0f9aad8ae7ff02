"""The Pareto front of a layer class's free layouts on a tile: seconds, state bytes and saved bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from dovetail.arrays import Floats
from dovetail.frozen import frozen
from dovetail.graph import differentiate
from dovetail.hardware import Cluster
from dovetail.layout import Mesh, Strategy
from dovetail.layout.axes import AtomicAxes
from dovetail.layout.encoding import OperatorEncoding
from dovetail.mapping.elimination import frontier
from dovetail.mapping.layouts.layer_problem import LayoutSpace, layer_problem
from dovetail.mapping.layouts.setting import LayerSetting
from dovetail.mapping.layouts.tile import LayerTile
from dovetail.profile.layer import CollectivePrice
from dovetail.step.arrangements import Arrangements
from dovetail.step.profiles import EVEN, LayerPrice, Pricing, TokenRouting


@frozen
class LayoutPoint:
    """A layout on the Pareto front of seconds, state bytes and saved bytes."""

    seconds: float
    state_bytes: float
    saved_bytes: float
    tile: LayerTile
    encoding: Mapping[str, OperatorEncoding]
    #: operators recomputed when the backward needs their outputs
    recomputed: tuple[str, ...]
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
    space: LayoutSpace | None = None,
    epsilon: float = 0.0,
    most: Sequence[float] | None = None,
) -> tuple[LayoutPoint, ...]:
    """The Pareto front over all tiles; `price_on` prices collectives on each, if prices differ.

    With an `epsilon` every layout has a point that is at most 1 + epsilon times worse in each objective; layouts beyond
    `most` in any objective do not count.
    """
    backward = differentiate(setting.graph)
    points: list[LayoutPoint] = []
    for tile in tiles:
        priced = setting if price_on is None else replace(setting, price=price_on(tile))
        problem = layer_problem(priced, tile, space, backward=backward)
        best = frontier(problem.problem, epsilon=epsilon, most=most)
        for costs, options in zip(best.points, best.choices, strict=True):
            choice = np.asarray(options, np.int64)
            seconds, state, saved = (float(cost) for cost in costs)
            encoding, recomputed = problem.encoding(choice), problem.recomputed(choice)
            points.append(LayoutPoint(seconds, state, saved, tile, encoding, recomputed, problem.stream(choice)))
        points = _undominated(points)
    return tuple(points)


def tile_price(pricing: Pricing, cluster: Cluster, tile: LayerTile, routing: TokenRouting = EVEN) -> CollectivePrice:
    """Seconds of collectives along the axes of a tile on a cluster."""
    joins, strides = tile.ways(cluster)
    by_way = [{a: np.array(of[a], np.float64) for a in tile.names} for of in (joins, strides)]
    mesh = Mesh(tensor=tile.names)
    axes = AtomicAxes(mesh, tile.sizes, {axis: joins[axis] for axis in tile.names})
    arranged = Arrangements(axes, Strategy(mesh), tile.sizes, *by_way, batch=1)
    return LayerPrice(pricing, arranged, routing)


def _undominated(points: list[LayoutPoint]) -> list[LayoutPoint]:
    """The points no other matches or beats in every objective; the first of equal ones."""
    ordered = sorted(points, key=lambda point: point.costs)
    front: list[LayoutPoint] = []
    costs: Floats = np.zeros((0, 3))
    for point in ordered:
        if not (costs <= np.array(point.costs)).all(axis=1).any():
            front.append(point)
            costs = np.vstack([costs, point.costs])
    return front
