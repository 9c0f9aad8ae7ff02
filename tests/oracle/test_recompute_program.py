"""The recompute frontier of real blocks, proven complete point by point by an integer program."""

from __future__ import annotations

import numpy as np
import pytest
from real_layers import TICK, blocks_of, every_block, in_ticks
from recompute_oracle import Forward, undominated
from recompute_program import Label, Program, empty_boxes

from dovetail import models
from dovetail.graph import LayerGraph
from dovetail.profile import LayerProfile
from dovetail.profile.frontier import recompute_frontier

CASES = [
    ("llama-3.1-405b", "fused", "full"),
    ("gpt3-175b", "fused", "layer"),
    ("gpt3-175b", "unfused", "layer"),
    ("mixtral-8x7b", "fused", "full"),
    ("deepseek-v3", "fused", "dense"),
    ("deepseek-v3", "fused", "sparse"),
]


def prove(graph: LayerGraph, profile: LayerProfile, minima: int = 8) -> None:
    """Every point is attained, none is behind another, and there is no choice that is behind none.

    The program must not miss choices either: for so many points, its least time is the point's.
    """
    whole = in_ticks(profile)
    forward = Forward(graph, whole)
    frontier = recompute_frontier(graph, whole)
    found = [forward.label(frontier.recomputed(index)) for index in range(len(frontier.seconds))]
    said = zip(frontier.saved_bytes, frontier.footprint_bytes, frontier.seconds, strict=True)
    assert found == [tuple(map(float, label)) for label in said]
    labels = [in_whole_numbers(label) for label in found]
    assert len(undominated(np.array(found))) == len(labels)
    program = Program(forward)
    for box in empty_boxes(labels):
        assert program.is_empty(box), box
    for kept, footprint, ticks in labels[:: max(1, len(labels) // minima)]:
        assert program.least_ticks(kept, footprint) == ticks


def in_whole_numbers(label: tuple[float, float, float]) -> Label:
    kept, footprint, ticks = label[0], label[1], label[2] / TICK
    assert kept.is_integer()
    assert footprint.is_integer()
    assert ticks.is_integer()
    return int(kept), int(footprint), int(ticks)


@pytest.mark.parametrize("tensor_parallel", [1, 8])
@pytest.mark.parametrize(("model", "attention", "layer"), CASES)
def test_no_choice_of_operators_is_better_than_the_frontier(model, attention, layer, tensor_parallel):
    prove(*blocks_of(model, tensor_parallel, attention)[layer])


@pytest.mark.slow
@pytest.mark.parametrize("model", models.names())
def test_the_frontier_of_every_block_of_the_catalogue_is_complete(model):
    for graph, profile in every_block(model):
        prove(graph, profile, minima=64)


@pytest.mark.parametrize("layer", ["dense", "sparse"])
def test_a_frontier_that_lacks_a_point_is_found_out(layer):
    graph, profile = blocks_of("deepseek-v3", 8)[layer]
    whole = in_ticks(profile)
    frontier, forward = recompute_frontier(graph, whole), Forward(graph, whole)
    labels = [in_whole_numbers(forward.label(frontier.recomputed(index))) for index in range(len(frontier.seconds))]
    program = Program(forward)
    for missing in range(0, len(labels), len(labels) // 8):
        boxes = empty_boxes([label for index, label in enumerate(labels) if index != missing])
        holding = [box for box in boxes if labels[missing] in box]
        assert holding
        assert not any(program.is_empty(box) for box in holding)
