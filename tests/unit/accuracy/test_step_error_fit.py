"""Intervals by class of job hold as many runs as they say."""

import numpy as np
import pytest

from dovetail.accuracy.step_error_fit import FEWEST_LEFT, FEWEST_RUNS, LeftOutRun, conformal, covered, fit_step_errors
from dovetail.cost.step_errors import errors_of_class, merged_upward, shipped_errors

DENSE = ("fitted", "megatron", False, "cluster")
MIXED = ("fitted", "megatron", True, "large")
SCALES = ("cluster", "large")


def drawn(of, spread, count, seed):
    ratios = np.exp(np.random.default_rng(seed).normal(0.0, spread, count))
    return [LeftOutRun(str(number), of, float(ratio)) for number, ratio in enumerate(ratios)]


def test_nine_in_ten_further_values_are_between():
    limits = [conformal([run.ratio for run in drawn(DENSE, 0.1, 60, seed)], 0.9) for seed in range(400)]
    further = [run.ratio for run in drawn(DENSE, 0.1, 400, 1000)]
    inside = np.mean([low <= value <= high for (low, high), value in zip(limits, further, strict=True)])
    assert inside == pytest.approx(0.91, abs=0.03)


def test_small_classes_take_the_quantiles_of_the_class_they_are_part_of():
    runs = [*drawn(DENSE, 0.05, 200, 1), *drawn(MIXED, 0.3, FEWEST_RUNS - 1, 2)]
    classes = fit_step_errors(runs)
    assert DENSE in {each.key for each in classes}
    assert MIXED not in {each.key for each in classes}
    counts = covered(classes, runs)
    assert counts.keys() == {DENSE, ("fitted", None, None, None)}
    inside, count = counts[DENSE]
    assert count == 200
    assert inside / count == pytest.approx(0.9, abs=0.02)


def test_small_classes_together_have_quantiles_of_their_own():
    wide = [drawn(("fitted", "megatron", True, scale), 0.3, FEWEST_RUNS - 1, seed) for seed, scale in enumerate(SCALES)]
    runs = [*drawn(DENSE, 0.05, 200, 9), *(run for small in wide for run in small)]
    inside, count = covered(fit_step_errors(runs), runs)["fitted", "megatron", True, None]
    assert count == 2 * (FEWEST_RUNS - 1)
    assert inside / count == pytest.approx(0.92, abs=0.03)


def test_runs_that_all_took_longer_leave_the_prediction_in_its_interval():
    low, high = conformal([1.1, 1.2, 1.3] * 30, 0.9)
    assert (low, high) == (1.0, 1.3)


def test_every_job_has_a_class():
    (everything,) = [each for each in shipped_errors().classes if each.key == (None, None, None, None)]
    assert errors_of_class(("transfer", "unheard-of", True, "node")).rows <= everything.rows
    for each in shipped_errors().classes:
        assert each.rows >= (FEWEST_RUNS if each.framework else FEWEST_LEFT)
        assert each.low <= 1 <= each.high
        assert errors_of_class(each.key) == each
        assert merged_upward(each.key)[-1] == everything.key
