"""Compiled lower bounds of a tile search: the cost of the remaining stages, and whether they fit at all."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail.arrays import Bools, Floats, Ints, Words
from dovetail.compilation import compiled

#: Packing is tried if at most this many dies would stay empty, and for this many steps.
MOST_EMPTY, MOST_TRIED = 12, 3_000

_ONES, _PAIRS, _NIBBLES = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333), np.uint64(0x0F0F0F0F0F0F0F0F)
_BYTES = np.uint64(0x0101010101010101)


class Instance(NamedTuple):
    """A tile problem as arrays."""

    #: minimise the largest part instead of the sum
    largest: bool
    #: by stage and tile
    costs: Floats
    first_tiles: Bools
    hops: Floats
    disjoint: Bools
    #: by tile: the disjoint tiles it reaches, nearest first, then −1
    near: Ints
    #: by tile: the tiles that share dies with it, then −1
    touching: Ints
    #: by tile: its last die in row order, and all its dies as bits
    last_die: Ints
    words: Words
    #: by die: the first tile that begins with it; one more entry at the end
    begins: Ints
    #: sets of dies as bits, and the fewest dies of each that a tile covers
    patterns: Words
    in_pattern: Ints
    #: by stage: the cost of a hop to the next one; 0 if nothing is sent
    links: Floats
    #: edges to later stages, by stage
    edge_start: Ints
    edge_to: Ints
    edge_weight: Floats
    #: placed stages that send to a later one, by number of placed stages
    heard_start: Ints
    heard: Ints
    #: by number of placed stages: the lowest cost of edges between later ones, except to the next stage
    rest: Floats
    #: by number of placed stages: the fewest dies of a later one, and of all later ones together
    least_area: Ints
    whole_area: Ints
    #: by number of placed stages p, and m: the sum of the m smallest of links[p − 1 :]; the m-th if `largest`
    few_links: Floats
    #: the distinct hop counts between tiles, ascending
    hop_counts: Floats


class Scratch(NamedTuple):
    """Scratch arrays."""

    #: by stage and tile: the lowest cost of this stage and those after it
    ahead: Floats
    #: tiles that any remaining stage may use, and the dies they cover as bits
    live: Bools
    words: Words
    #: by tile
    part: Ints
    queue: Ints
    #: of one part: its dies, and a set of dies that hits every tile
    part_dies: Words
    struck: Words
    #: by part: how many tiles fit
    capacity: Ints
    #: while packing tiles, by step: dies left, tiles to place, dies that may stay empty, what to try next
    left: Words
    steps: Ints


@compiled
def joined(one: float, other: float, largest: bool) -> float:
    """Two costs combined: their sum, or the larger."""
    return max(one, other) if largest else one + other


@compiled
def live_dies(instance: Instance, depth: int, free: Bools, stage_cost: Floats, scratch: Scratch) -> None:
    """Records which tiles a remaining stage may use, and the dies they cover."""
    for i in range(len(scratch.words)):
        scratch.words[i] = 0
    for tile in range(len(free)):
        scratch.live[tile] = False
        if not free[tile]:
            continue
        for stage in range(depth, len(stage_cost)):
            if stage_cost[stage, tile] < np.inf:
                scratch.live[tile] = True
                break
        if scratch.live[tile]:
            for i in range(len(scratch.words)):
                scratch.words[i] |= instance.words[tile, i]


@compiled
def child_bounds(instance: Instance, depth: int, stage_cost: Floats, scratch: Scratch) -> None:
    """The lowest cost of the remaining stages for each tile of the next, if only neighbours had to be disjoint."""
    ahead, last = scratch.ahead, len(stage_cost) - 1
    lowest_next = 0.0
    for stage in range(last, depth - 1, -1):
        lowest, link = np.inf, instance.links[stage]
        for tile in range(len(scratch.live)):
            here = stage_cost[stage, tile]
            if not scratch.live[tile] or here == np.inf:
                ahead[stage, tile] = np.inf
                continue
            best = lowest_next
            if stage < last and link > 0:
                best = np.inf
                for other in instance.near[tile]:
                    if other < 0:
                        break
                    step = link * instance.hops[tile, other]
                    if joined(step, lowest_next, instance.largest) >= best:
                        break
                    best = min(best, joined(step, ahead[stage + 1, other], instance.largest))
            ahead[stage, tile] = joined(here, best, instance.largest)
            lowest = min(lowest, ahead[stage, tile])
        lowest_next = lowest
    for tile in range(len(scratch.live)):
        ahead[depth, tile] = joined(ahead[depth, tile], instance.rest[depth], instance.largest)


@compiled
def stages_fit(instance: Instance, depth: int, scratch: Scratch) -> bool:
    """Whether the remaining stages may fit: false only if they cannot."""
    num_stages = len(instance.costs) - depth
    parts = _parts(instance, scratch, instance.touching, np.inf)
    tiles, dies = 0, 0
    for part in range(parts):
        capacity, area = _capacity(instance, depth, part, scratch)
        tiles, dies = tiles + capacity, dies + area
    if tiles < num_stages or dies < instance.whole_area[depth]:
        return False
    empty = dies - num_stages * instance.least_area[depth]
    return empty > MOST_EMPTY or _packs(instance, num_stages, empty, instance.least_area[depth], scratch)


@compiled
def _packs(instance: Instance, num_tiles: int, empty: int, smallest_area: int, scratch: Scratch) -> bool:
    """Whether that many live tiles can be disjoint, by search: the first die left is covered or stays empty.

    Also true if the search takes too long.
    """
    left, steps, width = scratch.left, scratch.steps, len(scratch.words)
    for i in range(width):
        left[0, i] = scratch.words[i]
    steps[0, 0], steps[0, 1], steps[0, 2] = num_tiles, empty, -1
    at = 0
    for _ in range(MOST_TRIED):
        if steps[at, 0] == 0:
            return True
        die = _first_die(left[at])
        tile = steps[at, 2] if steps[at, 2] >= 0 else (instance.begins[die] if die >= 0 else 0)
        end, fits = instance.begins[die + 1] if die >= 0 else 0, False
        while tile < end and not fits:
            fits = scratch.live[tile] and _inside(instance.words[tile], left[at])
            tile += 1
        steps[at, 2] = tile
        if fits:
            area = 0
            for i in range(width):
                left[at + 1, i] = left[at, i] & ~instance.words[tile - 1, i]
                area += bits(instance.words[tile - 1, i])
            steps[at + 1, 0], steps[at + 1, 1], steps[at + 1, 2] = (
                steps[at, 0] - 1,
                steps[at, 1] + smallest_area - area,
                -1,
            )
            if steps[at + 1, 1] >= 0:
                at += 1
        elif die >= 0 and steps[at, 1] > 0:
            # the die stays empty: nothing else is left to try here, so reuse this step
            left[at, die // 64] &= ~(np.uint64(1) << np.uint64(die % 64))
            steps[at, 1], steps[at, 2] = steps[at, 1] - 1, -1
        elif at == 0:
            return False
        else:
            at -= 1
    return True


@compiled
def _first_die(words: Words) -> int:
    """The lowest set bit; −1 if none is set."""
    for i in range(len(words)):
        if words[i]:
            return 64 * i + bits((words[i] & (~words[i] + np.uint64(1))) - np.uint64(1))
    return -1


@compiled
def _inside(words: Words, others: Words) -> bool:
    for i in range(len(words)):  # noqa: SIM110 (numba has no all)
        if words[i] & ~others[i]:
            return False
    return True


@compiled
def rest_bound(instance: Instance, depth: int, last: int, stage_cost: Floats, scratch: Scratch) -> float:
    """A lower bound of the remaining stages by counting: nearby tiles form parts, each of which fits some stages.

    If n parts are needed, at least n − 1 steps of the pipeline are longer than "nearby". Summed over all distances,
    this bounds the cost of the steps. Shapes and other edges count with their lowest cost by themselves.
    """
    num_stages, total = len(instance.costs) - depth, instance.rest[depth]
    for stage in range(depth, len(stage_cost)):
        lowest = np.inf
        for tile in range(len(scratch.live)):
            if scratch.live[tile]:
                # the edge from the last placed stage to the next counts among the steps
                lowest = min(lowest, instance.costs[stage, tile] if stage == depth else stage_cost[stage, tile])
        total = joined(total, lowest, instance.largest)
    below, steps = 0.0, num_stages if last >= 0 else num_stages - 1
    for hops in instance.hop_counts:
        if instance.largest:
            total = max(total, hops * instance.few_links[depth, steps])
        else:
            total += (hops - below) * instance.few_links[depth, steps]
        below = hops
        steps = _long_steps(instance, depth, last, hops, num_stages, scratch)
        if steps == 0:
            break
    return total


@compiled
def _long_steps(instance: Instance, depth: int, last: int, hops: float, num_stages: int, scratch: Scratch) -> int:
    """The fewest steps of the pipeline that are longer than a number of hops."""
    parts = _parts(instance, scratch, instance.near, hops)
    capacity, most_near, none_near = scratch.capacity, 0, True
    for part in range(parts):
        capacity[part] = _capacity(instance, depth, part, scratch)[0]
    if last >= 0:
        for other in instance.near[last]:
            if other < 0 or instance.hops[last, other] > hops:
                break
            if scratch.live[other]:
                part, none_near = scratch.part[other], False
                most_near = max(most_near, capacity[part])
    _sort(capacity, parts)
    needed, left = 0, num_stages
    for i in range(parts - 1, -1, -1):
        if left <= 0:
            break
        left, needed = left - capacity[i], needed + 1
    if left > 0:
        # more than fit
        return num_stages if last >= 0 else num_stages - 1
    if last < 0:
        return needed - 1
    if none_near:
        return needed
    # the first part may be near the last tile: how many others are needed besides the largest of those
    others, left, used = 0, num_stages - most_near, False
    for i in range(parts - 1, -1, -1):
        if left <= 0:
            break
        if not used and capacity[i] == most_near:
            used = True
            continue
        left, others = left - capacity[i], others + 1
    return min(needed, others) if left <= 0 else needed


@compiled
def _sort(numbers: Ints, count: int) -> None:
    """Sorts the first numbers in place: they are few, and a library sort takes long to compile."""
    for i in range(1, count):
        number, at = numbers[i], i
        while at > 0 and numbers[at - 1] > number:
            numbers[at] = numbers[at - 1]
            at -= 1
        numbers[at] = number


@compiled
def _parts(instance: Instance, scratch: Scratch, lists: Ints, most_hops: float) -> int:
    """Numbers the parts of live tiles that lists connect within a number of hops; returns how many there are."""
    part, queue, live = scratch.part, scratch.queue, scratch.live
    for tile in range(len(live)):
        part[tile] = -1
    parts = 0
    for first in range(len(live)):
        if not live[first] or part[first] >= 0:
            continue
        part[first] = parts
        queue[0] = first
        done, queued = 0, 1
        while done < queued:
            tile = queue[done]
            done += 1
            for other in lists[tile]:
                if other < 0 or instance.hops[tile, other] > most_hops:
                    break
                if live[other] and part[other] < 0:
                    part[other] = parts
                    queue[queued] = other
                    queued += 1
        parts += 1
    return parts


@compiled
def _capacity(instance: Instance, depth: int, part: int, scratch: Scratch) -> tuple[int, int]:
    """An upper bound of the disjoint tiles in a part, and its number of dies.

    It is limited by the part's dies, by those of every pattern, and by a set of dies that hits every tile: we visit
    tiles row by row and add the last die of each tile that is not hit yet.
    """
    dies, struck, hits = scratch.part_dies, scratch.struck, 0
    for i in range(len(dies)):
        dies[i] = 0
        struck[i] = 0
    for tile in range(len(scratch.live)):
        if scratch.part[tile] != part:
            continue
        missed = True
        for i in range(len(dies)):
            dies[i] |= instance.words[tile, i]
            if struck[i] & instance.words[tile, i]:
                missed = False
        if missed:
            last = instance.last_die[tile]
            struck[last // 64] |= np.uint64(1) << np.uint64(last % 64)
            hits += 1
    area = 0
    for i in range(len(dies)):
        area += bits(dies[i])
    capacity = min(area // instance.least_area[depth], hits)
    for pattern in range(len(instance.patterns)):
        if capacity == 0:
            break
        inside = 0
        for i in range(len(dies)):
            inside += bits(dies[i] & instance.patterns[pattern, i])
        capacity = min(capacity, inside // instance.in_pattern[pattern])
    return capacity, area


@compiled
def bits(word: np.uint64) -> int:
    """The number of set bits of a word."""
    word = word - ((word >> np.uint64(1)) & _ONES)
    word = (word & _PAIRS) + ((word >> np.uint64(2)) & _PAIRS)
    word = (word + (word >> np.uint64(4))) & _NIBBLES
    return int(np.int64((word * _BYTES) >> np.uint64(56)))
