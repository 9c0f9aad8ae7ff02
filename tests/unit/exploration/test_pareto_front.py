"""The front of a study while it runs, and what it leaves open: the same as looking at every point."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dovetail.exploration.open_candidates import OpenCandidates
from dovetail.exploration.pareto import dominated, pareto
from dovetail.exploration.pareto_front import ParetoFront

seeds = st.integers(0, 2**32 - 1)


def points_of(seed: int, rows: int, objectives: int) -> np.ndarray:
    """Few different figures, so that many are equal, and some that fit nothing."""
    random = np.random.default_rng(seed)
    points = random.integers(0, 6, (rows, objectives)).astype(float)
    points[random.random(rows) < 0.1] = np.inf
    return points


@given(seed=seeds, rows=st.integers(0, 40), objectives=st.integers(1, 4), batch=st.integers(1, 7))
def test_batch_after_batch_is_all_at_once(seed: int, rows: int, objectives: int, batch: int) -> None:
    points, codes = points_of(seed, rows, objectives), np.random.default_rng(seed).permutation(rows)
    front = ParetoFront.empty(objectives)
    for first in range(0, rows, batch):
        front = front.joined(points[first : first + batch], codes[first : first + batch])
    order = np.argsort(codes)
    members = order[pareto(points[order])] if rows else order
    assert front.codes.tolist() == codes[members].tolist()
    assert np.array_equal(front.points, points[members])


@given(seed=seeds, rows=st.integers(0, 400), objectives=st.integers(1, 3), asked=st.integers(1, 4))
def test_open_candidates_are_those_no_front_point_beats(seed: int, rows: int, objectives: int, asked: int) -> None:
    random = np.random.default_rng(seed)
    points = np.sort(random.random((rows, objectives)), axis=0)
    front = np.full((1, objectives), random.random())
    candidates, found = OpenCandidates(points), list[int]()
    while len(rows_given := candidates.following(asked, front)):
        found += rows_given.tolist()
        assert candidates.lowest == (
            points[found[-1] + 1, 0] if found[-1] + 1 < rows and len(rows_given) == asked else None
        )
    assert found == np.flatnonzero(~dominated(points, front)).tolist()
    assert all(one < other for one, other in pairwise(found))
