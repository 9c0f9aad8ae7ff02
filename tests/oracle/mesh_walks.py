"""Collectives of a mesh played send by send: whether they complete, and what each link carries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from dovetail.cost.mesh import Die, DieGroup, DieMesh, Edge, MeshCollective, MeshCollectiveKind

Loads = dict[Edge, float]


def unfinished(made: MeshCollective) -> str | None:
    """What is missing when all sends are done; None if nothing is."""
    mesh = made.mesh
    shares: defaultdict[Die, float] = defaultdict(float)
    sent: defaultdict[Edge, float] = defaultdict(float)
    for spread in made.spreads():
        at: list[Die] = []
        for link, before in zip(spread.links, spread.after, strict=True):
            source, target = mesh.links[link]
            if before >= len(at) or source != (spread.root if before < 0 else at[before]):
                return f"{source} sends what it does not have"
            at.append(target)
        shares[spread.root] += spread.part
        if made.kind in (MeshCollectiveKind.ALL_TO_ALL, MeshCollectiveKind.PERMUTE):
            sent[spread.root, at[-1]] += spread.part
        elif {spread.root, *at} != set(mesh.dies):
            return f"a part of {spread.root} does not reach {set(mesh.dies) - {spread.root, *at}}"
    return (
        _wrong_pairs(made, sent)
        if made.kind in (MeshCollectiveKind.ALL_TO_ALL, MeshCollectiveKind.PERMUTE)
        else _wrong_shares(made, shares)
    )


def _wrong_shares(made: MeshCollective, shares: dict[Die, float]) -> str | None:
    dies = made.mesh.dies
    if made.kind in (MeshCollectiveKind.ALL_GATHER, MeshCollectiveKind.REDUCE_SCATTER):
        wrong = [die for die in dies if abs(shares.get(die, 0.0) - 1 / len(dies)) > 1e-7]
        return f"not all of {wrong}" if wrong and len(dies) > 1 else None
    return None if abs(sum(shares.values()) - 1) < 1e-9 or len(dies) == 1 else f"{sum(shares.values())} of all bytes"


def _wrong_pairs(made: MeshCollective, sent: dict[Edge, float]) -> str | None:
    dies = made.mesh.dies
    if made.kind is MeshCollectiveKind.ALL_TO_ALL:
        expected = {(a, b): 1 / len(dies) for a in dies for b in dies if a != b}
        wrong = [pair for pair in {*expected, *sent} if abs(expected.get(pair, 0.0) - sent.get(pair, 0.0)) > 1e-9]
        return f"{wrong} have sent too much or too little" if wrong else None
    following = dict(sent)
    at, visited = dies[0], 0
    while following and visited < len(dies):
        ((_, at),) = [pair for pair in following if pair[0] == at]
        visited += 1
        if at == dies[0]:
            break
    return None if visited == len(dies) or len(dies) == 1 else "the permute is no ring through all dies"


def played_loads(made: MeshCollective) -> Loads:
    """Bytes by link, each send counted."""
    loads: defaultdict[Edge, float] = defaultdict(float)
    for spread in made.spreads():
        for number in spread.links:
            source, target = made.mesh.links[number]
            for link in _directions(made.kind, source, target):
                loads[link] += spread.part * made.bytes
    return dict(loads)


def _directions(kind: MeshCollectiveKind, source: Die, target: Die) -> list[Edge]:
    if kind is MeshCollectiveKind.ALL_REDUCE:
        return [(target, source), (source, target)]
    return [(target, source) if kind is MeshCollectiveKind.REDUCE_SCATTER else (source, target)]


def walked_loads(groups: Iterable[DieGroup], made: MeshCollective) -> Loads:
    """Bytes by link when every group does this: every message of every group walked one die at a time."""
    loads: defaultdict[Edge, float] = defaultdict(float)
    for group in groups:
        for (a, b), load in played_loads(made).items():
            for link in _walk(group.die(a), group.die(b)):
                loads[link] += load
    return dict(loads)


def _walk(source: Die, target: Die) -> Iterator[Edge]:
    (row, col), (last_row, last_col) = source, target
    assert row == last_row or col == last_col, "neighbours of a group lie in one row or column"
    while (row, col) != (last_row, last_col):
        ahead = row + (last_row > row) - (last_row < row), col + (last_col > col) - (last_col < col)
        yield (row, col), ahead
        row, col = ahead


def by_link(mesh: DieMesh, loads: Loads) -> list[float]:
    """Loads in the order of the mesh's links."""
    assert set(loads) <= set(mesh.links)
    return [loads.get(link, 0.0) for link in mesh.links]
