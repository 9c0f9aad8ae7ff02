"""From fitted numbers to the files that are shipped, and what predictions make of the numbers of left-out families."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import yaml
from small_runs import read, run

from dovetail import frameworks
from dovetail.accuracy import MeasuredRun, Prediction, left_out_predictions, predict
from dovetail.accuracy import left_out as left_out_module
from dovetail.accuracy.fit import Fit
from dovetail.accuracy.left_out import left_out_values, write_left_out
from dovetail.accuracy.parameters import (
    FITTED_EFFICIENCIES,
    FITTED_OVERHEADS,
    Parameter,
    parameters_of,
    priced,
    shipped_values,
)
from dovetail.accuracy.priors import shipped_priors
from dovetail.accuracy.regenerate import LIMIT, STRIDE, chips_measured, thinned, write_calibration, write_framework
from dovetail.cost.calibration import CalibrationFile, Generation, shipped
from dovetail.documents import parse_document, validate

PRIORS = shipped_priors()


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> MeasuredRun:
    return run(tmp_path_factory.mktemp("runs"))


def test_of_large_families_every_so_many_runs_are_fitted_on(plain):
    small = [replace(plain, id=f"s{number}", family="small") for number in range(LIMIT)]
    large = [replace(plain, id=f"l{number}", family="large") for number in range(LIMIT + 1)]
    mixed = [found for pair in zip(small, large, strict=False) for found in pair] + large[LIMIT:]
    kept = [found.id for found in thinned(mixed)]
    assert [name for name in kept if name[0] == "s"] == [found.id for found in small]
    assert [name for name in kept if name[0] == "l"] == [f"l{number}" for number in range(0, LIMIT + 1, STRIDE)]
    assert thinned([]) == []


def test_chips_count_as_measured_at_the_precisions_of_their_runs(tmp_path):
    rows = [
        {"precision": "fp16"},
        {"precision": "bf16", "chip": "h100-sxm", "attention": "fused"},
        {"precision": "fp8", "chip": "h100-sxm", "attention": "fused"},
        {"precision": "nvfp4", "chip": "b200", "attention": "fused"},
    ]
    found = chips_measured(read(tmp_path, *rows).runs)
    assert found == {"half": {"a100-80gb", "h100-sxm"}, "fp8": {"h100-sxm"}, "fp4": {"b200"}}


def written(path: Path, fitted: Fit, measured: dict[str, set[str]], launches: dict[str, float]) -> CalibrationFile:
    write_calibration(path, fitted, PRIORS, launches, measured)
    return validate(CalibrationFile, parse_document(path.read_text(encoding="utf-8"), "calibration"), "calibration")


def matrix(generation: Generation) -> dict[str, float]:
    return {row: figure.value for row, figure in generation.matrix.items()}


def test_a_written_calibration_is_read_with_the_fitted_numbers(tmp_path):
    given = {"matrix.half": 0.61234, "matrix.fp8": 0.5, "link": 1.0}
    values = {Parameter(name, "hopper"): value for name, value in given.items()}
    fitted = Fit(values, dict.fromkeys(values, 0.043))
    measured = {"fp8": {"h200-sxm", "b200"}, "half": {"h800-sxm", "h100-sxm"}}
    found = written(tmp_path / "calibration.yaml", fitted, measured, {"hopper": 1.2345e-6})
    hopper, ampere = found.generations["hopper"], found.generations["ampere"]
    assert matrix(hopper) == {"half": 0.612, "fp8": 0.5}
    assert hopper.link.value == 1
    assert hopper.matrix["half"].how.startswith("fitted on runs, ± 4.3%; from 0.725, ")
    assert (hopper.collective_launch_s.value, ampere.collective_launch_s) == (
        1.23e-6, shipped().generations["ampere"].collective_launch_s,
    )  # fmt: skip
    # what is not fitted is what is believed, and says so
    assert matrix(ampere) == {"half": PRIORS[Parameter("matrix.half", "ampere")].value}
    assert ampere.memory.how.startswith("not fitted on runs; ")
    assert hopper.measured == {"half": ("h100-sxm", "h800-sxm"), "fp8": ("h200-sxm",)}
    assert found.generations["blackwell"].measured == {"fp8": ("b200",)}
    assert ampere.measured == {}


def test_what_is_not_written_stays_as_it_is(tmp_path):
    found = written(tmp_path / "calibration.yaml", Fit({}, {}), {}, {})
    assert found.defaults == shipped().defaults
    assert list(found.generations) == list(shipped().generations)
    for name, generation in found.generations.items():
        before = shipped().generations[name]
        assert (generation.chips, generation.launch_s) == (before.chips, before.launch_s)
        assert generation.collective_launch_s == before.collective_launch_s


def test_generations_without_runs_are_written_from_their_priors_with_how_unsure_they_are(tmp_path):
    found = written(tmp_path / "calibration.yaml", Fit({}, {}), {}, {})
    without = [name for name, each in shipped().generations.items() if not each.measured]
    assert {"cdna3", "gaudi3"} <= set(without)
    for name in without:
        assert found.generations[name] == shipped().generations[name]
        assert all(
            figure.spread == PRIORS[Parameter(f"matrix.{row}", name)].spread
            for row, figure in found.generations[name].matrix.items()
        )
    fitted = Fit({Parameter("matrix.half", "cdna3"): 0.4}, {Parameter("matrix.half", "cdna3"): 0.05})
    assert written(tmp_path / "calibration.yaml", fitted, {}, {}).generations["cdna3"].matrix["half"].spread is None


@pytest.mark.parametrize("generation", shipped().generations)
def test_every_generation_has_a_prior_for_what_runs_fit(generation):
    names = {name.partition(".")[0] for name, group in ((p.name, p.group) for p in PRIORS) if group == generation}
    assert {name for name in FITTED_EFFICIENCIES if name != "matrix_half"} <= names


def test_writing_what_is_shipped_changes_no_number(tmp_path):
    values: dict[Parameter, float] = {}
    for name, generation in shipped().generations.items():
        for number in (p for p in PRIORS if p.group == name):
            field, _, row = number.name.partition(".")
            figure = dict(generation.matrix.items())[row] if row else getattr(generation, field)  # type: ignore[index]
            values[number] = figure.value
    found = written(tmp_path / "calibration.yaml", Fit(values, dict.fromkeys(values, 0.1)), {}, {})
    for name, generation in found.generations.items():
        before = shipped().generations[name]
        assert matrix(generation) == matrix(before)
        for field in ("attention_forward", "attention_backward", "memory", "link", "network"):
            assert getattr(generation, field).value == getattr(before, field).value


def framework_copy(tmp_path: Path, name: str) -> Path:
    path = tmp_path / f"{name}.yaml"
    path.write_text((files("dovetail.frameworks") / "data" / f"{name}.yaml").read_text("utf-8"), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", FITTED_OVERHEADS)
def test_fitted_overheads_go_into_a_frameworks_file_and_nothing_else_changes(tmp_path, plain, name):
    path = framework_copy(tmp_path, name)
    before = yaml.safe_load(path.read_text("utf-8"))
    values = {Parameter(field, name): 0.9 - number / 100 for number, field in enumerate(FITTED_OVERHEADS[name])}
    own = replace(plain, task=replace(plain.task, framework=frameworks.load(name)))
    runs = [replace(own, family="late"), replace(own, family="early"), replace(own, family="late"), plain]
    write_framework(path, name, Fit(values, dict.fromkeys(values, 0.2)), runs)
    after = yaml.safe_load(path.read_text("utf-8"))
    assert {f for f in after if after[f] != before[f]} == set(FITTED_OVERHEADS[name])
    assert list(after) == list(before)
    framework = frameworks.load(str(path))
    for number, value in values.items():
        allowance = getattr(framework, number.name)
        assert allowance.value == pytest.approx(value, rel=0.01)
        assert allowance.low == pytest.approx(value * np.exp(-0.4), rel=0.01)
        capped = number.name in ("exposed", "attention")
        assert allowance.high == pytest.approx(min(value * np.exp(0.4), 1.0 if capped else np.inf), rel=0.01)
        assert allowance.status == "fitted"
        families = "early, late" if name != "megatron-2022" else "early, late, ours"
        assert allowance.source == f"fitted by accuracy.regenerate on {families}; ± 20%"
    # comments are people's and stay
    kept = [line for line in path.read_text("utf-8").splitlines() if "#" in line]
    original = (files("dovetail.frameworks") / "data" / f"{name}.yaml").read_text("utf-8")
    assert kept == [line for line in original.splitlines() if "#" in line]


def test_a_file_without_a_line_for_a_number_is_not_written(tmp_path, plain):
    path = framework_copy(tmp_path, "maxtext")
    text = path.read_text("utf-8").replace("\ntraffic: ", "\ntraffik: ")
    path.write_text(text, encoding="utf-8")
    values = {Parameter(field, "maxtext"): 0.5 for field in FITTED_OVERHEADS["maxtext"]}
    with pytest.raises(AssertionError, match=r"maxtext\.yaml has no line for traffic"):
        write_framework(path, "maxtext", Fit(values, dict.fromkeys(values, 0.2)), [plain])
    assert path.read_text("utf-8") == text


@pytest.fixture
def fresh() -> Iterator[None]:
    """The numbers of left-out families are read once per process: before and after, they are read again."""
    left_out_values.cache_clear()
    yield
    left_out_values.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_numbers_of_every_fold_are_read_as_they_were_written(tmp_path, monkeypatch):
    fits = {
        "bloom": Fit({Parameter("matrix.half", "ampere"): 0.78912345, Parameter("host_s", "megatron"): 4.4987e-5}, {}),
        "a, b: c": Fit({Parameter("matrix.half", "ampere"): 0.8}, {}),
    }
    (tmp_path / "data").mkdir()
    write_left_out(tmp_path / "data" / "left_out.yaml", fits)
    monkeypatch.setattr(left_out_module, "files", lambda _: tmp_path)
    found = left_out_values()
    assert found.keys() == fits.keys()
    for family, fit in fits.items():
        assert found[family] == pytest.approx(fit.values, rel=1e-4)
    assert found["bloom"][Parameter("matrix.half", "ampere")] == 0.7891


@pytest.mark.usefixtures("fresh")
def test_without_a_file_nothing_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(left_out_module, "files", lambda _: tmp_path)
    assert left_out_values() == {}


def test_a_left_out_prediction_is_the_run_at_the_numbers_of_its_fold(plain, monkeypatch):
    family = replace(plain, family="theirs")
    numbers = {Parameter("matrix.half", "ampere"): 0.5, Parameter("traffic", "megatron-2022"): 3.0}
    monkeypatch.setattr(sys.modules[predict.__module__], "left_out_values", lambda: {"theirs": numbers})
    ours, theirs = predict([plain, family])
    assert isinstance(ours, Prediction)
    assert isinstance(theirs, Prediction)
    assert ours.left_out_s is None
    fields = parameters_of(family)
    values = {name: np.asarray(numbers.get(fields[name], value)) for name, value in shipped_values(family).items()}
    assert theirs.left_out_s is not None
    assert theirs.left_out_s == pytest.approx(float(priced(family, values)), rel=1e-12)
    # the shipped numbers' answer does not depend on the fold
    assert theirs.step_time_s == pytest.approx(ours.step_time_s, rel=1e-12)
    assert theirs.left_out_s > 1.05 * theirs.step_time_s
    scored = left_out_predictions([ours, theirs])
    assert list(scored) == ["plain"]
    assert scored["plain"].step_time_s == theirs.left_out_s
