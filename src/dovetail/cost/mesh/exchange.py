"""An all-to-all on a damaged mesh: ways mixed so that the busiest link carries least."""

from __future__ import annotations

from functools import lru_cache
from heapq import heappop, heappush

import numpy as np

from dovetail.arrays import Floats
from dovetail.cost.mesh.collective import Spread
from dovetail.cost.mesh.grid import Die, DieMesh
from dovetail.cost.mesh.least_busy import Column, least_busy
from dovetail.frozen import frozen

#: A price for every hop, so small that it decides only between ways that cost the same.
HOP = 1e-12

#: The link over which each die is reached, -1 for the source.
Ways = tuple[int, ...]


@frozen
class RoutedExchange:
    """Ways between all dies with their parts; no mix of ways loads its busiest link with less than `bound`."""

    spreads: tuple[Spread, ...]
    bound: float


@lru_cache(maxsize=1024)
def mixed_ways(mesh: DieMesh) -> RoutedExchange:
    """The linear program of all flows, ways found as their prices ask for them (Ford and Fulkerson 1958)."""
    count = mesh.num_dies
    if count == 1:
        return RoutedExchange((), 0.0)

    def column(source: int, ways: Ways) -> Column[Ways]:
        return Column(_loads(mesh, ways), source, ways)

    def cheapest(prices: Floats, _worth: Floats) -> list[Column[Ways]]:
        priced = (prices + HOP).tolist()
        return [column(number, _ways_from(mesh, die, priced)) for number, die in enumerate(mesh.dies)]

    first = cheapest(np.zeros(len(mesh.links)), np.zeros(count))
    mix = least_busy(first, np.full(count, 1.0 / count), cheapest)
    spreads = [spread for each, weight in mix.columns for spread in _spreads(mesh, each.root, each.name, weight)]
    return RoutedExchange(tuple(spreads), mix.bound)


def _ways_from(mesh: DieMesh, source: Die, prices: list[float]) -> Ways:
    """The cheapest ways from one die to all others (Dijkstra 1959)."""
    entered = [-1] * mesh.num_dies
    done = [False] * mesh.num_dies
    ahead: list[tuple[float, int, int]] = [(0.0, -1, mesh.number[source])]
    while ahead:
        price, link, die = heappop(ahead)
        if not done[die]:
            done[die] = True
            entered[die] = link
            for further, other in _leaving(mesh)[die]:
                if not done[other]:
                    heappush(ahead, (price + prices[further], further, other))
    return tuple(entered)


@lru_cache(maxsize=64)
def _leaving(mesh: DieMesh) -> tuple[tuple[tuple[int, int], ...], ...]:
    """The links that leave each die, and where they lead."""
    return tuple(
        tuple((mesh.link_number[die, other], mesh.number[other]) for other in mesh.neighbours[die]) for die in mesh.dies
    )


def _way_to(mesh: DieMesh, ways: Ways, target: int) -> tuple[int, ...]:
    links: list[int] = []
    while (link := ways[target]) >= 0:
        links.append(link)
        target = mesh.number[mesh.links[link][0]]
    return tuple(reversed(links))


def _loads(mesh: DieMesh, ways: Ways) -> Floats:
    """How many dies are reached over each link."""
    loads = np.zeros(len(mesh.links))
    for target in range(mesh.num_dies):
        loads[list(_way_to(mesh, ways, target))] += 1.0
    return loads


def _spreads(mesh: DieMesh, source: int, ways: Ways, part: float) -> list[Spread]:
    spreads: list[Spread] = []
    for target in range(mesh.num_dies):
        if target != source:
            way = _way_to(mesh, ways, target)
            spreads.append(Spread(mesh.dies[source], part, way, tuple(range(-1, len(way) - 1))))
    return spreads
