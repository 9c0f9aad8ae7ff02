"""Compiled bounds of a tile search: what the stages to come cost at least, and whether they fit at all."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from dovetail.arrays import Bools, Floats, Ints, Words

#: Of functions that only compiled ones call: without what Python would need, they compile much faster.
INNER: Any = {"cache": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
#: Packing is tried where no more dies than these would stay empty, and for so many steps.
MOST_EMPTY, MOST_TRIED = 12, 3_000

_ONES, _PAIRS, _NIBBLES = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333), np.uint64(0x0F0F0F0F0F0F0F0F)
_BYTES = np.uint64(0x0101010101010101)


class Instance(NamedTuple):
    """A tile problem as arrays."""

    #: the largest part counts, not the sum
    largest: bool
    #: by stage and tile
    costs: Floats
    first_tiles: Bools
    hops: Floats
    disjoint: Bools
    #: by tile: the disjoint ones it reaches, nearest first, then −1
    near: Ints
    #: by tile: those that share dies with it, then −1
    touching: Ints
    #: by tile: its last die row by row, and all as bits
    last_die: Ints
    words: Words
    #: by die: the first of the tiles that begin with it, one more at the end
    begins: Ints
    #: sets of dies as bits, and how many of each every tile has at least
    patterns: Words
    in_pattern: Ints
    #: by stage: what a hop to the next one costs; 0 where nothing is sent
    links: Floats
    #: edges to later stages, by stage
    edge_start: Ints
    edge_to: Ints
    edge_weight: Floats
    #: placed stages that some later one hears from, by number of placed ones
    heard_start: Ints
    heard: Ints
    #: by number of placed stages: the least that edges between later ones cost, those to the next stage apart
    rest: Floats
    #: by number of placed stages: the least dies of a later one, and of all together
    least_area: Ints
    whole_area: Ints
    #: by number of placed stages p, and m: the m smallest of links[p − 1 :] together; the smallest where `largest`
    few_links: Floats
    #: hops that tiles have between them, ascending
    hop_counts: Floats


class Scratch(NamedTuple):
    """Room to work in."""

    #: by stage and tile: the least that this stage and those after it cost
    ahead: Floats
    #: tiles that any stage to come may have, and the dies they cover as bits
    live: Bools
    words: Words
    #: by tile
    part: Ints
    queue: Ints
    #: of one part: its dies, and some of which every tile has one
    part_dies: Words
    struck: Words
    #: by part: how many tiles it has room for
    capacity: Ints
    #: while tiles are packed, by step: dies left, tiles wanted, dies that may stay empty, what is tried next
    left: Words
    steps: Ints


@njit(**INNER)
def joined(one: float, other: float, largest: bool) -> float:
    """Two costs together."""
    return max(one, other) if largest else one + other


@njit(**INNER)
def live_dies(instance: Instance, depth: int, free: Bools, stage_cost: Floats, scratch: Scratch) -> None:
    """Notes which tiles some stage to come may have, and the dies they cover."""
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


@njit(**INNER)
def child_bounds(instance: Instance, depth: int, stage_cost: Floats, scratch: Scratch) -> None:
    """Of every tile of the next stage the least that it and all after it cost, were only neighbours to be disjoint."""
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


@njit(**INNER)
def stages_fit(instance: Instance, depth: int, scratch: Scratch) -> bool:
    """Whether the stages to come may have room: false only if they have none."""
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


@njit(**INNER)
def _packs(instance: Instance, num_tiles: int, empty: int, smallest_area: int, scratch: Scratch) -> bool:
    """Whether so many live tiles can be disjoint, by trying: the first die left is covered or stays empty.

    Also true where trying takes too long.
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
            # the die stays empty: nothing else is left to try here, so the step takes the place of this one
            left[at, die // 64] &= ~(np.uint64(1) << np.uint64(die % 64))
            steps[at, 1], steps[at, 2] = steps[at, 1] - 1, -1
        elif at == 0:
            return False
        else:
            at -= 1
    return True


@njit(**INNER)
def _first_die(words: Words) -> int:
    """The lowest bit that is set; −1 where none is."""
    for i in range(len(words)):
        if words[i]:
            return 64 * i + bits((words[i] & (~words[i] + np.uint64(1))) - np.uint64(1))
    return -1


@njit(**INNER)
def _inside(words: Words, others: Words) -> bool:
    for i in range(len(words)):  # noqa: SIM110 (numba has no all)
        if words[i] & ~others[i]:
            return False
    return True


@njit(**INNER)
def rest_bound(instance: Instance, depth: int, last: int, stage_cost: Floats, scratch: Scratch) -> float:
    """The least of the stages to come by counting: tiles near each other form parts, each with room for some stages.

    If n parts are needed, at least n − 1 steps of the pipeline are longer than what is near. Summed over all lengths
    this is what the steps cost. Shapes and other edges count with the least they may have by themselves.
    """
    num_stages, total = len(instance.costs) - depth, instance.rest[depth]
    for stage in range(depth, len(stage_cost)):
        lowest = np.inf
        for tile in range(len(scratch.live)):
            if scratch.live[tile]:
                # what reaches the next stage from the last counts among the steps
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


@njit(**INNER)
def _long_steps(instance: Instance, depth: int, last: int, hops: float, num_stages: int, scratch: Scratch) -> int:
    """How many steps of the pipeline are at least longer than a number of hops."""
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
        # more than there is room for
        return num_stages if last >= 0 else num_stages - 1
    if last < 0:
        return needed - 1
    if none_near:
        return needed
    # the first part may be one beside the last tile: with the roomiest of those, how many others are needed
    others, left, used = 0, num_stages - most_near, False
    for i in range(parts - 1, -1, -1):
        if left <= 0:
            break
        if not used and capacity[i] == most_near:
            used = True
            continue
        left, others = left - capacity[i], others + 1
    return min(needed, others) if left <= 0 else needed


@njit(**INNER)
def _sort(numbers: Ints, count: int) -> None:
    """The first ones in place, ascending: they are few, and a library's sort takes long to compile."""
    for i in range(1, count):
        number, at = numbers[i], i
        while at > 0 and numbers[at - 1] > number:
            numbers[at] = numbers[at - 1]
            at -= 1
        numbers[at] = number


@njit(**INNER)
def _parts(instance: Instance, scratch: Scratch, lists: Ints, most_hops: float) -> int:
    """Numbers the parts of the live tiles that lists join, as far as hops are within a level; how many there are."""
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


@njit(**INNER)
def _capacity(instance: Instance, depth: int, part: int, scratch: Scratch) -> tuple[int, int]:
    """At most how many disjoint tiles a part holds, and its dies.

    No more than its dies allow, nor those of any pattern; nor more than dies of which every tile has one: tiles are
    taken row by row, and of each that has none yet the last die is chosen.
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


@njit(**INNER)
def bits(word: np.uint64) -> int:
    """How many bits of a word are set."""
    word = word - ((word >> np.uint64(1)) & _ONES)
    word = (word & _PAIRS) + ((word >> np.uint64(2)) & _PAIRS)
    word = (word + (word >> np.uint64(4))) & _NIBBLES
    return int(np.int64((word * _BYTES) >> np.uint64(56)))
