"""Compiled bounds of partitions: labels of the stages from the last to the first.

A step takes at least: every forward once, every backward once, all links twice, the longest *stay* at one stage, and
what the slowest stage does once a step. What a stay is depends on the schedule (`_stay`); it is known when the stage
and those behind it are.
"""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.compilation import compiled

#: Columns of a label, of the stages from one on: seconds of their backwards, the longest stay at one of them, the
#: most seconds one of them takes once a step.
BACKWARD, STAY, ONCE = range(3)
#: Rows of a chain's sums over layers, each with a 0 ahead: forwards, least backwards, and from the third on the
#: alternatives of what a stage takes once a step, of which the longest counts.
FORWARD, LEAST_BACKWARD, FIRST_ONCE = range(3)
#: Entries of a pipeline: schedule, micro-batches, seconds that a transfer delays the next stage, or takes the sender.
SCHEDULE, MICROBATCHES, DELAY, SENDING = range(4)
#: Schedules as the kernels tell them apart.
ONE_F_ONE_B, GPIPE, OTHER = range(3)


@compiled
def labels_of_partitions(
    sums: Floats, backward: Floats, in_flight: Floats, pipeline: Floats, limit: float
) -> tuple[Ints, Floats, Ints]:
    """Labels of every stage and first layer that no other label dominates.

    `backward[i, s, e]` are the seconds of stage i with layers s to e, what it sends back itself included; infinite
    where it does not fit, or takes too long. Returned are where the labels of stage i from layer s on begin and how
    many (stages × layers × 2), the labels, and for each where its first stage ends and the label behind it. Labels at
    the limit are left out.
    """
    stages, layers = len(in_flight), sums.shape[1] - 1
    places = np.zeros((stages, layers + 1, 2), np.int64)
    labels, notes = np.empty((1024, 3)), np.empty((1024, 2), np.int64)
    used = 0
    for i in range(stages - 1, -1, -1):
        last = i == stages - 1
        for s in range(i, (layers - stages + i if i else 0) + 1):
            from_here, ends = np.empty((0, 3)), np.empty((0, 2), np.int64)
            for e in range(layers if last else s + 1, layers - (stages - 1 - i) + 1):
                if backward[i, s, e] == np.inf:
                    continue
                first, count = (0, 1) if last else (places[i + 1, e, 0], places[i + 1, e, 1])
                behind = np.zeros((1, 3)) if last else labels[first : first + count]
                part = _with_stage(i, s, e, backward[i, s, e], behind, sums, in_flight, pipeline)
                note = np.empty((count, 2), np.int64)
                note[:, 0] = e
                note[:, 1] = first + np.arange(count)
                below = values(part, sums, len(in_flight), pipeline, sums[LEAST_BACKWARD, s]) < limit
                from_here, ends = _undominated(from_here, ends, part[below], note[below])
            while used + len(from_here) > len(labels):
                labels, notes = np.concatenate((labels, labels)), np.concatenate((notes, notes))
            labels[used : used + len(from_here)] = from_here
            notes[used : used + len(from_here)] = ends
            places[i, s, 0], places[i, s, 1] = used, len(from_here)
            used += len(from_here)
    return places, labels[:used], notes[:used]


@compiled
def least_values(sums: Floats, in_flight: Floats, pipeline: Floats) -> Floats:
    """What a step takes at least with stage i of layers s to e, had every layer its fastest policy."""
    stages, layers = len(in_flight), sums.shape[1] - 1
    bounds = np.full((stages, layers, layers + 1), np.inf)
    label, total = np.zeros((1, 3)), sums[LEAST_BACKWARD, -1]
    for i in range(stages):
        sent = pipeline[SENDING] if i else 0.0
        label[0, BACKWARD] = total + sent
        for s in range(i, (layers - stages + i if i else 0) + 1):
            for e in range(layers if i == stages - 1 else s + 1, layers - (stages - 1 - i) + 1):
                of_stage = sums[LEAST_BACKWARD, e] - sums[LEAST_BACKWARD, s] + sent
                label[0, STAY] = stay(i, s, e, of_stage, total - sums[LEAST_BACKWARD, e], sums, in_flight, pipeline)
                label[0, ONCE] = _once(s, e, sums)
                bounds[i, s, e] = values(label, sums, stages, pipeline, 0.0)[0]
    return bounds


@compiled
def values(labels: Floats, sums: Floats, stages: int, pipeline: Floats, backward_before: float) -> Floats:
    """Seconds a step takes at least with the stages of a label, given those of the backwards before them."""
    longest = labels[:, STAY] + labels[:, ONCE]
    if pipeline[SCHEDULE] == OTHER:
        return longest
    ways = (stages - 1) * (2 * pipeline[DELAY] + pipeline[SENDING])
    return sums[FORWARD, -1] + ways + backward_before + labels[:, BACKWARD] + longest


@compiled
def _with_stage(
    i: int, s: int, e: int, backward: float, behind: Floats, sums: Floats, in_flight: Floats, pipeline: Floats
) -> Floats:
    """Labels with stage i, of layers s to e, ahead of them."""
    labels, once = behind.copy(), _once(s, e, sums)
    for n in range(len(labels)):
        labels[n, STAY] = max(labels[n, STAY], stay(i, s, e, backward, labels[n, BACKWARD], sums, in_flight, pipeline))
        labels[n, BACKWARD] += backward
        labels[n, ONCE] = max(labels[n, ONCE], once)
    return labels


@compiled
def _once(s: int, e: int, sums: Floats) -> float:
    """Seconds of a stage of layers s to e once a step: the longest of the alternatives."""
    longest = -np.inf
    for row in range(FIRST_ONCE, len(sums)):
        longest = max(longest, sums[row, e] - sums[row, s])
    return longest


@compiled
def stay(
    i: int, s: int, e: int, backward: float, behind: float, sums: Floats, in_flight: Floats, pipeline: Floats
) -> float:
    """The stay at stage i, of layers s to e, given the seconds of its backward and of those behind it."""
    links = len(in_flight) - 1 - i
    forward = sums[FORWARD, e] - sums[FORWARD, s] + min(1, links) * pipeline[SENDING]
    ahead = sums[FORWARD, s] + i * (pipeline[DELAY] + pipeline[SENDING])
    ways = 2 * links * pipeline[DELAY] + max(0, links - 1) * pipeline[SENDING]
    trip = behind + sums[FORWARD, -1] - sums[FORWARD, e] + ways
    return _stay(forward, backward, trip, ahead, in_flight[i], pipeline)


@compiled
def _stay(forward: float, backward: float, trip: float, ahead: float, in_flight: float, pipeline: Floats) -> float:
    """What staying at a stage adds; `trip` goes through all stages behind and back, `ahead` are forwards before it.

    1F1B, with fewer micro-batches in flight than there are: a path goes back to the stage, takes m − h turns of
    backward and forward there, and through the stages behind once more; h turns may also be one turn and a trip.
    With all in flight its forwards, and its backwards, follow each other; so they do in GPipe. Any other schedule
    at least waits for its first forward and does all its work, and that is the whole bound.
    """
    m, whole = pipeline[MICROBATCHES], forward + backward
    if pipeline[SCHEDULE] == OTHER:
        return ahead + m * whole
    if pipeline[SCHEDULE] == GPIPE:
        return (m - 1) * whole
    if in_flight >= m:
        return (m - 1) * max(forward, backward)
    turns = m - in_flight
    rounds = (turns - 1) // in_flight
    return trip + max(turns * whole, (turns - rounds * (in_flight - 1)) * whole + rounds * trip)


@compiled
def _undominated(one: Floats, one_notes: Ints, other: Floats, other_notes: Ints) -> tuple[Floats, Ints]:
    """The labels of both that none of them dominates."""
    labels, notes = np.concatenate((one, other)), np.concatenate((one_notes, other_notes))
    stays = np.ones(len(labels), np.bool_)
    for a in range(len(labels)):
        for b in range(len(labels)):
            # of equal labels the first stays
            if stays[b] and stays[a] and _beats(labels[b], labels[a], b < a):
                stays[a] = False
    return labels[stays], notes[stays]


@compiled
def _beats(one: Floats, other: Floats, equal_too: bool) -> bool:
    """Whether a label is nowhere worse and somewhere better than another, or equal where that is enough."""
    better = equal_too
    for column in range(3):
        if one[column] > other[column]:
            return False
        better = better or one[column] < other[column]
    return better
