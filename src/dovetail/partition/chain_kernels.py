"""Compiled search of the chain problem: bounds that prune stage counts and partitions, then a dynamic program.

What a stage costs is a sum of differences of running sums, and rounding keeps order: the same sum of smaller terms is
never larger, to the bit. So what the bounds prune is out of the rounded problem too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dovetail.arrays import ROUNDING, TOLERANCE, Floats, Ints
from dovetail.compilation import compiled

#: Rows of a chain's table. The first five are running sums with a 0 ahead, so a stage is a difference of two; of the
#: others column i is what reaches layer i.
FORWARD, BACKWARD, PARAMETERS, ACTIVATIONS, SHARDED, ARRIVES_S, INPUT_BYTES = range(7)
#: Entries of the limits: bytes of a device, bytes of state per byte of parameters, bytes per second, recompute or not,
#: and the least that any layer hands to the next, in seconds and in bytes.
MEMORY, STATE, RATE, RECOMPUTE, EDGE_S, EDGE_BYTES = range(6)
#: Entries of the counts.
WIDTH, DEVICES, MICROBATCHES = range(3)
#: Rows of the ranges, by s: where the s-th stage from the end may start, and how many of the last s may be alone.
LOW, HIGH, LEAST_ALONE, MOST_ALONE = range(4)

#: Limits found by division, and sums in another order, are loosened by more than rounding can be.
LOOSE, LOOSE_SUM = 1 + ROUNDING, 1 - TOLERANCE
#: Steps towards the best time of a guess.
HALVINGS = 10
#: Numbers with a type: for a literal argument a function would be compiled again.
_typed: Any = (np.int64(0), np.int64(1), np.bool_(True), np.bool_(False))
NONE, ONE, EXACT_EDGES, SHORTEST_EDGES = _typed


@compiled
def guessed_seconds(table: Floats, limits: Floats, counts: Ints, best: float) -> float:
    """The time of some good partition where one below `best` is found, else `best`: a limit to search with."""
    layers = table.shape[1] - 1
    starts, following = np.zeros(layers + 2, np.int64), 1
    for stages in range(1, layers + 1):
        if stages < following or _most_pipelines(table, counts, stages, NONE) < 1:
            continue
        following, value = _packed_seconds(table, limits, counts, stages, best, starts)
        if value < best:
            low, best = 0.0, value
            for _ in range(HALVINGS):
                middle = (low + best) / 2
                value = _packed_seconds(table, limits, counts, stages, middle, starts)[1]
                low, best = (low, value) if value < best else (middle, best)
    return best


@compiled
def _packed_seconds(
    table: Floats, limits: Floats, counts: Ints, stages: int, best: float, starts: Ints
) -> tuple[int, float]:
    """The next number of stages worth trying, and the time below `best` if all take as many layers as they may."""
    following, limit, first_end = _settled(table, limits, counts, stages, best, EXACT_EDGES, starts)
    if limit < 0:
        return following, np.inf
    longest, used, s, i = 0.0, 0, 0, table.shape[1] - 1
    while i > 0:
        s, j = s + 1, i
        i = starts[s] if j > first_end else 0
        longest = max(longest, _seconds(table, limits, i, j, s, table[ARRIVES_S, i], table[ARRIVES_S, j]))
        used += 1 if table[SHARDED, i] == table[SHARDED, j] else counts[WIDTH]
    return following, _pipelines(counts, used, longest, s, table[PARAMETERS, first_end] / limits[RATE], best)[0]


@compiled
def best_of_width(table: Floats, limits: Floats, counts: Ints, best: float) -> tuple[float, Ints]:
    """The best time below `best`, and [pipelines, ends of the stages...]; empty where there is none.

    `longest[i, n]` is the least longest stage of the layers from i on, in s stages of which n more than the least take
    one device alone. It grows by a stage at the front: s − 1 come behind, which is all that memory needs to know. Of
    the best only the number of stages, the first one's end and the longest are noted: the other stage ends follow.
    """
    layers = table.shape[1] - 1
    ranges = np.zeros((4, layers + 1), np.int64)
    allowed = stages_left(table, limits, counts, best, ranges)
    longest = np.empty((layers + 1, ranges_alone(table, limits, _largest(allowed, ONE), ranges)))
    longest[layers, 0] = 0.0
    grown = np.empty_like(longest)
    noted, best_slowest = np.zeros(3, np.int64), np.inf
    for stages in range(1, layers + 1):
        limit = allowed[stages]
        if limit >= 0:
            value, slowest, end, pipelines = _first_stage(table, limits, counts, ranges, stages, limit, longest, best)
            if value < best:
                best, best_slowest = value, slowest
                noted[0], noted[1], noted[2] = stages, end, pipelines
                for more in range(stages + 1, layers + 1):
                    allowed[more] = min(allowed[more], _allowed(table, limits, counts, more, NONE, ONE, best))
        limit = _largest(allowed, stages + 1)
        if limit < 0:
            break
        _grow(table, limits, ranges, stages, limit, longest, grown)
        longest, grown = grown, longest
    return best, _stage_ends(table, limits, ranges, noted, best_slowest) if noted[0] > 0 else noted[:0]


@compiled
def _first_stage(
    table: Floats, limits: Floats, counts: Ints, ranges: Ints, stages: int, limit: float, longest: Floats, best: float
) -> tuple[float, float, int, int]:
    """The best time below `best` with a number of stages; its longest stage, the first one's end, and the pipelines."""
    behind = stages - 1
    value, best_slowest, best_end, best_pipelines = best, np.inf, 0, 0
    for end in range(ranges[LOW, behind], ranges[HIGH, behind] + 1):
        if not _may_be(table, limits, NONE, end, stages, limit, 0.0, 0.0, limits[EDGE_S]):
            break
        load = _seconds(table, limits, NONE, end, stages, 0.0, table[ARRIVES_S, end])
        alone = 1 if table[SHARDED, end] == table[SHARDED, 0] else 0
        reduced_s = table[PARAMETERS, end] / limits[RATE]
        for n in range(ranges[LEAST_ALONE, behind], ranges[MOST_ALONE, behind] + 1):
            slowest = max(load, longest[end, n - ranges[LEAST_ALONE, behind]])
            used = (stages - n - alone) * counts[WIDTH] + n + alone
            if slowest <= limit:
                time, pipelines = _pipelines(counts, used, slowest, stages, reduced_s, value)
                if time < value:
                    value, best_slowest, best_end, best_pipelines = time, slowest, end, pipelines
    return value, best_slowest, best_end, best_pipelines


@compiled
def _grow(table: Floats, limits: Floats, ranges: Ints, s: int, limit: float, longest: Floats, grown: Floats) -> None:
    """The least longest stage with one stage more, the s-th from the end; none longer than the limit is noted."""
    size = ranges[MOST_ALONE, s] - ranges[LEAST_ALONE, s] + 1
    size_behind = ranges[MOST_ALONE, s - 1] - ranges[LEAST_ALONE, s - 1] + 1
    for i in range(ranges[LOW, s], ranges[HIGH, s] + 1):
        grown[i, :size] = np.inf
        arrives, received = table[ARRIVES_S, i], table[INPUT_BYTES, i]
        for j in range(max(i + 1, ranges[LOW, s - 1]), ranges[HIGH, s - 1] + 1):
            # a stage that ends later takes no less, and only one entry is to be improved
            useful = min(limit, grown[i, 0]) if size == 1 else limit
            if not _may_be(table, limits, i, j, s, useful, arrives, received, limits[EDGE_S]):
                break
            load = _seconds(table, limits, i, j, s, arrives, table[ARRIVES_S, j])
            if load > limit:
                continue
            shift = ranges[LEAST_ALONE, s - 1] - ranges[LEAST_ALONE, s] + (table[SHARDED, j] == table[SHARDED, i])
            low, high = max(0, -shift), min(size_behind, size - shift)
            row, behind = grown[i, low + shift : high + shift], longest[j, low:high]
            for n in range(len(row)):
                row[n] = min(row[n], max(load, behind[n]))


@compiled
def _stage_ends(table: Floats, limits: Floats, ranges: Ints, noted: Ints, longest: float) -> Ints:
    """The number of pipelines and where every stage ends, with as many stages alone as no longer stages allow.

    `alone[i]` is how many of the last s stages can take one device when they start at i; −1 if they cannot be.
    """
    stages, first_end, pipelines = noted
    layers = table.shape[1] - 1
    ends = np.zeros((stages, layers + 1), np.int16)
    alone, behind = np.empty(layers + 1, np.int64), np.empty(layers + 1, np.int64)
    alone[layers] = 0
    for s in range(1, stages):
        alone, behind = behind, alone
        for i in range(ranges[LOW, s], ranges[HIGH, s] + 1):
            alone[i], arrives, received = -1, table[ARRIVES_S, i], table[INPUT_BYTES, i]
            for j in range(max(i + 1, ranges[LOW, s - 1]), ranges[HIGH, s - 1] + 1):
                if not _may_be(table, limits, i, j, s, longest, arrives, received, limits[EDGE_S]):
                    break
                count = behind[j] + (table[SHARDED, j] == table[SHARDED, i])
                load = _seconds(table, limits, i, j, s, arrives, table[ARRIVES_S, j])
                if behind[j] >= 0 and count > alone[i] and load <= longest:
                    alone[i], ends[s, i] = count, j
    answer = np.empty(stages + 1, np.int64)
    answer[0], answer[1] = pipelines, first_end
    for k in range(2, stages + 1):
        answer[k] = ends[stages + 1 - k, answer[k - 1]]
    return answer


@compiled
def stages_left(table: Floats, limits: Floats, counts: Ints, best: float, ranges: Ints) -> Floats:
    """By number of stages the length that none may exceed to be better than `best`; −1 where that cannot be met.

    Also notes where the s-th stage from the end may start in any of those that are left.
    """
    layers = table.shape[1] - 1
    allowed = np.empty(layers + 1)
    allowed[:] = -1.0
    lowest, highest = np.zeros(layers + 2, np.int64), np.zeros(layers + 2, np.int64)
    ranges[LOW, :], ranges[HIGH, 0], following = layers, layers, 1
    for stages in range(1, layers + 1):
        if stages < following or _most_pipelines(table, counts, stages, NONE) < 1:
            continue
        following, limit, first_end = _settled(table, limits, counts, stages, best, SHORTEST_EDGES, lowest)
        if limit >= 0:
            allowed[stages] = limit
            _latest_starts(table, limits, stages, limit, highest)
            lowest[stages - 1] = first_end
            for s in range(1, stages):
                ranges[LOW, s] = min(ranges[LOW, s], max(lowest[s], stages - s))
                ranges[HIGH, s] = max(ranges[HIGH, s], highest[s])
    return allowed


@compiled
def _settled(
    table: Floats, limits: Floats, counts: Ints, stages: int, best: float, exact_edges: bool, starts: Ints
) -> tuple[int, float, int]:
    """The next number of stages to look at, how long these may be (−1 if they cannot), and the first one's least end.

    A first stage that ends later has more to reduce, which leaves less time to the stages: the others reach less far.
    So its end is raised to what the others reach until they do. More stages have less time each than these: how many
    would be needed in this time bounds how many there must be. With exact edges all that is a guess.
    """
    layers = table.shape[1] - 1
    shortest = LOOSE_SUM * _least_longest(table, limits, stages)
    mixed = 0 < table[SHARDED, layers] < layers
    following, first_end = stages + 1, 1 if stages > 1 else layers
    while True:
        limit = _allowed(table, limits, counts, stages, NONE, first_end, best)
        leaves = table[ARRIVES_S, first_end] if exact_edges else limits[EDGE_S]
        if limit < shortest or not _may_be(table, limits, NONE, first_end, stages, limit, 0.0, 0.0, leaves):
            return following, -1.0, 0
        if mixed:
            wide = _fewest_wide(table, limits, limit, starts)
            limit = _allowed(table, limits, counts, stages, wide, first_end, best)
        needed = _pack(table, limits, first_end if exact_edges else NONE, limit, exact_edges, starts)
        if first_end == 1:
            following = max(following, needed)
        if needed > (layers if exact_edges else stages):
            return following, -1.0, 0
        if starts[stages - 1] <= first_end:
            return following, limit, first_end
        first_end = starts[stages - 1]


@compiled
def _pack(table: Floats, limits: Floats, first: int, limit: float, exact_edges: bool, starts: Ints) -> int:
    """How many stages the layers from the first on make, and where they start, if from the end each takes all it may.

    Edges count as the least of all, so that a stage of fewer layers is never longer nor larger: then none can start
    before the one that has as many layers as it may, behind others that have. With exact edges, stages that break
    a limit are passed over, and nothing is proven. Where a layer fits nowhere there are more stages than layers.
    """
    layers = table.shape[1] - 1
    edge_s, edge_bytes = limits[EDGE_S], limits[EDGE_BYTES]
    end = starts[0] = layers
    for s in range(1, layers + 1):
        leaves = table[ARRIVES_S, end] if exact_edges else edge_s
        if _may_be(table, limits, first, end, s, limit, table[ARRIVES_S, first], table[INPUT_BYTES, first], leaves):
            starts[s:] = first
            return s if end > first else s - 1
        start = end
        for i in range(end - 1, first, -1):
            if not _may_be(table, limits, i, end, s, limit, edge_s, edge_bytes, leaves):
                break
            arrives, received = table[ARRIVES_S, i], table[INPUT_BYTES, i]
            shortest = not exact_edges or received == edge_bytes
            if shortest or _may_be(table, limits, i, end, s, limit, arrives, received, leaves):
                start = i
        if start == end:
            break
        end = starts[s] = start
    return layers + 1


@compiled
def _latest_starts(table: Floats, limits: Floats, stages: int, limit: float, starts: Ints) -> None:
    """Notes what none of so many stages can start after: where it starts if those before take all layers they may."""
    layers = table.shape[1] - 1
    start, arrives, received = NONE, 0.0, 0.0
    for s in range(stages, 1, -1):
        starts[s - 1] = start
        for end in range(start + 1, layers + 2 - s):
            if not _may_be(table, limits, start, end, s, limit, arrives, received, limits[EDGE_S]):
                break
            starts[s - 1] = end
        start = starts[s - 1]
        arrives, received = limits[EDGE_S], limits[EDGE_BYTES]


@compiled
def _fewest_wide(table: Floats, limits: Floats, limit: float, wide: Ints) -> int:
    """How many stages with sharded layers the layers from i on need at least, for every i, within the limit.

    From the end, each takes all it may; layers that are not sharded count only between sharded ones of one stage.
    """
    count, end = NONE, NONE
    for i in range(table.shape[1] - 2, -1, -1):
        more = count == 0 or not _may_be(table, limits, i, end, count, limit, 0.0, 0.0, limits[EDGE_S])
        if more and table[SHARDED, i + 1] > table[SHARDED, i]:
            count, end = count + 1, i + 1
        wide[i] = count
    return count


@compiled
def ranges_alone(table: Floats, limits: Floats, limit: float, ranges: Ints) -> int:
    """Notes how many of the last s stages may take one device alone, for every s; returns how many numbers at most.

    Every other stage has a sharded layer, and there are as many of them as the limit needs.
    """
    layers = table.shape[1] - 1
    wide = np.zeros(layers + 1, np.int64)
    _fewest_wide(table, limits, limit, wide)
    size = 1
    for s in range(1, layers + 1):
        sharded = int(table[SHARDED, layers] - table[SHARDED, ranges[LOW, s]])
        fewest, most = max(0, s - sharded), min(layers - ranges[LOW, s] - sharded, s - wide[ranges[HIGH, s]])
        ranges[LEAST_ALONE, s], ranges[MOST_ALONE, s] = fewest, max(fewest, most)
        size = max(size, most - fewest + 1)
    return size


@compiled(forceinline=True)
def _most_pipelines(table: Floats, counts: Ints, stages: int, wide: int) -> int:
    """How many pipelines of so many stages there can be, at least `wide` of them with a sharded layer."""
    sharded = int(table[SHARDED, -1])
    alone = min(table.shape[1] - 1 - sharded, stages - max(wide, min(sharded, 1)))
    return min(counts[DEVICES] // (alone + (stages - alone) * counts[WIDTH]), counts[MICROBATCHES])


@compiled(forceinline=True)
def _least_longest(table: Floats, limits: Floats, stages: int) -> float:
    """What the longest of so many stages takes at least: its share of all layers."""
    once = table[FORWARD, -1] + table[BACKWARD, -1]
    # with recomputation all but the last run their forward twice, and that of the last is no longer than the longest
    return (once + table[FORWARD, -1]) / (stages + 1) if limits[RECOMPUTE] else once / stages


@compiled
def _allowed(table: Floats, limits: Floats, counts: Ints, stages: int, wide: int, first_end: int, best: float) -> float:
    """How long a stage may be, where at least `wide` have a sharded layer, for a time below `best`; −1 if none may.

    The first stage ends at `first_end` at the least. Pipelines are taken together from half of their number on.
    """
    allowed, most = -1.0, _most_pipelines(table, counts, stages, wide)
    while most > 0:
        rounds = (counts[MICROBATCHES] + most - 1) // most + stages - 1
        if best / rounds * LOOSE <= allowed:
            break
        fewest = most // 2 + 1
        reduced_s = 4 * (fewest - 1) / fewest * table[PARAMETERS, first_end] / limits[RATE]
        allowed = max(allowed, (best * LOOSE - reduced_s / LOOSE) / rounds * LOOSE)
        most //= 2
    return allowed


@compiled(forceinline=True)
def _may_be(
    table: Floats, limits: Floats, i: int, j: int, s: int, limit: float, arrives: float, received: float, leaves: float
) -> bool:
    """Whether memory and time allow the layers i to j as s-th stage from the end: never with more layers if not so."""
    activations = table[ACTIVATIONS, j] - table[ACTIVATIONS, i]
    stash = received if limits[RECOMPUTE] else activations
    needed = limits[STATE] * (table[PARAMETERS, j] - table[PARAMETERS, i]) + activations + (s - 1) * stash
    return needed <= limits[MEMORY] and _seconds(table, limits, i, j, s, arrives, leaves) <= limit


@compiled(forceinline=True)
def _seconds(table: Floats, limits: Floats, i: int, j: int, s: int, arrives: float, leaves: float) -> float:
    """Seconds of the stage of layers i to j, the s-th from the end: never less with more layers or longer edges."""
    forward = table[FORWARD, j] - table[FORWARD, i]
    once = arrives + forward + (table[BACKWARD, j] - table[BACKWARD, i])
    if s == 1:
        return once
    return once + (max(forward, leaves) if limits[RECOMPUTE] else leaves)


@compiled
def _largest(values: Floats, first: int) -> float:
    """The largest from the first on; −1 where there is none."""
    largest = -1.0
    for value in values[first:]:
        largest = max(largest, value)
    return largest


@compiled
def _pipelines(
    counts: Ints, used: int, longest: float, stages: int, reduced_s: float, best: float
) -> tuple[float, int]:
    """The best number of equal pipelines, each of `used` devices: of those with equal rounds the fewest."""
    value, best_count, microbatches = np.inf, 0, counts[MICROBATCHES]
    most = min(counts[DEVICES] // used, microbatches)
    if most < 1:
        return value, best_count
    rounds = (microbatches + most - 1) // most
    while True:
        pipelines = (microbatches + rounds - 1) // rounds
        step = longest * (rounds + stages - 1)
        if step >= min(best, value):
            return value, best_count
        seconds = step + 4 * (pipelines - 1) / pipelines * reduced_s
        if seconds < value:
            value, best_count = seconds, pipelines
        if pipelines == 1:
            return value, best_count
        rounds = (microbatches + pipelines - 2) // (pipelines - 1)
