"""A chip fitted on its own runs: known efficiencies found again, unseen runs predicted better."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from own_runs import ROWS, TRUTH, made, nccl_output, scaled, seconds
from test_gemm_timings import file_of
from test_gemm_timings import made as products

from dovetail import hardware
from dovetail.accuracy import Prediction, Refusal, predict, user_chip
from dovetail.accuracy.fit import fit_families
from dovetail.accuracy.priors import shipped_priors
from dovetail.accuracy.user_chip import FOLDS, chip_to_calibrate, network_of, with_values
from dovetail.accuracy.user_timings import TimedNumbers, collective_numbers, product_numbers
from dovetail.cost.calibration import calibration, power_share

H100 = hardware.chip("h100-sxm")

#: Looked into without asking whether each part is there: a part that is not fails the test.
fit_user_chip: Any = user_chip.fit_user_chip
fit_timings: Any = user_chip.fit_timings


@pytest.fixture(scope="module")
def fit(tmp_path_factory):
    return fit_user_chip(H100, made(tmp_path_factory.mktemp("runs"), TRUTH), "runs.csv")


def test_known_efficiencies_are_found_again_from_six_runs(fit):
    found = {name: number.after for name, number in fit.numbers.items() if number.measured}
    assert found.keys() == TRUTH.keys()
    assert found["matrix.half"] == pytest.approx(TRUTH["matrix.half"], rel=0.03)
    assert found == pytest.approx(TRUTH, rel=0.12)
    for name, number in fit.numbers.items():
        # never further off than where it started
        assert abs(number.after - TRUTH[name]) < abs(number.before - TRUTH[name])
        assert number.rests_on == "6 runs"


def test_runs_it_has_not_seen_are_predicted_better(fit):
    assert fit.worth_it
    assert (fit.configurations, fit.folds) == (6, 6)
    assert fit.after.mape < fit.cross_validated.mape < 0.5 * fit.before.mape
    assert fit.before.rows == fit.after.rows == fit.cross_validated.rows == 6


def test_the_figures_are_what_the_fitted_chip_gives(fit, tmp_path):
    measured = made(tmp_path, TRUTH)
    ratios = [s / r.step_time_s for s, r in zip(seconds(measured, fit.chip), measured.runs, strict=True)]
    assert fit.after.mape == pytest.approx(float(np.mean(np.abs(np.array(ratios) - 1))))
    assert str(calibration(fit.chip, "bf16")).startswith("fitted on this chip's own measurements (fitted on 6 runs; ")
    assert calibration(fit.chip, "bf16").basis == "own"


def test_leaving_out_means_not_having_seen(tmp_path):
    """A run that is wildly off spoils only the fits that see it."""
    measured = made(tmp_path, TRUTH)
    odd = replace(measured.runs[0], step_time_s=3 * measured.runs[0].step_time_s)
    spoilt = fit_user_chip(H100, replace(measured, runs=(odd, *measured.runs[1:])), "runs.csv")
    kept = fit_user_chip(H100, replace(measured, runs=measured.runs[1:]), "runs.csv")
    (answer,) = predict(_on((odd,), kept.chip))
    assert isinstance(answer, Prediction)
    assert abs(answer.step_time_ratio - 1) > 0.5
    # the odd run's part is what the fit without it says; the other fits all see it, and are little the worse for it
    others = 6 * spoilt.cross_validated.mape - abs(answer.step_time_ratio - 1)
    assert 0 < others / 5 < 0.1


def _on(runs, chip):
    return [replace(r, task=replace(r.task, cluster=replace(r.task.cluster, chip=chip))) for r in runs]


def test_repeated_measurements_count_once_and_are_left_out_together(tmp_path):
    measured = made(tmp_path, TRUTH)
    again = replace(measured, runs=(*measured.runs, *[measured.runs[0]] * 5))
    fit, once = (fit_user_chip(H100, each, "runs.csv") for each in (again, measured))
    assert (fit.configurations, fit.folds, fit.before.rows) == (6, 6, 11)
    assert {n: v.after for n, v in fit.numbers.items()} == {n: v.after for n, v in once.numbers.items()}


def test_many_configurations_are_left_out_in_parts(tmp_path):
    rows = [row | {"global_batch": str(64 * n)} for row in ROWS[4:] for n in range(1, 12)]
    fit = fit_user_chip(H100, made(tmp_path, TRUTH, rows), "runs.csv")
    assert (fit.configurations, fit.folds, fit.cross_validated.rows) == (22, FOLDS, 22)


def test_noise_about_the_shipped_numbers_is_not_worth_a_fit(tmp_path):
    measured = made(tmp_path, {})
    signs = (1.04, 0.96, 0.96, 1.04, 1.04, 0.96)
    noisy = tuple(replace(r, step_time_s=r.step_time_s * s) for r, s in zip(measured.runs, signs, strict=True))
    fit = fit_user_chip(H100, replace(measured, runs=noisy), "runs.csv")
    assert fit.worth_it is False
    assert all(n.after == pytest.approx(n.before, rel=0.06) for n in fit.numbers.values())


def test_runs_as_shipped_move_nothing(tmp_path):
    fit = fit_user_chip(H100, made(tmp_path, {}), "runs.csv")
    assert all(n.after == pytest.approx(n.before, rel=1e-3) for n in fit.numbers.values())
    assert fit.after.mape < 1e-3


def test_one_run_cannot_be_cross_validated_and_swings_nothing(tmp_path):
    measured = made(tmp_path, {})
    slow = replace(measured.runs[0], step_time_s=3 * measured.runs[0].step_time_s)
    fit = fit_user_chip(H100, replace(measured, runs=(slow,)), "runs.csv")
    assert (fit.cross_validated, fit.worth_it, fit.folds) == (None, None, 0)
    assert all(n.after > 0.7 * n.before for n in fit.numbers.values())


def test_what_no_run_depends_on_stays_and_is_not_written(tmp_path):
    alone = [ROWS[0] | {"num_chips": "1", "tp": "1", "pp": "1", "dp": "1", "global_batch": str(n)} for n in (4, 8)]
    fit = fit_user_chip(H100, made(tmp_path, TRUTH, alone), "runs.csv")
    assert fit.numbers["link"].rests_on == "as it was: no run tells"
    assert fit.numbers["link"].after == fit.numbers["link"].before
    assert "link" not in dict(fit.chip.calibration.values)


@pytest.mark.parametrize("chip", ["mi300x", "h100-96gb-hbm2e-500w"])
def test_a_chip_without_a_generation_and_one_with_a_power_cap(chip, tmp_path):
    truth = scaled(chip, {"matrix.half": 0.88, "memory": 0.92})
    fit = fit_user_chip(hardware.chip(chip), made(tmp_path, truth, chip=chip), "runs.csv")
    assert fit.numbers["matrix.half"].after == pytest.approx(truth["matrix.half"], rel=0.03)
    assert fit.worth_it


def test_a_calibrated_chip_is_where_the_next_fit_starts(fit, tmp_path):
    again = fit_user_chip(fit.chip, made(tmp_path, TRUTH), "runs.csv")
    assert again.before.mape == pytest.approx(fit.after.mape)
    assert again.after.mape <= fit.after.mape


def test_products_give_matrix_and_memory(tmp_path):
    path = tmp_path / "gemm.csv"
    path.write_text(file_of([products("h100-sxm", "bf16", 0.6, 0.7), products("b200", "bf16", 0.5, 0.7)]))
    found = product_numbers(path, H100)
    assert found.values == pytest.approx({"matrix.half": 0.6, "memory": 0.7}, rel=0.02)
    assert (found.rows, found.basis) == (300, "300 products")
    assert found.after < 0.02 < found.before
    fit = fit_timings(H100, [found])
    assert dict(fit.chip.calibration.values) == found.values
    assert fit.cluster is None
    assert fit.before is None
    assert fit.chip.calibration.source == "fitted on 300 products"


def test_a_power_caps_part_is_not_counted_twice(tmp_path):
    capped = hardware.chip("h100-96gb-hbm2e-500w")
    path = tmp_path / "gemm.csv"
    path.write_text(file_of([products(capped.name, "bf16", 0.55, 0.7)]))
    assert power_share(capped) < 1
    assert product_numbers(path, capped).values["matrix.half"] == pytest.approx(0.55 / power_share(capped), rel=0.02)


@pytest.mark.parametrize(
    ("chip", "rows", "words"),
    [("b200", 300, "has no products of h100-sxm"), ("h100-sxm", 3, "has 3 products of h100-sxm that can be fitted")],
)
def test_products_that_say_nothing_of_the_chip_are_refused(chip, rows, words, tmp_path, refusal):
    path = tmp_path / "gemm.csv"
    path.write_text(file_of([products(chip, "bf16", 0.5, 0.7, rows=rows)]))
    assert words in refusal(product_numbers, path, H100)


def test_collectives_give_links_and_network(tmp_path):
    inside, across = tmp_path / "inside.log", tmp_path / "across.log"
    inside.write_text(nccl_output(0.7, 1.2e-5, 1.0))
    across.write_text(nccl_output(0.7, 1.2e-5, 0.6, hosts=4))
    found = collective_numbers([inside, across], H100, 50e9)
    assert found.values == pytest.approx({"link": 0.7, "collective_launch_s": 1.2e-5, "network": 0.6}, rel=0.03)
    assert (found.rows, found.chips) == (42, 32)
    assert found.after < 0.02 < found.before
    # twice the network: half is sustained of it
    doubled = collective_numbers([inside, across], H100, 100e9).values
    assert doubled["network"] == pytest.approx(0.3, rel=0.05)
    assert collective_numbers([inside], H100).values.keys() == {"link", "collective_launch_s"}
    assert fit_timings(H100, [found]).cluster.chips == 32


def test_outputs_of_another_chip_or_too_few_are_refused(tmp_path, refusal):
    path = tmp_path / "all_reduce.log"
    text = nccl_output(0.7, 1.2e-5, 0.6)
    path.write_text(text.replace("H100 80GB HBM3", "B200"))
    assert "ran on b200" in refusal(collective_numbers, [path], H100)
    path.write_text("\n".join(text.splitlines()[:14]))
    assert "too few timings" in refusal(collective_numbers, [path], H100)
    path.write_text("nothing of the kind")
    assert "holds no results of nccl-tests" in refusal(collective_numbers, [path], H100)


def test_a_device_without_a_name_is_the_chip_that_is_calibrated(tmp_path):
    path = tmp_path / "all_reduce.log"
    path.write_text(nccl_output(0.7, 1.2e-5, 0.6).replace("NVIDIA H100 80GB HBM3", "NVIDIA Graphics Device"))
    assert collective_numbers([path], H100).values["link"] == pytest.approx(0.7, rel=0.03)


def test_timings_replace_what_runs_start_from_and_make_it_surer(tmp_path):
    # so slow to start that nothing else explains it
    launch_s = 3e-4
    measured = made(tmp_path, TRUTH | {"collective_launch_s": launch_s})
    timed = TimedNumbers("collectives", {"link": TRUTH["link"], "collective_launch_s": launch_s}, 40, 0.2, 0.01, 16)
    without, fit = fit_user_chip(H100, measured, "runs.csv"), fit_user_chip(H100, measured, "runs.csv", [timed])
    assert fit.numbers["link"].after == pytest.approx(TRUTH["link"], rel=0.02)
    assert fit.numbers["link"].spread < 0.6 * without.numbers["link"].spread
    assert fit.numbers["link"].rests_on.startswith("40 collectives")
    # the runs are fitted at the launch that was timed: the other numbers need not make up for it
    assert fit.after.mape < 0.02
    assert fit.cross_validated.mape < 0.04
    for name, value in TRUTH.items():
        assert fit.numbers[name].after == pytest.approx(value, rel=0.12)
    assert fit.numbers["collective_launch_s"].after == launch_s
    assert dict(fit.chip.calibration.values)["collective_launch_s"] == launch_s
    assert fit.after.mape < 0.5 * without.after.mape


def test_the_network_of_the_runs(tmp_path):
    measured = made(tmp_path, {})
    assert network_of(H100, measured) == 3200e9 / 8 / 8
    assert network_of(hardware.chip("b200"), measured) is None


def test_the_chip_of_the_runs(tmp_path, refusal):
    measured = made(tmp_path, {})
    assert chip_to_calibrate(measured, "runs.csv") == H100
    other = made(tmp_path, {}, chip="a100-80gb")
    mixed = replace(measured, runs=measured.runs + other.runs)
    assert "runs of a100-80gb, h100-sxm" in refusal(chip_to_calibrate, mixed, "runs.csv")
    wrong = replace(measured, runs=(), refused=(Refusal("run 7", "", "chip: is wrong; name another."),))
    sentence = refusal(chip_to_calibrate, wrong, "runs.csv")
    assert "the first refused is run 7" in sentence
    assert "b200" in refusal(fit_user_chip, hardware.chip("b200"), measured, "runs.csv")


def test_a_fit_of_families_is_one_of_folds(tmp_path):
    """Both kinds of folds share their code: as many fits as families left out, and the whole first."""
    measured = made(tmp_path, TRUTH)
    whole, without = fit_families(measured.runs, shipped_priors(), [None, "ours"])
    assert whole.values != without.values
    assert all(v == pytest.approx(shipped_priors()[p].value, rel=1e-6) for p, v in without.values.items())


def test_own_values_go_before_those_of_the_generation():
    shipped = calibration(H100, "fp8").efficiencies
    own = calibration(with_values(H100, {"matrix.half": 0.5, "launch_s": 1e-5}, "by hand"), "fp8")
    assert float(own.efficiencies.matrix) == float(shipped.matrix)
    assert (float(own.efficiencies.matrix_half), float(own.efficiencies.launch_s)) == (0.5, 1e-5)
    assert float(own.efficiencies.memory) == float(shipped.memory)
    assert str(own) == "fitted on this chip's own measurements (by hand), the rest as for hopper"
    # a precision nothing is known of runs at the efficiency of half precision, and that is the chip's own
    a100 = with_values(hardware.chip("a100-80gb"), {"matrix.half": 0.5}, "")
    assert float(calibration(a100, "fp8").efficiencies.matrix) == 0.5
    assert float(calibration(with_values(H100, {"matrix.fp8": 0.4}, ""), "fp8").efficiencies.matrix) == 0.4
