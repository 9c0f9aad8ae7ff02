"""A pipeline's work order as a plain graph, its longest path by sorting the graph: written apart from the package.

Only the listing of each stage's items is shared; what needs what, where a chunk lies along the model and which link
joins two stages is said here again.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from dovetail.pipeline import ChunkTimes, Pipeline, PipelineSchedule, WorkItem, WorkKind, WorkOrder

Node = tuple[int, int]

RESULT = {
    WorkKind.FORWARD: "forward",
    WorkKind.BACKWARD: "gradient",
    WorkKind.INPUT_GRADIENT: "gradient",
    WorkKind.WEIGHT_GRADIENT: "weight",
}


class DeadlockError(Exception):
    """Stages wait for each other."""


@dataclass
class Times:
    """One plan's seconds as plain lists."""

    forward: list[float]
    of_input: list[float]
    of_weight: list[float]
    links: list[float]
    pairs: list[float] | None


def place_of(pipeline: Pipeline, stage: int, chunk: int) -> int:
    if pipeline.schedule is PipelineSchedule.DUAL_PIPE:
        return pipeline.num_stages - 1 - stage if chunk else stage
    return chunk * pipeline.num_stages + stage


def hop(pipeline: Pipeline, lower_place: int, chunk: int) -> int | None:
    """The link between a place and the next one."""
    p = pipeline.num_stages
    if pipeline.schedule is PipelineSchedule.DUAL_PIPE and chunk:
        return p - 2 - lower_place
    return lower_place % p if p > 1 else None


def longest_path(order: WorkOrder, times: Times) -> float:
    """Seconds from the first item's start to the last one's end."""
    return max(ends(order, times).values())


def ends(order: WorkOrder, times: Times) -> dict[Node, float]:
    """When each item ends, by stage and index; joined items are one node, named after the first."""
    seconds: dict[Node, float] = {}
    edges: dict[Node, list[tuple[Node, float]]] = defaultdict(list)
    waiting: dict[Node, int] = defaultdict(int)
    done_by: dict[tuple[str, int, int], Node] = {}
    wanted: list[tuple[Node, str, int, int, float]] = []
    for stage in range(order.pipeline.num_stages):
        previous, group = None, []
        for index, item in enumerate(order.items(stage)):
            group.append(item)
            if item.joined:
                continue
            node = (stage, index + 1 - len(group))
            placed = [(part, place_of(order.pipeline, stage, part.chunk)) for part in group]
            seconds[node] = sum(duration(part.kind, place, times) for part, place in placed)
            if len(group) == 2 and times.pairs is not None:
                seconds[node] = times.pairs[placed[0][1]]
            for part, place in placed:
                wanted += wants(order.pipeline, node, part, place, times)
                key = (RESULT[part.kind], part.microbatch, place)
                assert key not in done_by, f"{key} twice"
                done_by[key] = node
            if previous is not None:
                edges[previous].append((node, 0.0))
                waiting[node] += 1
            previous, group = node, []
        assert not group, "joined to nothing"
    for node, result, microbatch, place, delay in wanted:
        edges[done_by[result, microbatch, place]].append((node, delay))
        waiting[node] += 1
    return sorted_ends(seconds, edges, waiting)


def duration(kind: WorkKind, place: int, times: Times) -> float:
    parts = {
        WorkKind.FORWARD: [times.forward],
        WorkKind.BACKWARD: [times.of_input, times.of_weight],
        WorkKind.INPUT_GRADIENT: [times.of_input],
        WorkKind.WEIGHT_GRADIENT: [times.of_weight],
    }
    return sum(part[place] for part in parts[kind])


def wants(pipeline: Pipeline, node: Node, item: WorkItem, place: int, times: Times):
    """The results a work item needs, and the seconds they travel."""

    def over(lower: int) -> float:
        link = hop(pipeline, lower, item.chunk)
        return 0.0 if link is None else times.links[link]

    if item.kind is WorkKind.WEIGHT_GRADIENT:
        return [(node, "gradient", item.microbatch, place, 0.0)]
    if item.kind is WorkKind.FORWARD:
        return [(node, "forward", item.microbatch, place - 1, over(place - 1))] if place else []
    needed = [(node, "forward", item.microbatch, place, 0.0)]
    if place < pipeline.num_places - 1:
        needed.append((node, "gradient", item.microbatch, place + 1, over(place)))
    return needed


def sorted_ends(seconds, edges, waiting) -> dict[Node, float]:
    """Kahn's algorithm: an item is looked at once all that it waits for has an end."""
    start = dict.fromkeys(seconds, 0.0)
    end: dict[Node, float] = {}
    free = deque(node for node in seconds if waiting[node] == 0)
    while free:
        node = free.popleft()
        end[node] = start[node] + seconds[node]
        for following, delay in edges[node]:
            start[following] = max(start[following], end[node] + delay)
            waiting[following] -= 1
            if waiting[following] == 0:
                free.append(following)
    if len(end) < len(seconds):
        raise DeadlockError(f"{len(seconds) - len(end)} items never start")
    return end


def random_times(pipeline: Pipeline, seed: int, plans: int, *, transfers: bool = True) -> ChunkTimes:
    """Times of several plans: of one size, of very different sizes, with zeros or with ties."""
    draw = np.random.default_rng(seed)
    shape, links = (plans, pipeline.num_places), (plans, pipeline.num_links)
    kinds = [
        lambda size: draw.random(size),
        lambda size: 0.9 + 0.2 * draw.random(size),
        lambda size: 10 ** draw.uniform(-3, 3, size),
        lambda size: draw.integers(0, 4, size).astype(float),
        lambda size: draw.exponential(1.0, size) ** 3,
    ]
    kind = kinds[seed % len(kinds)]
    forward, of_input, of_weight = kind(shape), kind(shape), kind(shape)
    transfer = kind(links) * draw.choice([0.0, 0.02, 1.0]) if transfers else np.zeros(links)
    pairs = None
    if pipeline.schedule is PipelineSchedule.DUAL_PIPE and draw.random() < 0.7:
        backward = (of_input + of_weight)[:, ::-1]
        longer, shorter = np.maximum(forward, backward), np.minimum(forward, backward)
        pairs = longer + draw.random(shape) * shorter
    return ChunkTimes(forward, of_input, of_weight, transfer, pairs)


def plan_times(times: ChunkTimes, plan: int) -> Times:
    columns = [times.forward_s, times.input_gradient_s, times.weight_gradient_s, times.transfer_s]
    forward, of_input, of_weight, links = (np.asarray(column)[plan].tolist() for column in columns)
    pairs = None if times.overlapped_s is None else np.asarray(times.overlapped_s)[plan].tolist()
    return Times(forward, of_input, of_weight, links, pairs)


@st.composite
def pipelines(draw, schedule: PipelineSchedule, most: int = 64):
    """Pipelines of a schedule with up to `most` stages and microbatches."""
    # small ones more often: they are quick, and most of what can go wrong goes wrong there
    sizes = st.one_of(st.integers(1, min(12, most)), st.integers(1, most))
    p, m = draw(sizes), draw(sizes)
    if schedule is PipelineSchedule.DUAL_PIPE:
        p = 2 * draw(st.integers(1, most // 4))
        return Pipeline(schedule, p, 2 * draw(st.integers(p, most // 2)))
    if schedule is not PipelineSchedule.INTERLEAVED:
        return Pipeline(schedule, p, m)
    chunks = draw(st.integers(2, 4 if p * m < 1000 else 2))
    if m < p or draw(st.booleans()):
        return Pipeline(schedule, p, m, chunks)
    allowed = [size for size in range(p, m + 1) if m % size == 0 or m % size >= p]
    return Pipeline(schedule, p, m, chunks, draw(st.sampled_from(allowed)))
