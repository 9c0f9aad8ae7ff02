"""The cheapest arborescence: every node reached from the root over directed arcs (Chu and Liu 1965, Edmonds 1967)."""

from __future__ import annotations

from collections.abc import Sequence

#: Source and target of an arc.
Arc = tuple[int, int]


def cheapest_arborescence(nodes: int, root: int, arcs: Sequence[Arc], costs: Sequence[float]) -> list[int]:
    """The numbers of the arcs chosen; every node must be within reach of the root."""
    #: arcs between what is left of the nodes: source, target, what it costs, its number
    live = [(u, v, cost, i) for i, ((u, v), cost) in enumerate(zip(arcs, costs, strict=True)) if v != root and u != v]
    #: by level: the cheapest arc into each node, and which nodes became which
    levels: list[tuple[dict[int, tuple[int, int, float, int]], dict[int, int], list[tuple[int, int, float, int]]]] = []
    count = nodes
    while True:
        entry: dict[int, tuple[int, int, float, int]] = {}
        for arc in live:
            if arc[1] not in entry or arc[2] < entry[arc[1]][2]:
                entry[arc[1]] = arc
        merged, cycles = _merged(entry, root, count)
        levels.append((entry, merged, live))
        if not cycles:
            break
        next_live: list[tuple[int, int, float, int]] = []
        for place, (u, v, cost, _) in enumerate(live):
            if merged.get(u, u) != merged.get(v, v):
                # into a cycle an arc replaces the one the cycle would use there
                less = entry[v][2] if v in merged else 0.0
                next_live.append((merged.get(u, u), merged.get(v, v), cost - less, place))
        live = next_live
        count += cycles
    return _unfolded(levels)


def _merged(entry: dict[int, tuple[int, int, float, int]], root: int, count: int) -> tuple[dict[int, int], int]:
    """The nodes on cycles of cheapest arcs with the new node of their cycle, and how many cycles there are."""
    seen: dict[int, int] = {root: -1}
    merged: dict[int, int] = {}
    cycles = 0
    for start in entry:
        node = start
        while node not in seen:
            seen[node] = start
            node = entry[node][0]
        if seen[node] == start and node not in merged:
            turn = node
            while turn not in merged:
                merged[turn] = count + cycles
                turn = entry[turn][0]
            cycles += 1
    return merged, cycles


def _unfolded(
    levels: list[tuple[dict[int, tuple[int, int, float, int]], dict[int, int], list[tuple[int, int, float, int]]]],
) -> list[int]:
    """From the last level, where nothing turns in a circle, back to the arcs given."""
    arcs = list(levels[-1][0].values())
    for entry, merged, live in reversed(levels[:-1]):
        outer = [live[place] for _, _, _, place in arcs]
        entered = {arc[1] for arc in outer}
        arcs = outer + [entry[node] for node in merged if node not in entered]
    return [number for _, _, _, number in arcs]
