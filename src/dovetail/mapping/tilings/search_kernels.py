"""Compiled depth-first search of tile placements, stage after stage, that can pause and resume."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail.arrays import Bools, Floats, Ints, Words
from dovetail.compilation import compiled
from dovetail.mapping.tilings.bound_kernels import (
    Instance,
    Scratch,
    bits,
    child_bounds,
    joined,
    live_dies,
    rest_bound,
    stages_fit,
)

#: Entries of the counters: depth, nodes so far, whether the current node is still to be opened.
DEPTH, NODES, FRESH = range(3)
#: Entries of the values: the cost a placement must beat, and the cheapest found.
CUTOFF, BEST = range(2)
#: Slots of the memory to probe for a state.
PROBES = 8


class Walk(NamedTuple):
    """The state of a search, by depth (the number of placed stages)."""

    counters: Ints
    values: Floats
    best_tiles: Ints
    tiles: Ints
    cost: Floats
    #: the lowest cost of anything pruned below
    lowest_unopened: Floats
    #: tiles still free
    free: Bools
    #: cost of each remaining stage on each tile: its shape, and edges from placed stages
    stage_cost: Floats
    #: tiles to try, cheapest first, and their lower bounds
    children: Ints
    child_bound: Floats
    num_children: Ints
    next_child: Ints
    key: Words


class SearchMemory(NamedTuple):
    """Lower bounds of completing the states searched so far; negative in empty slots."""

    keys: Words
    to_go: Floats


@compiled
def search(
    instance: Instance, walk: Walk, scratch: Scratch, memory: SearchMemory, node_budget: int, slack: float
) -> bool:
    """Searches until everything is done (true) or the node budget is spent."""
    counters, num_stages = walk.counters, len(instance.costs)
    until = counters[NODES] + node_budget
    while True:
        depth = counters[DEPTH]
        if counters[FRESH]:
            if counters[NODES] >= until:
                return False
            counters[NODES] += 1
            counters[FRESH] = 0
            _open(instance, walk, scratch, memory, depth, slack)
        if walk.next_child[depth] < walk.num_children[depth]:
            child = walk.next_child[depth]
            walk.next_child[depth] += 1
            bound = walk.child_bound[depth, child]
            # the cutoff may have come down since
            if bound >= walk.values[CUTOFF] - slack:
                walk.lowest_unopened[depth] = min(walk.lowest_unopened[depth], bound)
                continue
            _descend(instance, walk, depth, int(walk.children[depth, child]))
            if depth + 1 == num_stages:
                cost = walk.cost[num_stages]
                walk.values[BEST] = cost
                walk.values[CUTOFF] = cost
                for stage in range(num_stages):
                    walk.best_tiles[stage] = walk.tiles[stage]
                walk.lowest_unopened[depth] = min(walk.lowest_unopened[depth], cost)
            else:
                counters[DEPTH] = depth + 1
                counters[FRESH] = 1
            continue
        if walk.num_children[depth] > 0:
            _remember(instance, walk, memory, depth)
        if depth == 0:
            return True
        walk.lowest_unopened[depth - 1] = min(walk.lowest_unopened[depth - 1], walk.lowest_unopened[depth])
        counters[DEPTH] = depth - 1


@compiled
def expand(instance: Instance, walk: Walk, scratch: Scratch, memory: SearchMemory, tiles: Ints, slack: float) -> int:
    """Opens the node of stages placed on these tiles; returns how many dies are left to the others."""
    for depth in range(len(tiles)):
        _descend(instance, walk, depth, int(tiles[depth]))
    _open(instance, walk, scratch, memory, len(tiles), slack)
    left = 0
    for word in scratch.words:
        left += bits(word)
    return left


@compiled
def _open(instance: Instance, walk: Walk, scratch: Scratch, memory: SearchMemory, depth: int, slack: float) -> None:
    """Finds the children of a node worth trying; none if a bound or the memory prunes it."""
    walk.num_children[depth] = 0
    walk.next_child[depth] = 0
    walk.lowest_unopened[depth] = np.inf
    cost, cutoff, stage_cost = walk.cost[depth], walk.values[CUTOFF], walk.stage_cost[depth]
    live_dies(instance, depth, walk.free[depth], stage_cost, scratch)
    if not stages_fit(instance, depth, scratch):
        return
    _write_key(instance, walk, scratch, depth)
    place = _find(memory, walk.key[depth])
    if place >= 0:
        bound = joined(cost, memory.to_go[place], instance.largest)
        if bound >= cutoff - slack:
            walk.lowest_unopened[depth] = bound
            return
    child_bounds(instance, depth, stage_cost, scratch)
    cheapest = np.inf
    for tile in range(len(scratch.ahead[depth])):
        cheapest = min(cheapest, joined(cost, scratch.ahead[depth, tile], instance.largest))
    lowest = cheapest
    # at the root the bound itself is of interest
    if cheapest < cutoff - slack or depth == 0:
        last = walk.tiles[depth - 1] if depth else -1
        lowest = max(lowest, joined(cost, rest_bound(instance, depth, last, stage_cost, scratch), instance.largest))
    if lowest >= cutoff - slack:
        walk.lowest_unopened[depth] = lowest
        return
    count = 0
    for tile in range(len(scratch.ahead[depth])):
        if depth == 0 and not instance.first_tiles[tile]:
            continue
        bound = max(lowest, joined(cost, scratch.ahead[depth, tile], instance.largest))
        if bound >= cutoff - slack:
            walk.lowest_unopened[depth] = min(walk.lowest_unopened[depth], bound)
            continue
        # by bound, then by tile: the order must not depend on anything else
        at = count
        while at > 0 and walk.child_bound[depth, at - 1] > bound:
            walk.child_bound[depth, at] = walk.child_bound[depth, at - 1]
            walk.children[depth, at] = walk.children[depth, at - 1]
            at -= 1
        walk.child_bound[depth, at] = bound
        walk.children[depth, at] = tile
        count += 1
    walk.num_children[depth] = count


@compiled
def _descend(instance: Instance, walk: Walk, depth: int, tile: int) -> None:
    """Places the next stage on a tile."""
    walk.tiles[depth] = tile
    walk.cost[depth + 1] = joined(walk.cost[depth], walk.stage_cost[depth, depth, tile], instance.largest)
    if depth + 1 == len(instance.costs):
        return
    # loops, here and below, compile much faster than slices
    for stage in range(depth + 1, len(instance.costs)):
        for other in range(len(instance.hops)):
            walk.stage_cost[depth + 1, stage, other] = walk.stage_cost[depth, stage, other]
    for edge in range(instance.edge_start[depth], instance.edge_start[depth + 1]):
        stage, weight = instance.edge_to[edge], instance.edge_weight[edge]
        for other in range(len(instance.hops)):
            before = walk.stage_cost[depth + 1, stage, other]
            walk.stage_cost[depth + 1, stage, other] = joined(
                before, weight * instance.hops[tile, other], instance.largest
            )
    for other in range(len(instance.hops)):
        walk.free[depth + 1, other] = walk.free[depth, other] and instance.disjoint[tile, other]


@compiled
def _write_key(instance: Instance, walk: Walk, scratch: Scratch, depth: int) -> None:
    """What the cost of the remaining stages depends on: the dies they may use, and the tiles of their senders."""
    words, key = scratch.words, walk.key[depth]
    for i in range(len(key)):
        key[i] = words[i] if i < len(words) else np.uint64(0)
    at, shift = len(words), 8
    key[at] = depth + 1
    for i in range(instance.heard_start[depth], instance.heard_start[depth + 1]):
        if shift + 14 > 64:
            at, shift = at + 1, 0
        key[at] |= np.uint64(walk.tiles[instance.heard[i]]) << np.uint64(shift)
        shift += 14


@compiled
def _hashed(key: Words) -> np.uint64:
    value = np.uint64(1469598103934665603)
    for word in key:
        value = (value ^ word) * np.uint64(0x9E3779B97F4A7C15)
        value ^= value >> np.uint64(29)
    return value


@compiled
def _same(one: Words, other: Words) -> bool:
    for i in range(len(one)):  # noqa: SIM110 (numba has no all)
        if one[i] != other[i]:
            return False
    return True


@compiled
def _find(memory: SearchMemory, key: Words) -> int:
    """The slot of a remembered state; −1 if it is not remembered."""
    mask = np.uint64(len(memory.keys) - 1)
    start = _hashed(key)
    for probe in range(PROBES):
        place = int(np.int64((start + np.uint64(probe)) & mask))
        if _same(memory.keys[place], key):
            return place
    return -1


@compiled
def _remember(instance: Instance, walk: Walk, memory: SearchMemory, depth: int) -> None:
    """Records a lower bound of completing the current node: everything below was searched or pruned."""
    cost, lowest = walk.cost[depth], walk.lowest_unopened[depth]
    to_go = lowest
    if not instance.largest:
        to_go = max(lowest - cost, 0.0)
    elif lowest <= cost:
        return
    key = walk.key[depth]
    place = _find(memory, key)
    if place >= 0:
        memory.to_go[place] = max(memory.to_go[place], to_go)
        return
    mask = np.uint64(len(memory.keys) - 1)
    start = _hashed(key)
    free_place = int(np.int64(start & mask))
    for probe in range(PROBES):
        place = int(np.int64((start + np.uint64(probe)) & mask))
        if memory.to_go[place] < 0:
            free_place = place
            break
    for i in range(len(key)):
        memory.keys[free_place, i] = key[i]
    memory.to_go[free_place] = to_go
