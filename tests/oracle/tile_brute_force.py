"""Every placement of stages on tiles of a small wafer, with distances of its own; and random wafers and stages."""

from __future__ import annotations

import math
from functools import cache
from itertools import product

import numpy as np

from dovetail.layout.encoding.job_encoding import Tile
from dovetail.layout.encoding.wafer_grid import WaferGrid
from dovetail.mapping.tilings import StageShapes


def neighbours(grid: WaferGrid, die, within=None):
    x, y = die
    for other in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)):
        inside = 0 <= other[0] < grid.cols and 0 <= other[1] < grid.rows and (within is None or other in within)
        linked = (die, other) not in grid.dead_links and (other, die) not in grid.dead_links
        if inside and linked and other not in grid.dead:
            yield other


def ways(grid: WaferGrid, start, within=None):
    """Hops to every die that is reached."""
    found, ring = {start: 0}, [start]
    while ring:
        ring = [other for die in ring for other in neighbours(grid, die, within)]
        ring = [die for die in dict.fromkeys(ring) if die not in found]
        found |= dict.fromkeys(ring, max(found.values()) + 1)
    return found


def all_tiles(grid: WaferGrid, shapes):
    for (rows, cols), x, y in product(sorted(set(shapes)), range(grid.cols), range(grid.rows)):
        dies = [(x + j, y + i) for i in range(rows) for j in range(cols)]
        live = all(a < grid.cols and b < grid.rows and (a, b) not in grid.dead for a, b in dies)
        if live and len(ways(grid, dies[0], set(dies))) == len(dies):
            yield (x, y, rows, cols), tuple(dies)


def cheapest(grid: WaferGrid, stages, edges, minimise="sum"):
    """The least cost over all placements; infinite where there is none."""
    distance = {die: ways(grid, die) for die in product(range(grid.cols), range(grid.rows)) if die not in grid.dead}

    @cache
    def hops(one, other):
        number = max(len(one), len(other))
        pairs = [(one[k % len(one)], other[k % len(other)]) for k in range(number)]
        return max(distance[a].get(b, math.inf) for a, b in pairs)

    join = (lambda a, b: a + b) if minimise == "sum" else max
    costs = [stage.costs_s or (0.0,) * len(stage.shapes) for stage in stages]
    options = [
        [
            (dies, min(c for c, shape in zip(cost, stage.shapes, strict=True) if shape == (rows, cols)))
            for (_, _, rows, cols), dies in all_tiles(grid, stage.shapes)
        ]
        for stage, cost in zip(stages, costs, strict=True)
    ]
    best = math.inf

    def place(chosen, taken, cost):
        nonlocal best
        if cost >= best:
            return
        if len(chosen) == len(stages):
            best = cost
            return
        stage = len(chosen)
        for dies, own in options[stage]:
            if taken.isdisjoint(dies):
                total = join(cost, own)
                for a, b, weight in edges:
                    if weight > 0 and max(a, b) == stage:
                        total = join(total, weight * hops(*((chosen[a], dies) if b == stage else (dies, chosen[b]))))
                place([*chosen, dies], taken | set(dies), total)

    place([], frozenset(), 0.0)
    return best


def cost_of(grid: WaferGrid, tiles: tuple[Tile, ...], stages, edges, minimise="sum"):
    """What one placement costs; it must obey every rule."""
    fixed = [
        [(tile, dies) for tile, dies in all_tiles(grid, [(t.rows, t.cols)]) if tile[:2] == (t.x, t.y)] for t in tiles
    ]
    assert all(len(each) == 1 for each in fixed)
    dies = [each[0][1] for each in fixed]
    assert len({die for some in dies for die in some}) == sum(map(len, dies))
    parts = []
    for tile, stage in zip(tiles, stages, strict=True):
        named = zip(stage.shapes, stage.costs_s or (0.0,) * len(stage.shapes), strict=True)
        parts.append(min(cost for shape, cost in named if shape == (tile.rows, tile.cols)))
    for a, b, weight in edges:
        number = max(len(dies[a]), len(dies[b]))
        pairs = [(dies[a][k % len(dies[a])], dies[b][k % len(dies[b])]) for k in range(number)]
        parts.append(weight * max(ways(grid, one)[other] for one, other in pairs) if weight else 0.0)
    return sum(parts) if minimise == "sum" else max(parts)


SHAPES = ((1, 1), (1, 2), (2, 1), (2, 2), (1, 3), (3, 1), (1, 4), (2, 3))


def random_grid(random: np.random.Generator, rows: int, cols: int, dead: float, cut: float) -> WaferGrid:
    dies = list(product(range(cols), range(rows)))
    links = [((x, y), (x + 1, y)) for x, y in dies if x + 1 < cols]
    links += [((x, y), (x, y + 1)) for x, y in dies if y + 1 < rows]
    return WaferGrid(
        rows,
        cols,
        frozenset(die for die in dies if random.random() < dead),
        frozenset(link for link in links if random.random() < cut),
    )


def random_case(seed: int):
    """A wafer to 4 × 4 dies, up to six stages, edges along the pipeline and some others."""
    random = np.random.default_rng(seed)
    rows, cols = (int(n) for n in random.choice([2, 3, 4, 4], 2))
    dead, cut = random.choice([0.0, 0.0, 0.1, 0.2]), random.choice([0.0, 0.1])
    grid = random_grid(random, rows, cols, dead, cut)
    # whole numbers make equal costs, and so symmetries and ties
    whole = bool(random.integers(2))

    def weight():
        return float(random.integers(0, 4)) if whole else float(random.random())

    equal = bool(random.integers(2))
    first = [SHAPES[i] for i in random.integers(1, 5, int(random.integers(1, 4)))]
    # mostly as many as may fit
    area = sum(r * c for r, c in first) / len(first) if equal else 2
    most = min(6, max(2, int((rows * cols - len(grid.dead)) / area)))
    number = int(random.integers(2, most + 1))
    stages = []
    for _ in range(number):
        shapes = first if equal else [SHAPES[i] for i in random.integers(0, len(SHAPES), int(random.integers(1, 3)))]
        stages.append(StageShapes(tuple(shapes), () if random.integers(2) else tuple(weight() for _ in shapes)))
    one = weight() + 0.5 if equal and random.integers(2) else None
    edges = [(i, i + 1, weight() if one is None else one) for i in range(number - 1)]
    for _ in range(int(random.integers(0, 3))):
        a, b = (int(n) for n in random.choice(number, 2, replace=False))
        edges.append((a, b, weight()))
    return grid, stages, edges, "max" if random.integers(4) == 0 else "sum"
