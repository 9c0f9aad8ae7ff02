"""Measured attention: known efficiencies found again, and errors that stay where they are."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dovetail.accuracy.attention_timings import (
    ATTENTION_MEASUREMENT,
    attention_report,
    fit_efficiencies,
    fit_kernels,
    measured_seconds,
    of_training,
    read_attention,
)
from dovetail.cost.attention import ATTENTION_KERNELS

PUBLISHED = Path(__file__).parents[4] / "shared" / "data" / "attention_measured.csv.gz"


@pytest.fixture(scope="module")
def published():
    if not PUBLISHED.exists():
        pytest.skip("../shared/data/attention_measured.csv.gz, the measured attention, is not here")
    return [(timings, fit_efficiencies(timings)) for timings in read_attention(PUBLISHED)]


#: Time-weighted errors the shipped constants reach on all rows, forward and backward, a little above.
REACHED = {
    "a100-80gb": (0.038, None), "h100-sxm": (0.066, 0.030), "h200-sxm": (0.075, 0.063), "b200": (0.056, 0.018),
    "gb200": (0.079, 0.062), "b300": (0.074, None), "gb300": (0.070, 0.034),
}  # fmt: skip


def test_errors_on_published_attention_stay_where_they_are(published):
    for column, (timings, efficiencies) in enumerate(published):
        errors = {e.name: e for e in attention_report(timings, efficiencies, (timings.chip,))}
        assert set(errors) == {chip for chip, reached in REACHED.items() if reached[column] is not None}
        above = {chip: e.time_weighted for chip, e in errors.items() if e.time_weighted > REACHED[chip][column]}
        assert above == {}


def test_long_sequences_are_no_longer_too_fast(published):
    forward, efficiencies = published[0]
    lengths = 2 ** np.floor(np.log2(forward.length)).astype(int)
    biases = {int(e.name): e.bias for e in attention_report(forward, efficiencies, (lengths,))}
    assert {length: bias for length, bias in biases.items() if length >= 4096 and abs(bias) > 0.03} == {}


def test_published_constants_of_attention_come_out_of_the_fit(published):
    kernels, measurement = fit_kernels(*(timings for timings, _ in published))
    found = (kernels.exponents, *kernels.block_s, *kernels.tail, kernels.exposed, measurement.serving_s)
    shipped = ATTENTION_KERNELS
    constants = (shipped.exponents, *shipped.block_s, *shipped.tail, shipped.exposed, ATTENTION_MEASUREMENT.serving_s)
    assert found == pytest.approx(constants, rel=0.1)
    assert measurement.short_runs.boost == pytest.approx(ATTENTION_MEASUREMENT.short_runs.boost, rel=0.1)


def test_known_efficiencies_are_found_again(published):
    forward = published[0][0].thinned(50)
    truth = {name: 0.4 + 0.03 * index for index, name in enumerate(np.unique(forward.groups))}
    efficiency = np.array([truth[name] for name in forward.groups])
    made = replace(forward, seconds=measured_seconds(forward, efficiency))
    assert fit_efficiencies(made) == pytest.approx(truth, rel=0.01)


def test_training_runs_cudnn_where_it_was_measured():
    found = {"hopper cudnn": 0.7, "hopper flash": 0.6, "ampere flash": 0.5, "ada tensorrt": 0.4}
    assert [of_training(found, name) for name in ("hopper", "ampere", "ada")] == [0.7, 0.5, None]
