"""Small placement problems, and their best placement by trying every one: written apart from the package.

Only the classes that state a problem are shared. Every number is a multiple of 2^-10, so sums are exact in any order
and a stage that fits to the last byte fits here and there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations, combinations_with_replacement, pairwise, product
from typing import Any

import numpy as np
from hypothesis import strategies as st
from pipeline_graph import Times, longest_path

from dovetail.partition.layer_chain import LayerChain, LayerPartition, LayerPolicies
from dovetail.pipeline import Pipeline, PipelineSchedule, WorkKind, WorkOrder, work_order

Ends = tuple[int, ...]
#: the input-gradient seconds of a stage's chunks, under some choice of options
Way = tuple[float, ...]
Ways = Callable[[LayerChain, Sequence[Sequence[int]], int], Iterable[Way]]


def layer(chain: LayerChain, index: int) -> LayerPolicies:
    return chain.classes[chain.order[index]]


# What fits, and how long a placement takes.


def saved_at_peak(pipeline: Pipeline, stage: int, saved: Sequence[float]) -> float:
    """The most that a stage saves at once, item by item of its order; `saved` is of one microbatch, by chunk."""
    held = most = 0.0
    for item in explicit_order(pipeline).items(stage):
        if item.kind is WorkKind.FORWARD:
            held += saved[item.chunk]
        elif item.kind is not WorkKind.INPUT_GRADIENT:
            held -= saved[item.chunk]
        most = max(most, held)
    return most


def bytes_needed(chain: LayerChain, chunks: Sequence[Sequence[int]], options: Sequence[int], stage: int) -> float:
    """Bytes of a stage whose chunks have these layers, an option for each in the order of the chunks."""
    state = step = workspace = loss = gathered = 0.0
    saved = [0.0] * len(chunks)
    working: dict[int, float] = {}
    of_layers = ((number, layer(chain, i)) for number, chunk in enumerate(chunks) for i in chunk)
    for (number, one), option in zip(of_layers, options, strict=True):
        state += one.state_bytes
        step += one.step_bytes
        saved[number] += float(one.saved_bytes[option])
        workspace = max(workspace, float(one.workspace_bytes[option]))
        loss, gathered = max(loss, one.loss_bytes), max(gathered, one.gathered_bytes)
        for kind, size in enumerate(one.working_bytes):
            working[kind] = max(working.get(kind, 0.0), size)
    activations = saved_at_peak(chain.pipeline, stage, saved)
    activations += max(workspace + sum(working.values()), loss) + gathered
    return state + max(activations, step)


def chunks_between(ends: Ends) -> list[range]:
    return [range(first, end) for first, end in zip((0, *ends[:-1]), ends, strict=True)]


def by_stage(chain: LayerChain, ends: Ends) -> list[list[range]]:
    """The chunks of every stage: place r is on stage r mod p."""
    p = chain.pipeline.num_stages
    return [chunks_between(ends)[stage::p] for stage in range(p)]


def joined(chunks: Iterable[Sequence[int]]) -> list[int]:
    return [i for chunk in chunks for i in chunk]


@lru_cache(maxsize=64)
def explicit_order(pipeline: Pipeline) -> WorkOrder:
    return work_order(pipeline)


def seconds_with(chain: LayerChain, ends: Ends, of_input: Sequence[float]) -> float:
    """The step time of a cut whose places have these input-gradient seconds."""
    pipeline, chunks, transfer = chain.pipeline, chunks_between(ends), chain.transfer_s
    forward = [sum(layer(chain, i).forward_s for i in chunk) for chunk in chunks]
    of_weight = [sum(layer(chain, i).weight_gradient_s for i in chunk) for chunk in chunks]
    backward = list(of_input)
    if chain.sends_itself:
        forward = [*(seconds + transfer for seconds in forward[:-1]), forward[-1]]
        backward = [backward[0], *(seconds + transfer for seconds in backward[1:])]
        transfer = 0.0
    times = Times(forward, backward, of_weight, [transfer] * pipeline.num_links, None)
    once = max(
        sum(layer(chain, i).once_s[way] for i in joined(held))
        for held in by_stage(chain, ends)
        for way in range(len(chain.classes[0].once_s))
    )
    return longest_path(explicit_order(pipeline), times) + once


def evaluated(chain: LayerChain, placement: LayerPartition) -> float:
    """The step time of a placement; infinite where a stage does not fit."""
    for stage, chunks in enumerate(by_stage(chain, placement.ends)):
        if bytes_needed(chain, chunks, [placement.policies[i] for i in joined(chunks)], stage) > chain.device_bytes:
            return math.inf
    gradients = [float(layer(chain, i).input_gradient_s[k]) for i, k in enumerate(placement.policies)]
    of_input = [sum(gradients[i] for i in chunk) for chunk in chunks_between(placement.ends)]
    return seconds_with(chain, placement.ends, of_input)


# Every placement.


def every_cut(chain: LayerChain) -> Iterator[Ends]:
    """Where chunks may end."""
    total, places = len(chain.order), chain.pipeline.num_places
    if chain.pipeline.schedule is not PipelineSchedule.INTERLEAVED:
        yield from ((*inner, total) for inner in combinations(range(1, total), places - 1))
        return
    # the first and the last layer stand apart; the inner places have equally many blocks, or the first or the last of
    # them one more
    for inner in combinations(range(1, total), places - 1):
        ends = (*inner, total)
        sizes = [end - start for start, end in pairwise(ends)][:-1]
        if sizes in (sorted(sizes), sorted(sizes, reverse=True)) and max(sizes, default=0) - min(sizes, default=0) <= 1:
            yield ends


def every_way(chain: LayerChain, chunks: Sequence[Sequence[int]], stage: int) -> set[Way]:
    """Of every choice of options that fits, one by one."""
    layers, ways = joined(chunks), set()
    for options in product(*(range(len(layer(chain, i).saved_bytes)) for i in layers)):
        if bytes_needed(chain, chunks, options, stage) <= chain.device_bytes:
            chosen = dict(zip(layers, options, strict=True))
            ways.add(tuple(sum(float(layer(chain, i).input_gradient_s[chosen[i]]) for i in c) for c in chunks))
    return ways


def least_by_counts(chain: LayerChain, chunks: Sequence[Sequence[int]], stage: int) -> list[Way]:
    """The least of a stage with one chunk, from how many layers of a class take each option.

    Nothing else of a stage depends on its options, and longer gradients never make a step shorter: the least is enough.
    """
    layers = sorted(joined(chunks), key=lambda i: chain.order[i])
    counts = Counter(chain.order[i] for i in layers)
    choices = [
        combinations_with_replacement(range(len(chain.classes[kind].saved_bytes)), count)
        for kind, count in sorted(counts.items())
    ]
    least = math.inf
    for parts in product(*choices):
        options = [option for part in parts for option in part]
        seconds = sum(float(layer(chain, i).input_gradient_s[k]) for i, k in zip(layers, options, strict=True))
        if seconds < least and bytes_needed(chain, [layers], options, stage) <= chain.device_bytes:
            least = seconds
    return [(least,)] if least < math.inf else []


def seconds_of_cut(chain: LayerChain, ends: Ends, ways: Ways) -> Iterator[float]:
    """The step times of a cut under every combination of its stages' ways; none where a stage does not fit."""
    for chosen in product(*(ways(chain, chunks, stage) for stage, chunks in enumerate(by_stage(chain, ends)))):
        # place r is chunk r div p of stage r mod p
        yield seconds_with(chain, ends, [seconds for chunk in zip(*chosen, strict=True) for seconds in chunk])


def least_seconds(chain: LayerChain, ways: Ways = every_way) -> float:
    """The least step time of all placements; infinite where none fits."""
    return min((s for ends in every_cut(chain) for s in seconds_of_cut(chain, ends, ways)), default=math.inf)


# Random problems.

SECOND = 2.0**-10
#: mostly small, so that times tie and zeros come up
AMOUNTS = st.one_of(st.integers(0, 5), st.integers(0, 5), st.integers(0, 30), st.integers(0, 900))
RARE = st.one_of(st.just(0), st.just(0), AMOUNTS)


@st.composite
def layer_options(draw: Any, most_options: int, byte: float) -> LayerPolicies:
    """A layer class: options that trade seconds for bytes, any others, or equal ones."""
    count = draw(st.sampled_from([1, *range(2, most_options + 1), most_options]))
    several = st.lists(AMOUNTS, min_size=count, max_size=count)
    gradient, kept, workspace = draw(several), draw(several), draw(several)
    style = draw(st.sampled_from(["trade", "trade", "trade", "any", "equal"]))
    if style == "trade":
        gradient, kept = sorted(gradient), sorted(kept, reverse=True)
        if draw(st.booleans()):  # what is not kept is there again, or nothing is
            workspace = [kept[0] - left if draw(st.booleans()) else 0 for left in kept]
    elif style == "equal":
        gradient, kept, workspace = ([values[0]] * count for values in (gradient, kept, workspace))
    # terms are left out more often than not, else the large ones hide the others
    state, step, loss, gathered, once, other = (draw(RARE) for _ in range(6))
    working = draw(st.lists(AMOUNTS, max_size=2))
    return LayerPolicies(
        forward_s=draw(AMOUNTS) * SECOND,
        input_gradient_s=np.array(gradient) * SECOND,
        weight_gradient_s=draw(AMOUNTS) * SECOND,
        saved_bytes=np.array(kept) * byte,
        workspace_bytes=np.array(workspace) * byte,
        state_bytes=state * byte,
        step_bytes=step * byte,
        working_bytes=tuple(size * byte for size in working),
        loss_bytes=loss * byte,
        gathered_bytes=gathered * byte,
        once_s=(once * SECOND, (2 * once - other) * SECOND),
    )


@st.composite
def chains_of(draw: Any, pipeline: Pipeline, order: Sequence[int], most_options: int) -> LayerChain:
    """A chain with layers of these classes, its limit near what some placement of it takes."""
    byte = draw(st.sampled_from([2.0**-10, 1.0, 2.0**30]))
    classes = tuple(draw(layer_options(most_options, byte)) for _ in range(max(order) + 1))
    chain = LayerChain(classes, tuple(order), pipeline, math.inf, draw(RARE) * SECOND, draw(st.booleans()))
    return replace(chain, device_bytes=draw(limits(chain, byte)))


@st.composite
def limits(draw: Any, chain: LayerChain, byte: float) -> float:
    """Exactly what some placement takes, a little less or more, or plenty."""
    cuts = list(every_cut(chain))
    spare = draw(st.sampled_from([0, 0, 0, 0, -1, -1, 1, 3, 10**6])) * byte
    if not cuts:
        return abs(spare)
    ends, prefer = draw(st.sampled_from(cuts)), draw(st.sampled_from(["any", "any", "small", "small", "fast"]))
    options = []
    for i in range(len(chain.order)):
        one = layer(chain, i)
        if prefer == "any":
            options.append(draw(st.integers(0, len(one.saved_bytes) - 1)))
        else:
            options.append(int(np.argmin(one.input_gradient_s if prefer == "fast" else one.saved_bytes)))
    taken = [
        bytes_needed(chain, chunks, [options[i] for i in joined(chunks)], stage)
        for stage, chunks in enumerate(by_stage(chain, ends))
    ]
    return max(max(taken) + spare, 0.0)


@st.composite
def plain_chains(draw: Any, schedule: PipelineSchedule) -> LayerChain:
    """Up to four layers, as many stages at most, and few microbatches."""
    layers = draw(st.sampled_from([1, 2, 3, 3, 4, 4, 4]))
    stages = draw(st.sampled_from([*range(1, layers + 1), *range(2, layers)]))
    order = draw(st.lists(st.integers(0, layers - 1), min_size=layers, max_size=layers))
    return draw(chains_of(Pipeline(schedule, stages, draw(st.integers(1, 8))), order, 3))


@st.composite
def interleaved_chains(draw: Any) -> LayerChain:
    """Chains for pipelines of up to six places; a few with too few layers for any."""
    stages, chunks = draw(st.sampled_from([(1, 2), (1, 3), (2, 2), (2, 2), (2, 2), (2, 3), (3, 2)]))
    layers = draw(st.integers(max(2, stages * chunks - (draw(st.integers(0, 9)) == 0)), 7))
    m = draw(st.integers(1, 8))
    groups = [size for size in range(stages, m + 1) if m % size == 0 or m % size >= stages]
    pipeline = Pipeline(PipelineSchedule.INTERLEAVED, stages, m, chunks, draw(st.sampled_from([None, *groups])))
    blocks = draw(st.lists(st.integers(0, 1), min_size=layers - 2, max_size=layers - 2))
    ends = draw(st.sampled_from([(0, 0), (2, 3), (2, 2), (0, 2)]))
    most = draw(st.sampled_from([1, 2, 2, 3 if layers < 6 else 2]))
    return draw(chains_of(pipeline, close_ranks([ends[0], *blocks, ends[1]]), most))


@st.composite
def long_chains(draw: Any, schedule: PipelineSchedule) -> LayerChain:
    """Eight to fourteen layers of one class, perhaps with other layers at the ends."""
    layers, stages = draw(st.integers(8, 14)), draw(st.integers(2, 4))
    first, last = draw(st.sampled_from([(0, 0), (0, 0), (1, 2), (0, 1)]))
    pipeline = Pipeline(schedule, stages, draw(st.integers(1, 12)))
    return draw(chains_of(pipeline, [first, *[0] * (layers - 2), last], 3))


def close_ranks(order: Sequence[int]) -> list[int]:
    """The classes in use, numbered without gaps."""
    numbers = sorted(set(order))
    return [numbers.index(kind) for kind in order]
