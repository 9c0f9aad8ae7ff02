"""Rings through all dies of a mesh: closed walks that visit every die, over as few links twice as can be."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from dovetail.cost.mesh.grid import Die, DieMesh

#: Steps a search for a ring through a damaged mesh may take; without a ring by then the walk follows a tree.
SEARCH_STEPS = 4000

#: Links from each die of the ring to the next; the dies of the ring are where legs begin.
Legs = tuple[tuple[int, ...], ...]

#: 3 × 5 dies, from (1, 3) to (1, 1) without the two links between them.
_THREE_BY_FIVE: tuple[Die, ...] = (
    *((1, 3), (0, 3), (0, 4), (1, 4), (2, 4), (2, 3), (2, 2), (1, 2)),
    *((0, 2), (0, 1), (0, 0), (1, 0), (2, 0), (2, 1), (1, 1)),
)
#: 3 × 3 dies in a spiral: the way back shares a link with it, as in every ring through them.
_THREE_BY_THREE: tuple[Die, ...] = ((0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (2, 1), (2, 0), (1, 0), (1, 1))


@lru_cache(maxsize=4096)
def ring_legs(mesh: DieMesh) -> Legs:
    """The legs of a ring through all dies.

    Whole meshes: a Hamiltonian cycle where rows × columns is even and both are at least 2; from 3 × 5 dies on, odd
    meshes have a ring with one leg of two hops over links that no other leg uses. Lines, 3 × 3 and damaged meshes
    without a cycle go round a tree, once over each direction of its edges.
    """
    if mesh.num_dies < 2:
        return ()
    order = _whole_order(mesh.rows, mesh.cols) if mesh.whole else _searched_cycle(mesh)
    if order is None:
        return _round_a_tree(mesh)
    return tuple(mesh.route(die, order[(i + 1) % len(order)]) for i, die in enumerate(order))


def ring_dies(mesh: DieMesh, legs: Legs) -> tuple[Die, ...]:
    """The dies in the order of the ring."""
    return tuple(mesh.links[leg[0]][0] for leg in legs)


def snake(mesh: DieMesh) -> tuple[Die, ...] | None:
    """A path through all dies, to and fro along rows; None where something dead lies on it."""
    forth = range(mesh.cols)
    order = [(row, col) for row in range(mesh.rows) for col in (forth if row % 2 == 0 else reversed(forth))]
    live = [die for die in order if die in mesh.number]
    broken = any(pair not in mesh.link_number for pair in pairwise(live))
    return None if broken else tuple(live)


def _whole_order(rows: int, cols: int) -> tuple[Die, ...] | None:
    if min(rows, cols) == 1:
        return None
    if rows % 2 == 0:
        return _even_order(rows, cols)
    if cols % 2 == 0:
        return tuple((row, col) for col, row in _even_order(cols, rows))
    if rows == cols == 3:
        return _THREE_BY_THREE
    if cols == 3:
        return tuple((row, col) for col, row in _odd_order(cols, rows))
    return _odd_order(rows, cols)


def _even_order(rows: int, cols: int) -> tuple[Die, ...]:
    """Down to and fro through all columns but the first, which leads back."""
    order: list[Die] = []
    for row in range(rows):
        inner = range(1, cols) if row % 2 == 0 else range(cols - 1, 0, -1)
        order += [(row, col) for col in inner]
    return (*order, *((row, 0) for row in range(rows - 1, -1, -1)))


def _odd_order(rows: int, cols: int) -> tuple[Die, ...]:
    """Three rows and five columns, and two more of either as often as needed: their ring joined at a corner."""
    order = list(_THREE_BY_FIVE)
    for col in range(5, cols, 2):
        down = [(row, col) for row in range(1, 3)]
        back = [(row, col + 1) for row in range(2, -1, -1)]
        order = _detour(order, (0, col - 1), (1, col - 1), [(0, col), *reversed(back), *reversed(down)])
    for row in range(3, rows, 2):
        across = [(row, col) for col in range(1, cols)]
        back = [(row + 1, col) for col in range(cols - 1, -1, -1)]
        order = _detour(order, (row - 1, 0), (row - 1, 1), [(row, 0), *reversed(back), *reversed(across)])
    return tuple(order)


def _detour(order: list[Die], a: Die, b: Die, through: list[Die]) -> list[Die]:
    """The ring with the leg between two neighbours led through other dies."""
    at = order.index(a) + 1
    assert order[at] == b, "a ring uses both links of a corner, in the order it was begun"
    return order[:at] + through + order[at:]


def _searched_cycle(mesh: DieMesh) -> tuple[Die, ...] | None:
    """A Hamiltonian cycle of a damaged mesh, if one is found within the steps allowed."""
    colours = sum(1 if (row + col) % 2 else -1 for row, col in mesh.dies)
    if colours or mesh.num_dies < 4 or any(len(others) < 2 for others in mesh.neighbours.values()):
        return None
    start = min(mesh.dies, key=lambda die: (len(mesh.neighbours[die]), die))
    path = [start]
    free = set(mesh.dies) - {start}
    choices = [_ways(mesh, start, start, free)]
    for _ in range(SEARCH_STEPS):
        if not free and start in mesh.neighbours[path[-1]]:
            return tuple(path)
        if free and choices[-1]:
            die = choices[-1].pop()
            path.append(die)
            free.discard(die)
            choices.append(_ways(mesh, die, start, free))
        else:
            choices.pop()
            free.add(path.pop())
            if not path:
                return None
    return None


def _ways(mesh: DieMesh, here: Die, start: Die, free: set[Die]) -> list[Die]:
    """Dies to go on to, the best last: those with fewest ways left first (Warnsdorff 1823)."""
    ahead = [die for die in mesh.neighbours[here] if die in free]
    left = {die: sum(other in free for other in mesh.neighbours[die]) for die in ahead}
    # a die that can be entered but not left, now or on the way back, ends this path
    for die in free:
        exits = sum(other in free or other in (here, start) for other in mesh.neighbours[die])
        if exits < 2:
            return []
    return sorted(ahead, key=lambda die: (-left[die], die))


def _round_a_tree(mesh: DieMesh) -> Legs:
    """Depth first through a tree and back: a leg ends at every die seen for the first time, the last at the root."""
    root = min(mesh.dies, key=lambda die: (len(mesh.neighbours[die]), die))
    seen = {root}
    path = [root]
    legs: list[tuple[int, ...]] = []
    leg: list[int] = []
    while path:
        here = path[-1]
        ahead = next((die for die in mesh.neighbours[here] if die not in seen), None)
        if ahead is not None:
            seen.add(ahead)
            path.append(ahead)
            leg.append(mesh.link_number[here, ahead])
            legs.append(tuple(leg))
            leg = []
        else:
            path.pop()
            if path:
                leg.append(mesh.link_number[here, path[-1]])
    return (*legs, tuple(leg))


def leg_counts(mesh: DieMesh, legs: Legs) -> list[int]:
    """How many legs use each link, in the ring's own direction."""
    counts = [0] * len(mesh.links)
    for leg in legs:
        for link in leg:
            counts[link] += 1
    return counts


def reversed_legs(legs: Sequence[tuple[int, ...]]) -> Legs:
    """The same ring the other way round."""
    return tuple(tuple(link ^ 1 for link in reversed(leg)) for leg in reversed(legs))
