"""The interleaved order cut into what comes once and what repeats with every group of micro-batches.

Operations of all stages stand in one sequence in which each comes after what it needs. However many groups there are,
it is a beginning, one period and an end; docs/explanation/pipeline.md says why. `work_order` defines the order itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail.arrays import Ints
from dovetail.compilation import compiled
from dovetail.pipeline.compiled_formulas import chunk_runs_in_flight
from dovetail.plans.pipeline_schedule import INTERLEAVED

#: Columns of operations: where it runs, its row of durations, the link and number of the message it takes and sends.
STAGE, ROW, TAKES, TAKEN, SENDS, SENT = range(6)
#: Periods that come fewer times than this are written out: some are run anyway, to see how times repeat.
FEWEST_PERIODS = 3


class PeriodicOrder(NamedTuple):
    """The operations of an interleaved pipeline; those of the period are to be run `periods` times.

    Link i of 0 to p − 1 carries forwards from stage i to the next one, link p + i gradients back to stage i; the last
    of each closes the ring. Messages of a link are taken in the sequence in which they were sent.
    """

    #: operations × columns as above; link −1 is no message
    operations: Ints
    #: where the period begins and ends
    first: int
    last: int
    periods: int
    #: by link: messages taken and sent before the period, and how many of each are in it
    taken: Ints
    sent: Ints
    in_period: Ints
    #: room for the messages that a link holds at once: a power of two
    room: int


@compiled
def periodic_order(p: int, num_microbatches: int, chunks: int, group: int) -> PeriodicOrder:
    """The order of an interleaved pipeline of two stages or more."""
    m, cycle = num_microbatches, group * chunks
    # The period is all that waits for stage 0's forward `entry` and not for the one a group later. It begins when a
    # group has entered and the warm-up of stage 0, the longest, is over.
    entry = max(cycle, chunk_runs_in_flight(INTERLEAVED, p, 2 * m, chunks, group, 0) - 1)
    groups = -(-entry // cycle) + 1  # whole ones that the period's forwards need
    if m % group == 0 and entry % cycle == 0:
        groups += 1  # a forward is left over
    periods = m // group - groups + 1
    if periods < FEWEST_PERIODS:
        return _sequence(p, m, chunks, group, 2 * m * chunks, 0)
    return _sequence(p, groups * group + m % group, chunks, group, entry, periods)


def operations_run(p: Ints, num_microbatches: Ints, chunks: Ints, group: Ints) -> Ints:
    """Operations that are run to time a plan whose times soon repeat, at most: those of the order and of some periods.

    Of many pipelines at once; as in `periodic_order`, with the warm-up as long as micro-batches allow.
    """
    entry = np.maximum(group * chunks, 2 * (p - 1) + (chunks - 1) * group)
    groups = -(-entry // (group * chunks)) + 2 + FEWEST_PERIODS
    return 2 * p * chunks * np.minimum(num_microbatches, (groups + 1) * group)


@compiled
def _sequence(p: int, m: int, chunks: int, group: int, entry: int, periods: int) -> PeriodicOrder:
    """Stages take turns at an operation each; of stage 0, forwards from `entry` on wait until nothing else is left."""
    runs, cycle = m * chunks, group * chunks
    operations = np.empty((2 * runs * p, 6), np.int64)
    done, ahead = np.zeros((2, p), np.int64), np.empty(p, np.int64)
    taken, sent, in_period = np.zeros(2 * p, np.int64), np.zeros(2 * p, np.int64), np.zeros(2 * p, np.int64)
    taken_before, sent_before = np.zeros(2 * p, np.int64), np.zeros(2 * p, np.int64)
    for i in range(p):
        ahead[i] = chunk_runs_in_flight(INTERLEAVED, p, m, chunks, group, i)
    count, first, last, most, limit = 0, 0, 0, 1, entry
    while True:
        before = count
        for i in range(p):
            is_forward = done[0, i] < runs and done[0, i] - done[1, i] < ahead[i]
            run = done[0, i] if is_forward else done[1, i]
            if run == runs or (is_forward and i == 0 and run >= limit):
                continue
            turn = min(run // cycle, (m - 1) // group)
            chunk = (run - turn * cycle) // min(group, m - turn * group)
            if not is_forward:
                chunk = chunks - 1 - chunk
            place = i + chunk * p
            previous = (i - 1) % p
            takes, sends = (previous, i) if is_forward else (p + i, p + previous)
            operations[count, TAKES] = operations[count, SENDS] = -1
            operations[count, TAKEN] = operations[count, SENT] = -1
            if not (place == 0 if is_forward else place == chunks * p - 1):
                if taken[takes] == sent[takes]:
                    continue
                operations[count, TAKES], operations[count, TAKEN] = takes, taken[takes]
                taken[takes] += 1
            if not (place == chunks * p - 1 if is_forward else place == 0):
                operations[count, SENDS], operations[count, SENT] = sends, sent[sends]
                sent[sends] += 1
                most = max(most, sent[sends] - taken[sends])
            operations[count, STAGE] = i
            operations[count, ROW] = place if is_forward else chunks * p + place
            done[0 if is_forward else 1, i] += 1
            count += 1
        if count > before:
            continue
        # all stages wait: the period begins, ends, or all is done
        if periods and first == 0:
            first, limit = count, entry + cycle
            for link in range(2 * p):  # for slices take seconds to compile
                taken_before[link], sent_before[link] = taken[link], sent[link]
        elif periods and last == 0:
            last, limit = count, runs
            for link in range(2 * p):
                in_period[link] = sent[link] - sent_before[link]
        else:
            break
    assert count == len(operations), "stages wait for each other forever"
    room = 1
    while room < most:
        room *= 2
    if not periods:
        first = last = count
    return PeriodicOrder(operations, first, last, periods, taken_before, sent_before, in_period, room)
