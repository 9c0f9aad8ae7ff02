"""Dovetail's own placement against every placement of small chains, enumerated from the definition alone."""

from __future__ import annotations

import math
import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_layer_chains import (
    bytes_needed,
    evaluated,
    every_cut,
    interleaved_chains,
    layer,
    least_by_counts,
    least_seconds,
    long_chains,
    plain_chains,
)

from dovetail.partition.layer_chain import LayerChain, LayerPartition, LayerPolicies, partition_seconds
from dovetail.partition.partition_layers import PartitionSolution, partition_layers
from dovetail.pipeline import Pipeline, PipelineSchedule

PLAIN = [PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.GPIPE, PipelineSchedule.ZB_H1]

#: The oracle tries every placement: few examples in CI, thousands on command.
THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
OF_PLAIN = settings(max_examples=2000 if THOROUGH else 300, deadline=None)
OF_INTERLEAVED = settings(max_examples=500 if THOROUGH else 100, deadline=None)
OF_LONG = settings(max_examples=300 if THOROUGH else 30, deadline=None)


def same(seconds: float):
    return pytest.approx(seconds, rel=1e-9, abs=1e-12)


def at_most(low: float, high: float) -> bool:
    return low <= high * (1 + 1e-9) + 1e-12


def checked(chain: LayerChain, solution: PartitionSolution, least: float) -> LayerPartition | None:
    """What holds for every schedule; the placement, or None where nothing fits."""
    if math.isinf(least):
        assert (solution.status, solution.placement, solution.seconds) == ("infeasible", None, math.inf)
        return None
    assert solution.status in ("optimal", "feasible")
    placement = solution.placement
    assert placement is not None
    assert placement.ends in set(every_cut(chain))
    assert len(placement.policies) == len(chain.order)
    assert all(0 <= k < len(layer(chain, i).saved_bytes) for i, k in enumerate(placement.policies))
    assert solution.seconds == same(evaluated(chain, placement))
    assert solution.seconds == same(partition_seconds(chain, placement))
    assert at_most(solution.lower_bound_s, least)
    assert at_most(least, solution.seconds)
    if solution.status == "optimal":
        assert solution.seconds == same(least)
    return placement


@pytest.mark.parametrize("schedule", PLAIN)
@OF_PLAIN
@given(data=st.data())
def test_the_placement_is_the_best_of_all(schedule, data):
    chain = data.draw(plain_chains(schedule))
    solution = partition_layers(chain)
    found = checked(chain, solution, least_seconds(chain))
    if found and schedule is PipelineSchedule.ONE_F_ONE_B:
        assert solution.status == "optimal"


@pytest.mark.parametrize("schedule", PLAIN)
@OF_LONG
@given(data=st.data())
def test_the_placement_of_many_like_layers_is_the_best_of_all_cuts_and_counts(schedule, data):
    chain = data.draw(long_chains(schedule))
    solution = partition_layers(chain)
    found = checked(chain, solution, least_seconds(chain, least_by_counts))
    if found and schedule is PipelineSchedule.ONE_F_ONE_B:
        assert solution.status == "optimal"


@OF_INTERLEAVED
@given(chain=interleaved_chains())
def test_interleaved_stages_fit_and_the_bound_holds(chain):
    solution = partition_layers(chain)
    least = least_seconds(chain)
    placement = checked(chain, solution, least)
    if placement is not None and all(len(kind.saved_bytes) == 1 for kind in chain.classes):
        assert solution.seconds == same(least)


# Examples by hand: the oracle is checked with them as well as the solver.


def block(**changes) -> LayerPolicies:
    """Two seconds forward; keeps 10 bytes, or 2 for 3 more seconds back and 8 bytes while they last."""
    one = LayerPolicies(2.0, np.array([3.0, 6.0]), 1.0, np.array([10.0, 2.0]), np.array([0.0, 8.0]), state_bytes=5.0)
    return replace(one, **changes)


def row(pipeline: Pipeline, limit: float, *layers: LayerPolicies, **changes) -> LayerChain:
    return LayerChain(layers, tuple(range(len(layers))), pipeline, limit, **changes)


ONE_F_ONE_B, PAIR = Pipeline(PipelineSchedule.ONE_F_ONE_B, 2, 4), Pipeline(PipelineSchedule.ONE_F_ONE_B, 2, 2)
BY_HAND = {
    # 10 + 2·20 bytes; four microbatches, and one to fill and drain, of 4 + 8 seconds
    "all kept": (row(ONE_F_ONE_B, 50.0, *[block()] * 4), (2, 4), 60.0),
    # the first stage keeps one layer, 10 + 2·12 + 8 bytes, and takes 4 + 11 seconds
    "one recomputed": (row(ONE_F_ONE_B, 49.0, *[block()] * 4), (2, 4), 69.0),
    # plenty: two layers first. Else they take 10 + 2·4 + 8 bytes there, 10 + 4 + 8 after one that keeps, 5 + 2·10
    "plenty": (row(ONE_F_ONE_B, 1e9, *[block()] * 3), (2, 3), 50.0),
    "uneven": (row(ONE_F_ONE_B, 25.0, *[block()] * 3), (1, 3), 2.0 + 4 * 18 + 4),
    "nothing fits": (row(ONE_F_ONE_B, 25.0, *[block()] * 4), None, math.inf),
    "more stages than layers": (row(ONE_F_ONE_B, 1e9, block()), None, math.inf),
    # 15 + 4·30 bytes
    "one stage": (
        row(Pipeline(PipelineSchedule.GPIPE, 1, 4), 135.0, *[block(once_s=(0.5,))] * 3), (3,), 73.5,
    ),
    # two micro-batches of 4 + 8 seconds, whichever workspace a layer needs
    "no limit": (
        row(Pipeline(PipelineSchedule.GPIPE, 1, 2), math.inf, block(workspace_bytes=np.array([4.0, 8.0])), block()),
        (2,), 24.0,
    ),
    # last stage: F 2 to 4, B 4 to 8, F 8 to 10, B 10 to 14; half a second later each way over a link
    "without transfers": (row(PAIR, 25.0, block(), block()), (1, 2), 18.0),
    "transfers delay": (row(PAIR, 25.0, block(), block(), transfer_s=0.5), (1, 2), 19.0),
    "transfers block": (row(PAIR, 25.0, block(), block(), transfer_s=0.5, sends_itself=True), (1, 2), 19.5),
    # last stage: F 2 to 4, I 4 to 7, F 7 to 9, I 9 to 12; first: I 12 to 15, W to 16
    "split backward": (row(Pipeline(PipelineSchedule.ZB_H1, 2, 2), 25.0, block(), block()), (1, 2), 16.0),
    # one microbatch through four places, six times over a link; both chunks of a stage in flight
    "interleaved": (
        row(Pipeline(PipelineSchedule.INTERLEAVED, 2, 1, 2), 30.0, *[block()] * 4, transfer_s=0.5), (1, 2, 3, 4), 27.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("chain", "ends", "seconds"), BY_HAND.values(), ids=list(BY_HAND))
def test_examples_by_hand(chain, ends, seconds):
    assert least_seconds(chain) == seconds
    solution = partition_layers(chain)
    assert solution.seconds == same(seconds)
    assert (solution.placement.ends if solution.placement else None) == ends


def test_memory_by_hand():
    first = block(working_bytes=(3.0,), loss_bytes=9.0, gathered_bytes=2.0, step_bytes=14.0)
    second = block(working_bytes=(1.0, 4.0), gathered_bytes=1.0, step_bytes=14.5)
    chain = row(Pipeline(PipelineSchedule.ONE_F_ONE_B, 1, 3), 1e9, first, second)
    # state, then what is kept, what one backward needs or the loss, and gathered weights; or the optimizer's step
    assert bytes_needed(chain, [[0, 1]], [1, 0], 0) == 10 + (2 + 10) + (8 + 3 + 4) + 2
    assert bytes_needed(chain, [[0]], [0], 0) == 5 + 10 + 9 + 2
    assert bytes_needed(chain, [[0, 1]], [1, 1], 0) == 10 + (14 + 14.5)


@pytest.mark.parametrize("byte", [0.1, 1 / 3, 0.7, 1.0])
@pytest.mark.parametrize("schedule", PLAIN)
def test_memory_that_is_met_exactly_is_enough_however_its_sums_round(byte, schedule):
    layers = [
        LayerPolicies(0.0, np.array([0.0]), 0.0, np.array([kept * byte]), np.array([workspace * byte]))
        for kept, workspace in ((0, 0), (1, 3))
    ]
    chain = row(Pipeline(schedule, 2, 1), 4 * byte, *layers)
    assert partition_seconds(chain, LayerPartition((1, 2), (0, 0))) == 0.0
    assert partition_layers(chain).status == "optimal"
    thirds = block(
        saved_bytes=np.array([7.0]), workspace_bytes=np.zeros(1), input_gradient_s=np.ones(1), state_bytes=2.0
    )
    interleaved = row(Pipeline(PipelineSchedule.INTERLEAVED, 2, 4, 3), 55.0, *[thirds] * 6)
    assert partition_layers(interleaved).status != "infeasible"


def test_cuts_that_do_not_fit_do_not_end_the_search_of_interleaved_ones():
    """The fastest thousands of cuts leave the first stage too many blocks beside its large first layer."""
    small, large = (
        LayerPolicies(1.0, np.ones(1), 1.0, np.zeros(1), np.zeros(1), state_bytes=state) for state in (1.0, 50.0)
    )
    order = (1, *[0] * 100, 0)
    chain = LayerChain((small, large), order, Pipeline(PipelineSchedule.INTERLEAVED, 2, 8, 2), 80.0)
    solution = partition_layers(chain)
    assert solution.placement is not None
    assert partition_seconds(chain, solution.placement) == solution.seconds
