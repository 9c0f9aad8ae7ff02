"""The chain solver and its bounds against every placement of small chains, enumerated from the definition alone."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_chain_placements import every_placement, instances

from dovetail.partition.chain import chain_of, chain_seconds, read_chain
from dovetail.partition.chain_kernels import (
    HIGH,
    LEAST_ALONE,
    LOW,
    MOST_ALONE,
    guessed_seconds,
    ranges_alone,
    stages_left,
)
from dovetail.partition.chain_solver import problem_of, solve_chain

PLACEMENT = Path(__file__).parents[3] / "shared" / "data" / "placement"
REFERENCE = PLACEMENT / "reference.json"

#: The oracle tries every placement: few examples in CI, thousands on command.
EXAMPLES = 2000 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 300


@settings(max_examples=EXAMPLES, deadline=None)
@given(instances())
def test_the_solver_finds_the_best_of_all_placements(document):
    placements = list(every_placement(document))
    chain = chain_of(document, "case")
    solution = solve_chain(chain)
    if not placements:
        assert (solution.status, solution.placement) == ("infeasible", None)
        return
    least = min(placed.seconds for placed in placements)
    assert solution.status == "optimal"
    assert solution.placement is not None
    assert solution.seconds == pytest.approx(least, rel=1e-12, abs=1e-12)
    assert chain_seconds(chain, solution.placement) == solution.seconds
    # of equal ones the smallest width, then the fewest stages; whole numbers are equal to the bit
    best = min((placed.width, len(placed.parts)) for placed in placements if placed.seconds == least)
    assert (solution.placement.layers.width, len(solution.placement.ends)) == best


@settings(max_examples=EXAMPLES, deadline=None)
@given(instances(), st.integers(0, 2**32))
def test_bounds_leave_out_no_placement_that_is_better(document, choice):
    """Whatever time is to be beaten: each placement below it is among the stages, cuts and devices that are left."""
    placements = sorted(every_placement(document), key=lambda placed: placed.seconds)
    if not placements:
        return
    limit = [*(placed.seconds for placed in placements), math.inf][choice % (len(placements) + 1)]
    chain = chain_of(document, "case")
    for layers in chain.layers:
        problem = problem_of(chain, layers)
        ranges = np.zeros((4, len(layers.ids) + 1), np.int64)
        allowed = stages_left(*problem, limit, ranges)
        ranges_alone(*problem[:2], allowed.max(), ranges)
        for placed in placements:
            if placed.width != layers.width or not placed.seconds < limit:
                continue
            stages = len(placed.parts)
            assert placed.longest <= allowed[stages]
            for behind, (start, _) in enumerate(reversed(placed.parts[1:]), 1):
                assert ranges[LOW, behind] <= start <= ranges[HIGH, behind]
                if layers.width > 1:
                    alone = sum(placed.alone[stages - behind :])
                    assert ranges[LEAST_ALONE, behind] <= alone <= ranges[MOST_ALONE, behind]


@settings(max_examples=EXAMPLES, deadline=None)
@given(instances())
def test_a_guess_is_the_time_of_some_placement(document):
    chain = chain_of(document, "case")
    for layers in chain.layers:
        guess = guessed_seconds(*problem_of(chain, layers), math.inf)
        times = [placed.seconds for placed in every_placement(document) if placed.width == layers.width]
        assert guess == math.inf or any(guess == pytest.approx(time, rel=1e-12, abs=1e-12) for time in times)


@pytest.mark.skipif(not REFERENCE.exists(), reason="the instances with known optima are not here")
def test_instances_with_known_optima():
    reference = json.loads(REFERENCE.read_text())
    assert len(reference) == 50
    for name, known in reference.items():
        chain = read_chain(PLACEMENT / name)
        solution = solve_chain(chain)
        optimum = known.get("optimal_time_per_batch_s")
        if optimum is None:
            assert solution.status == "infeasible", name
        else:
            assert solution.placement is not None, name
            assert solution.seconds == pytest.approx(optimum, rel=known["relative_tolerance"]), name
            assert chain_seconds(chain, solution.placement) == solution.seconds, name
