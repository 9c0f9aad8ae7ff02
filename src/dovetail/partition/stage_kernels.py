"""Compiled search of a stage's policies: least seconds within its memory, exact, and a bound that costs little.

A stage has groups of alike layers; each layer takes one policy (bytes saved of all micro-batches in flight, workspace,
seconds). What its memory limits is Σ saved + max(largest workspace + working, loss). For a given cap on the workspace
this is a knapsack with one choice per layer: its relaxation, policies mixed freely, runs along the convex hulls of the
groups.
"""

from __future__ import annotations

import numpy as np

from dovetail.arrays import ROUNDING, Floats, Ints
from dovetail.compilation import compiled
from dovetail.step.compiled_formulas import transient_peak

#: Rows of the policies: bytes saved of all micro-batches in flight, workspace, seconds. Policies of a group are in
#: order of the bytes they save.
SAVED, WORKSPACE, SECONDS = range(3)
#: Entries of the limits: bytes for activations, working bytes, bytes of the loss.
HEADROOM, WORKING, LOSS = range(3)


@compiled
def least_bound(policies: Floats, starts: Ints, counts: Ints, limits: Floats) -> float:
    """Seconds no choice of policies takes less than; infinite exactly where none fits."""
    for cap in np.unique(policies[WORKSPACE]):
        budget = _budget(limits, cap)
        if _fits(policies, starts, counts, cap, budget):
            # a smaller cap has no choice that fits, and a larger one leaves less for saved activations
            return _relaxed(policies, counts, _hulls(policies, starts, np.inf), budget)[0]
    return np.inf


@compiled
def least_seconds(policies: Floats, starts: Ints, counts: Ints, limits: Floats) -> tuple[float, Ints]:
    """The least seconds and how many layers take each policy; infinite and none where nothing fits."""
    best, taken = np.inf, np.zeros(policies.shape[1], np.int64)
    all_hulls = _hulls(policies, starts, np.inf)
    for cap in np.unique(policies[WORKSPACE]):
        budget = _budget(limits, cap)
        if not _fits(policies, starts, counts, cap, budget):
            continue
        if _relaxed(policies, counts, all_hulls, budget)[0] >= best * (1 - ROUNDING):
            # larger caps leave no more for saved activations
            break
        hulls = _hulls(policies, starts, cap)
        bound, price, rounded = _relaxed(policies, counts, hulls, budget)
        seconds = _filled(policies, starts, rounded, cap, budget)
        if seconds < best * (1 - ROUNDING):
            best, taken = seconds, rounded
        if bound < best * (1 - ROUNDING):
            seconds, exact = _exact(policies, starts, counts, cap, budget, bound, price, best)
            if seconds < best:
                best, taken = seconds, exact
    return best, taken


@compiled
def _budget(limits: Floats, cap: float) -> float:
    """Bytes that the layers may save, where no workspace is larger than the cap."""
    return limits[HEADROOM] - transient_peak(limits[LOSS], cap, limits[WORKING])


@compiled
def _fits(policies: Floats, starts: Ints, counts: Ints, cap: float, budget: float) -> bool:
    """Whether every layer has a policy under the cap, and those that save least fit."""
    saved = _least_saved(policies, starts, counts, cap)
    return saved < np.inf and saved <= budget  # a budget may be infinite too


@compiled
def _least_saved(policies: Floats, starts: Ints, counts: Ints, cap: float) -> float:
    """The fewest bytes that layers can save under the cap: each group's first policy that is allowed."""
    total = 0.0
    for g in range(len(counts)):
        first = starts[g]
        while first < starts[g + 1] and policies[WORKSPACE, first] > cap:
            first += 1
        if first == starts[g + 1]:
            return np.inf
        total += counts[g] * policies[SAVED, first]
    return total


@compiled
def _hulls(policies: Floats, starts: Ints, cap: float) -> Ints:
    """Per group the policies on the lower convex hull of those allowed, from the one that saves least on; then −1."""
    groups = len(starts) - 1
    hulls = np.full((groups, policies.shape[1] + 1), -1, np.int64)
    for g in range(groups):
        size = 0
        for k in range(starts[g], starts[g + 1]):
            if policies[WORKSPACE, k] > cap or (size and policies[SECONDS, k] >= policies[SECONDS, hulls[g, size - 1]]):
                continue
            if size and policies[SAVED, k] == policies[SAVED, hulls[g, size - 1]]:
                size -= 1
            while size >= 2 and _slope(policies, hulls[g, size - 2], k) <= _slope(
                policies, hulls[g, size - 2], hulls[g, size - 1]
            ):
                size -= 1
            hulls[g, size] = k
            size += 1
        hulls[g, size:] = -1
    return hulls


@compiled
def _slope(policies: Floats, a: int, b: int) -> float:
    """Seconds per byte from one policy to one that saves more: below zero."""
    return (policies[SECONDS, b] - policies[SECONDS, a]) / (policies[SAVED, b] - policies[SAVED, a])


@compiled
def _relaxed(policies: Floats, counts: Ints, hulls: Ints, budget: float) -> tuple[float, float, Ints]:
    """The least seconds where layers may mix policies, what a byte is worth there, and whole layers' policies below it.

    All layers start with the policy that saves least; bytes are spent where they gain most, hull edge by hull edge.
    """
    taken = np.zeros(policies.shape[1], np.int64)
    at = np.zeros(len(counts), np.int64)
    value, left = 0.0, budget
    for g in range(len(counts)):
        k = hulls[g, 0]
        value += counts[g] * policies[SECONDS, k]
        left -= counts[g] * policies[SAVED, k]
        taken[k] += counts[g]
    while True:
        steepest, group = 0.0, -1
        for g in range(len(counts)):
            if counts[g] and hulls[g, at[g] + 1] >= 0:
                slope = _slope(policies, hulls[g, at[g]], hulls[g, at[g] + 1])
                if slope < steepest:
                    steepest, group = slope, g
        if group < 0:
            return value, 0.0, taken
        a, b = hulls[group, at[group]], hulls[group, at[group] + 1]
        bytes_each = policies[SAVED, b] - policies[SAVED, a]
        if left < counts[group] * bytes_each:
            whole = min(counts[group], max(0, int(left // bytes_each)))
            taken[a] -= whole
            taken[b] += whole
            return value + steepest * left, -steepest, taken
        value += counts[group] * (policies[SECONDS, b] - policies[SECONDS, a])
        left -= counts[group] * bytes_each
        taken[a] -= counts[group]
        taken[b] += counts[group]
        at[group] += 1


@compiled
def _filled(policies: Floats, starts: Ints, taken: Ints, cap: float, budget: float) -> float:
    """Seconds of whole layers' policies, after one layer has taken the best that what is left allows."""
    left, seconds = budget, 0.0
    for k in range(len(taken)):
        left -= taken[k] * policies[SAVED, k]
        seconds += taken[k] * policies[SECONDS, k]
    gain, old, new = 0.0, -1, -1
    for g in range(len(starts) - 1):
        for a in range(starts[g], starts[g + 1]):
            if taken[a] == 0:
                continue
            for b in range(a + 1, starts[g + 1]):
                if policies[SAVED, b] - policies[SAVED, a] > left:
                    break
                if policies[WORKSPACE, b] <= cap and policies[SECONDS, a] - policies[SECONDS, b] > gain:
                    gain, old, new = policies[SECONDS, a] - policies[SECONDS, b], a, b
    if old >= 0:
        taken[old] -= 1
        taken[new] += 1
    return seconds - gain


@compiled
def _exact(
    policies: Floats, starts: Ints, counts: Ints, cap: float, budget: float, bound: float, price: float, best: float
) -> tuple[float, Ints]:
    """The least seconds below `best` for one cap; layer by layer, labels of bytes saved and seconds.

    With bytes at their `price` every policy costs some seconds more than its group's cheapest, and every choice at
    least the bound and these: policies and labels that would come to `best` are left out.
    """
    taken = np.zeros(policies.shape[1], np.int64)
    dearer = _dearer(policies, starts, cap, price)
    saved, seconds, more = np.zeros(1), np.zeros(1), np.zeros(1)
    remaining = _least_saved(policies, starts, counts, cap)
    parents, picks = [np.zeros(1, np.int64)], [np.zeros(1, np.int64)]
    for g in range(len(counts)):
        allowed = starts[g] + np.flatnonzero(bound + dearer[starts[g] : starts[g + 1]] < best * (1 - ROUNDING))
        smallest = _least_saved(policies, starts[g : g + 2], np.ones(1, np.int64), cap)
        for _ in range(counts[g]):
            remaining -= smallest
            saved, seconds, more, parent, pick = _with_layer(
                policies, allowed, dearer, saved, seconds, more,
                budget - remaining, best * (1 - ROUNDING) - bound,
            )  # fmt: skip
            if len(saved) == 0:
                return np.inf, taken
            parents.append(parent)
            picks.append(pick)
    best_label = int(np.argmin(seconds))
    value, place = seconds[best_label], best_label
    for layer in range(len(picks) - 1, 0, -1):
        taken[picks[layer][place]] += 1
        place = parents[layer][place]
    return value, taken


@compiled
def _dearer(policies: Floats, starts: Ints, cap: float, price: float) -> Floats:
    """Seconds every policy costs more than the cheapest of its group, bytes at their price; infinite over the cap."""
    dearer = np.full(policies.shape[1], np.inf)
    for g in range(len(starts) - 1):
        cheapest = np.inf
        for k in range(starts[g], starts[g + 1]):
            if policies[WORKSPACE, k] <= cap:
                dearer[k] = policies[SECONDS, k] + price * policies[SAVED, k]
                cheapest = min(cheapest, dearer[k])
        for k in range(starts[g], starts[g + 1]):
            dearer[k] -= cheapest
    return dearer


@compiled
def _with_layer(
    policies: Floats,
    allowed: Ints,
    dearer: Floats,
    saved: Floats,
    seconds: Floats,
    more: Floats,
    headroom: float,
    gap: float,
) -> tuple[Floats, Floats, Floats, Ints, Ints]:
    """Labels with one layer more; of those that save no less, only ones that take fewer seconds."""
    most = len(saved) * len(allowed)
    new_saved, new_seconds, new_more = np.empty(most), np.empty(most), np.empty(most)
    parent, pick = np.empty(most, np.int64), np.empty(most, np.int64)
    count = 0
    for i in range(len(saved)):
        for k in allowed:
            if saved[i] + policies[SAVED, k] <= headroom and more[i] + dearer[k] < gap:
                new_saved[count] = saved[i] + policies[SAVED, k]
                new_seconds[count] = seconds[i] + policies[SECONDS, k]
                new_more[count] = more[i] + dearer[k]
                parent[count], pick[count] = i, k
                count += 1
    order = np.argsort(new_saved[:count])
    left, fastest = 0, np.inf
    undominated = np.empty(count, np.int64)
    for place in order:
        if new_seconds[place] < fastest:
            # of equally many bytes the last stays, which takes least
            if left and new_saved[undominated[left - 1]] == new_saved[place]:
                left -= 1
            undominated[left] = place
            left += 1
            fastest = new_seconds[place]
    undominated = undominated[:left]
    return (
        new_saved[undominated],
        new_seconds[undominated],
        new_more[undominated],
        parent[undominated],
        pick[undominated],
    )
