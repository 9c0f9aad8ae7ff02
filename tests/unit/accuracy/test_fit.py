"""The fit on measured runs: known numbers found again, families left out, groups without runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from own_runs import ROWS
from small_runs import read

from dovetail.accuracy import MeasuredRun
from dovetail.accuracy.fit import Fit, fit_families
from dovetail.accuracy.parameters import (
    FITTED_OVERHEADS,
    Parameter,
    parameters_of,
    priced,
    shipped_values,
)
from dovetail.accuracy.priors import shipped_priors
from dovetail.cost.calibration import calibration

PRIORS = shipped_priors()

#: Runs of one family on H100, and of another with an older framework on A100.
OLDER = (
    {"id": "wide", "layers": "2", "hidden": "8192", "ffn_hidden": "32768", "heads": "64", "kv_heads": "64",
     "head_dim": "128", "tp": "8", "pp": "1", "dp": "2"},
    {"id": "small", "tp": "1", "pp": "1", "dp": "16", "micro_batch": "1"},
)  # fmt: skip


@lru_cache(maxsize=1)
def blank_runs() -> tuple[MeasuredRun, ...]:
    with TemporaryDirectory() as folder:
        new = [{"source_family": "new", **row} for row in ROWS]
        old = [{"source_family": "old", **row} for row in OLDER]
        found = read(Path(folder), *new, *old)
    assert not found.refused
    return found.runs


def numbers_of(runs: Iterable[MeasuredRun]) -> set[Parameter]:
    return {number for run in runs for number in parameters_of(run).values()}


def off(factors: Mapping[str, float]) -> dict[Parameter, float]:
    """Numbers that lie off their priors, whatever their group."""
    numbers = sorted(numbers_of(blank_runs()))
    return {p: PRIORS[p].value * factors.get(p.name.partition(".")[0], 1.0) for p in numbers}


def runs_at(truth: Mapping[Parameter, float], family: str | None = None) -> list[MeasuredRun]:
    """The runs, as long as they take at these numbers."""
    made: list[MeasuredRun] = []
    for run in blank_runs():
        values = {name: np.asarray(truth[number]) for name, number in parameters_of(run).items()}
        made.append(replace(run, step_time_s=float(priced(run, values))))
    return [run for run in made if family in (None, run.family)]


def errors(fit: Fit, runs: list[MeasuredRun]) -> list[float]:
    """Logarithms of predicted over measured."""
    found: list[float] = []
    for run in runs:
        values = {name: np.asarray(fit.values[number]) for name, number in parameters_of(run).items()}
        found.append(math.log(float(priced(run, values)) / run.step_time_s))
    return found


TRUTH = off(
    {"matrix": 0.9, "attention_forward": 0.9, "attention_backward": 0.9, "memory": 0.93, "link": 0.9, "traffic": 1.3}
)


@pytest.fixture(scope="module")
def folds() -> tuple[Fit, Fit, Fit]:
    every, without_old, without_nobody = fit_families(runs_at(TRUTH), PRIORS, [None, "old", "nobody"], 3)
    return every, without_old, without_nobody


def test_a_number_stands_for_a_field_in_every_run_of_its_group():
    new, old = blank_runs()[0], blank_runs()[-1]
    assert parameters_of(new)["matrix"] == parameters_of(new)["matrix_half"] == Parameter("matrix.half", "hopper")
    assert parameters_of(old)["link"] == Parameter("link", "ampere")
    assert parameters_of(new)["exposed"] == Parameter("exposed", "megatron")
    assert "exposed" not in parameters_of(old)  # of which megatron-2022 has none
    narrow = replace(new, task=replace(new.task, job=replace(new.task.job, precision="fp8")))
    assert parameters_of(narrow)["matrix"] == Parameter("matrix.fp8", "hopper")
    assert parameters_of(narrow)["matrix_half"] == Parameter("matrix.half", "hopper")


def test_shipped_numbers_are_those_an_evaluation_takes():
    for run in (blank_runs()[0], blank_runs()[-1]):
        values = shipped_values(run)
        assert values.keys() == parameters_of(run).keys()
        known = calibration(run.task.cluster.chip, run.task.job.precision).efficiencies
        assert values["memory"] == float(known.memory)
        assert values["attention_forward"] == float(known.attention_forward)
        for name in FITTED_OVERHEADS[run.task.framework.name]:
            assert values[name] == getattr(run.task.framework, name).value


def test_known_numbers_are_found_again():
    runs = [replace(run, family=run.id) for run in runs_at(TRUTH)]
    (found,) = fit_families(runs, PRIORS, [None], 4)
    start = Fit({p: PRIORS[p].value for p in found.values}, {})
    before, after = (np.abs(errors(fit, runs)) for fit in (start, found))
    assert np.mean(before) > 0.04
    assert np.mean(after) < 0.01
    assert np.max(after) < 0.02
    for number, value in found.values.items():
        assert abs(math.log(value / TRUTH[number])) < found.spreads[number], number
    half = Parameter("matrix.half", "hopper")
    assert found.values[half] == pytest.approx(TRUTH[half], rel=0.05)
    assert found.spreads[half] < 0.7 * math.hypot(PRIORS[half].spread, PRIORS[half].shared_spread)


def test_a_number_that_alone_is_unknown_is_found_exactly():
    spreads = {"matrix": 0.5}
    priors = {
        p: replace(prior, spread=s, shared_spread=s)
        for p, prior in PRIORS.items()
        for s in [spreads.get(p.name.partition(".")[0], 1e-4)]
    }
    (found,) = fit_families(runs_at(off({"matrix": 0.8}))[::3], priors, [None], 5)
    for group in ("hopper", "ampere"):
        half = Parameter("matrix.half", group)
        assert found.values[half] == pytest.approx(0.8 * PRIORS[half].value, rel=0.005)
    memory = Parameter("memory", "hopper")
    assert found.values[memory] == pytest.approx(PRIORS[memory].value, rel=1e-3)


def test_numbers_no_run_contradicts_stay_where_they_are():
    start = {p: PRIORS[p].value for p in numbers_of(blank_runs())}
    (found,) = fit_families(runs_at(start), PRIORS, [None], 2)
    assert found.values == pytest.approx(start, rel=1e-9)


def test_one_family_does_not_overrule_what_is_believed():
    far = [run for run in runs_at(off({"matrix": 0.6, "memory": 0.6})) if run.id == "run 0"]
    once, again = (fit_families(far, PRIORS, [None], steps)[0] for steps in (10, 14))
    start = Fit({p: PRIORS[p].value for p in once.values}, {})
    (before,), (after,) = (errors(fit, far) for fit in (start, once))
    assert before < 1.4 * after < 1.4 * -0.1
    # and it has settled there
    assert again.values == pytest.approx(once.values, rel=1e-3)


def test_runs_make_numbers_surer_and_never_less_sure(folds):
    for number, spread in folds[0].spreads.items():
        prior = math.hypot(PRIORS[number].spread, PRIORS[number].shared_spread)
        assert 0 < spread <= prior * (1 + 1e-9)


def test_a_family_that_does_not_exist_is_left_out_of_nothing(folds):
    assert folds[2] == folds[0]


def test_leaving_a_family_out_is_not_having_seen_it(folds):
    (alone,) = fit_families(runs_at(TRUTH, "new"), PRIORS, [None], 3)
    without = folds[1]
    for number, value in alone.values.items():
        assert without.values[number] == pytest.approx(value, rel=1e-9), number
        assert without.spreads[number] == pytest.approx(alone.spreads[number], rel=1e-9), number
    # and what it would have said is gone
    old = Parameter("matrix.half", "ampere")
    assert without.values[old] != pytest.approx(folds[0].values[old], rel=1e-4)


def test_a_group_without_runs_gets_what_the_others_have_in_common(folds):
    without = folds[1]
    seen = Parameter("memory", "hopper"), Parameter("link", "hopper"), Parameter("traffic", "megatron")
    unseen = Parameter("memory", "ampere"), Parameter("link", "ampere"), Parameter("traffic", "megatron-2022")
    for with_runs, without_runs in zip(seen, unseen, strict=True):
        moved, followed = (math.log(without.values[p] / PRIORS[p].value) for p in (with_runs, without_runs))
        assert abs(moved) > 0.004
        # what is in common and what is the group's own part share a shift as the squares of their spreads
        prior = PRIORS[with_runs]
        shared = prior.shared_spread**2 / (prior.shared_spread**2 + prior.spread**2)
        assert followed == pytest.approx(shared * moved, rel=0.02), with_runs
        assert without.spreads[without_runs] > without.spreads[with_runs]


def test_no_number_passes_what_it_may_be():
    tight = {p: replace(prior, high=prior.value * 1.01) for p, prior in PRIORS.items()}
    runs = [replace(run, family=run.id) for run in runs_at(off({"matrix": 1.1, "memory": 1.1}))]
    free, bound = (fit_families(runs, priors, [None], 3)[0] for priors in (PRIORS, tight))
    half = Parameter("matrix.half", "hopper")
    assert free.values[half] > tight[half].high
    assert bound.values[half] == pytest.approx(tight[half].high)
    assert all(value <= tight[number].high * (1 + 1e-12) for number, value in bound.values.items())


def test_a_family_counts_as_one_however_many_runs_it_has():
    new, *old = [run for run in runs_at(TRUTH) if run.family == "old" or run.id == "run 0"]
    many = [replace(run, id=f"{run.id} {number}") for number in range(3) for run in old]
    once, often = (fit_families([new, *more], PRIORS, [None], 2)[0] for more in (old, many))
    assert often.values == pytest.approx(once.values, rel=1e-9)
    assert often.spreads == pytest.approx(once.spreads, rel=1e-9)
