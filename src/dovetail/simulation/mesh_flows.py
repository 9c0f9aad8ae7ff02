"""Collectives of a mesh as flows in the simulator: each as one message over all its links, or send by send."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.cost.mesh import MeshCollective, MeshCollectiveKind, Spread
from dovetail.simulation.network import SMALLEST_PART, Routes
from dovetail.simulation.task_graph import TaskGraph

#: Rounds between a send and the next on the way of a chunk: with one alone links would wait for messages on their way.
LEAD = 2


def add_flow(routes: Routes, collective: MeshCollective, first_link: int = 0) -> int:
    """The route of a collective whose mesh has its links from `first_link` on; -1 where nothing is sent.

    Its message has the bytes of the busiest link, and every link the part of them that it carries.
    """
    most = collective.busiest_bytes
    if most <= 0:
        return -1
    parts = collective.loads / most
    return routes.add({first_link + int(link): float(parts[link]) for link in np.flatnonzero(parts > SMALLEST_PART)})


def flows(collectives: Sequence[MeshCollective], bytes_per_s: float, latency_s: float = 0.0) -> TaskGraph:
    """Collectives of one mesh that begin together and share its links: a task each."""
    routes = Routes()
    route = np.array([add_flow(routes, made) for made in collectives], np.int64)
    return TaskGraph(
        np.array([made.hops * latency_s for made in collectives]),
        np.array([made.busiest_bytes for made in collectives]),
        route,
        np.zeros(0, np.int64),
        np.zeros(0, np.int64),
        routes.network([bytes_per_s] * len(collectives[0].mesh.links)),
    )


def sends(collective: MeshCollective, bytes_per_s: float, chunks: int, latency_s: float = 0.0) -> TaskGraph:
    """A collective send by send: chunks follow each other along the trees, and links send one message at a time.

    A link takes what has come one hop further together with what is `LEAD` chunks behind it: so in every round all
    links pass on what arrived some rounds ago, and with c chunks over d hops the last ends after about c + d rounds, of
    which the busiest link needs 1/c of its whole time each.
    """
    steps = _steps(collective)
    count = len(steps)
    link = np.array([step[0] for step in steps], np.int64)
    part = np.array([step[1] for step in steps])
    depth = np.array([step[2] for step in steps], np.int64)
    needs = np.array([(before, after) for after, step in enumerate(steps) for before in step[3]], np.int64)
    needs = needs.reshape(-1, 2)
    total = chunks * count
    chunk_starts = np.arange(chunks, dtype=np.int64)[:, None] * count
    links = np.tile(link, chunks)
    rounds = (np.arange(chunks)[:, None] + LEAD * depth).ravel()
    order = np.lexsort((np.arange(total), rounds, links))
    same = links[order[1:]] == links[order[:-1]]
    sent = np.arange(total)
    routes = Routes()
    numbers = np.array([routes.add({int(each): 1.0}) for each in link], np.int64)
    # a message leaves its link free while it is on its way: its arrival is a task of its own, `total` further on
    return TaskGraph(
        np.concatenate([np.zeros(total), np.full(total, latency_s)]),
        np.concatenate([np.tile(part * collective.bytes / chunks, chunks), np.zeros(total)]),
        np.concatenate([np.tile(numbers, chunks), np.full(total, -1, np.int64)]),
        np.concatenate([(chunk_starts + needs[:, 0]).ravel() + total, order[:-1][same], sent]),
        np.concatenate([(chunk_starts + needs[:, 1]).ravel(), order[1:][same], sent + total]),
        routes.network([bytes_per_s] * len(collective.mesh.links)),
    )


#: link, part of the bytes, how many sends come before in its chunk, and the sends it needs
_Step = tuple[int, float, int, tuple[int, ...]]


def _steps(collective: MeshCollective) -> list[_Step]:
    """The sends of one chunk: sums towards the roots of trees, then results away from them."""
    steps: list[_Step] = []
    for spread in collective.spreads():
        if not spread.links:
            continue
        sums = collective.kind in (MeshCollectiveKind.REDUCE_SCATTER, MeshCollectiveKind.ALL_REDUCE)
        into_root = _add_sums(steps, spread) if sums else ()
        if collective.kind is not MeshCollectiveKind.REDUCE_SCATTER:
            _add_results(steps, spread, into_root)
    return steps


def _add_sums(steps: list[_Step], spread: Spread) -> tuple[int, ...]:
    """Sends towards the root, from the leaves; returns those that end there."""
    followers: dict[int, list[int]] = {}
    for place, before in enumerate(spread.after):
        followers.setdefault(before, []).append(place)
    numbers: dict[int, int] = {}
    for place in range(len(spread.links) - 1, -1, -1):
        needs = tuple(numbers[other] for other in followers.get(place, ()))
        depth = max((steps[other][2] for other in needs), default=-1) + 1
        numbers[place] = len(steps)
        steps.append((spread.links[place] ^ 1, spread.part, depth, needs))
    return tuple(numbers[place] for place in followers[-1])


def _add_results(steps: list[_Step], spread: Spread, into_root: tuple[int, ...]) -> None:
    """Sends away from the root, once all sums are there."""
    numbers: list[int] = []
    for link, before in zip(spread.links, spread.after, strict=True):
        needs = into_root if before < 0 else (numbers[before],)
        depth = max((steps[other][2] for other in needs), default=-1) + 1
        numbers.append(len(steps))
        steps.append((link, spread.part, depth, needs))
