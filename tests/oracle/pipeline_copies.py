"""Longest paths of pipelines whose stages hand one thing after another to each neighbour, as a plain graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from pipeline_graph import RESULT, Times, duration, hop, place_of, sorted_ends

from dovetail.pipeline import WorkItem, WorkKind, WorkOrder

#: a stage and the index of an item, the first of those that run together; or of the one that is handed on
Node = tuple[str, int, int]


class CopyGraph:
    """Items and copies, and what waits for what."""

    def __init__(self, order: WorkOrder, times: Times) -> None:
        assert times.pairs is None, "items that run together take as long as one after the other"
        self.pipeline, self.times = order.pipeline, times
        self.seconds: dict[Node, float] = defaultdict(float)
        self.edges: dict[Node, list[tuple[Node, float]]] = defaultdict(list)
        #: the node of each result, by kind of result, microbatch and place
        self.results: dict[tuple[str, int, int], Node] = {}
        #: what a stage does after each node
        self.next: dict[Node, Node] = {}
        self.items = [order.items(stage) for stage in range(order.pipeline.num_stages)]
        for stage in range(len(self.items)):
            self._stage(stage)

    def _stage(self, stage: int) -> None:
        nodes: list[Node] = []
        together = False
        for index, item in enumerate(self.items[stage]):
            if not together:
                nodes.append(("item", stage, index))
            together = item.joined
            place = place_of(self.pipeline, stage, item.chunk)
            self.seconds[nodes[-1]] += duration(item.kind, place, self.times)
            self.results[RESULT[item.kind], item.microbatch, place] = nodes[-1]
        for one, other in pairwise(nodes):
            self.next[one] = other
            self.edges[one].append((other, 0.0))

    def placed(self) -> Iterator[tuple[int, int, WorkItem, int]]:
        """All items with their stage, index and place."""
        for stage, own in enumerate(self.items):
            for index, item in enumerate(own):
                yield stage, index, item, place_of(self.pipeline, stage, item.chunk)

    def hand_over(self, *, sending: bool) -> None:
        """What an item leaves goes to the one that needs it, to another stage after what went there before."""
        last: dict[tuple[int, int], Node] = {}
        for stage, index, item, place in self.placed():
            node = self.results[RESULT[item.kind], item.microbatch, place]
            if item.kind is WorkKind.WEIGHT_GRADIENT:
                self.edges[self.results["gradient", item.microbatch, place]].append((node, 0.0))
                continue
            if item.kind is not WorkKind.FORWARD:
                self.edges[self.results["forward", item.microbatch, place]].append((node, 0.0))
            onward = place + 1 if item.kind is WorkKind.FORWARD else place - 1
            if not 0 <= onward < self.pipeline.num_places:
                continue
            user = self.results[RESULT[item.kind], item.microbatch, onward]
            if user[1] == stage:
                self.edges[node].append((user, 0.0))
                continue
            link = hop(self.pipeline, min(place, onward), item.chunk)
            assert link is not None, "two stages have a link"
            copy: Node = ("copy", stage, index)
            self.seconds[copy] = self.times.links[link]
            self.edges[node].append((copy, 0.0))
            self.edges[copy].append((user, 0.0))
            if (stage, user[1]) in last:
                self.edges[last[stage, user[1]]].append((copy, 0.0))
            last[stage, user[1]] = copy
            if sending and node in self.next:
                self.edges[copy].append((self.next[node], 0.0))


def longest_path_with_copies(order: WorkOrder, times: Times, *, sending: bool) -> float:
    """As `pipeline_graph.longest_path`, but what a stage hands to another goes one after another.

    Where a stage is `sending`, it works on when what it hands over is there.
    """
    graph = CopyGraph(order, times)
    graph.hand_over(sending=sending)
    waiting: dict[Node, int] = defaultdict(int)
    for following, _ in (edge for found in graph.edges.values() for edge in found):
        waiting[following] += 1
    return max(sorted_ends(dict(graph.seconds), graph.edges, waiting).values())
