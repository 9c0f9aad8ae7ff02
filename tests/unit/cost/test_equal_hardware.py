"""Equal hardware takes equal time: designs, renamed files and calibrated chips against the chip they come from."""

from dataclasses import replace

import pytest
import yaml

from dovetail import frameworks, hardware, models
from dovetail.accuracy.user_chip import with_values
from dovetail.cost.calibration import calibration, power_share
from dovetail.explanation.changed_hardware import knobs
from dovetail.hardware.catalogue import chip_from, space_from
from dovetail.hardware.chip import EFFICIENCY_NAMES
from dovetail.hardware.design import design_of
from dovetail.hardware.write import chip_document
from dovetail.models import Job
from dovetail.models.job import Precision
from dovetail.plans.plan import PlanSpec, resolve_plan
from dovetail.step.evaluate import evaluate

CHIPS = hardware.chip_names()
MEASURED = {name: 0.31 + 0.02 * number for number, name in enumerate(EFFICIENCY_NAMES[:8])} | {
    "launch_s": 7e-6,
    "collective_launch_s": 3e-5,
}


def step_time_s(chip, precision: Precision = "bf16"):
    chips = 8 if chip.tiers else 1
    job = Job(models.load("llama-2-7b"), 2048, 32, precision=precision)
    spec = PlanSpec(tensor_parallel=min(chips, 4), micro_batch=2)
    plan = resolve_plan(spec, chips=chips, global_batch=32, num_layers=32)
    cluster = hardware.cluster(chip, chips)
    return evaluate(plan, job, cluster, frameworks.load("megatron"), energy=False).step_time_s


def unchanged_space(base):
    """A design space around a chip, given in full, with one design: the chip itself."""
    document = {"name": "same", "base": chip_document(base), "vary": {"clock_hz": [base.clock_hz]}}
    return space_from(document, "same")


@pytest.mark.parametrize("name", CHIPS)
def test_a_design_equal_to_its_base_takes_its_time(name):
    base = hardware.chip(name)
    expected = step_time_s(base)
    for design in (design_of(base).chip(0, "mine"), unchanged_space(base).chip(0)):
        assert design.name != name
        assert step_time_s(design) == expected
        assert power_share(design) == power_share(base)
        assumed = calibration(base, "bf16").basis == "assumed"
        assert calibration(design, "bf16").basis == ("assumed" if assumed else "transfer")


@pytest.mark.parametrize("name", CHIPS)
def test_a_renamed_chip_file_takes_the_time_of_the_original(name, tmp_path):
    base = hardware.chip(name)
    document = chip_document(base) | {"name": "mine", "title": "Mine", "source": "a copy", "price_usd": 1}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in document.items() if key != "doubts"}))
    renamed = hardware.chip(str(path))
    assert hardware.listed_as(renamed) == name
    assert step_time_s(renamed) == step_time_s(base)
    assert power_share(renamed) == power_share(base)
    for precision in ("bf16", "fp8", "fp4"):
        assert calibration(renamed, precision).basis == calibration(base, precision).basis
    assert step_time_s(design_of(renamed).chip(0, "design")) == step_time_s(base)


@pytest.mark.parametrize("name", CHIPS)
def test_what_a_chip_was_measured_to_sustain_reaches_designs_around_it(name):
    base = with_values(hardware.chip(name), MEASURED, "our runs")
    expected = step_time_s(base)
    assert expected != step_time_s(hardware.chip(name))
    read = chip_from(chip_document(replace(base, name="mine")), "mine")
    assert step_time_s(read) == expected
    for around in (base, read):
        design = unchanged_space(around).chip(0)
        assert step_time_s(design) == expected
        found = calibration(design, "bf16")
        assert (found.basis, found.measured_on) == ("transfer", around.name)
        assert str(found).startswith(f"transferred from measurements of {around.name} (our runs), the rest as for ")


@pytest.mark.parametrize("name", ["tpu-v5p", "h100-96gb-hbm2e-500w", "mi300x"])
def test_a_design_with_other_figures_sustains_what_its_base_does_of_them(name):
    base = hardware.chip(name)
    designs = design_of(base)
    faster = designs.varied({"clock_hz": 2 * designs.clock_hz}).chip(0, "faster")
    assert faster.peak_flops("bf16") == pytest.approx(2 * base.peak_flops("bf16"))
    assert power_share(faster) == power_share(base)
    for precision in ("bf16", "fp8"):
        assert calibration(faster, precision).efficiencies == calibration(base, precision).efficiencies
        assert calibration(faster, precision).generation == calibration(base, precision).generation


def test_a_file_says_which_chip_it_is_calibrated_as(refusal):
    base = hardware.chip("tpu-v5p")
    more = chip_document(base) | {"name": "mine", "hbm_bytes": 2 * base.hbm_bytes}
    assert calibration(chip_from(more, "mine"), "bf16").generation == "systolic"
    stated = chip_from({**more, "calibrated_as": "tpu-v5p"}, "mine")
    found = calibration(stated, "bf16")
    assert (found.basis, found.generation) == ("transfer", "tpu-v5")
    assert found.efficiencies == calibration(base, "bf16").efficiencies
    assert "did you mean 'tpu-v5p'" in refusal(chip_from, {**more, "calibrated_as": "tpu-v5pp"}, "mine")


@pytest.mark.parametrize("own", [False, True])
def test_a_design_written_and_read_again_is_the_same(own):
    base = hardware.chip("tpu-v5p")
    base = with_values(base, {"memory": 0.5}, "ours") if own else base
    design = unchanged_space(base).chip(0)
    document = chip_document(design)
    assert isinstance(document["calibrated_as"], dict if own else str)
    assert chip_from(document, "again") == design


def test_one_measurement_goes_before_what_a_chip_follows():
    base = with_values(hardware.chip("h100-sxm"), {"memory": 0.5, "link": 0.4}, "base")
    design = with_values(design_of(base).chip(0, "mine"), {"memory": 0.6}, "mine")
    found = calibration(design, "bf16")
    assert (found.basis, found.source, found.efficiencies.memory, found.efficiencies.link) == ("own", "mine", 0.6, 0.4)


def test_chips_of_the_catalogue_differ_in_hardware():
    assert [hardware.listed_as(hardware.chip(name)) for name in CHIPS] == list(CHIPS)


@pytest.mark.parametrize("name", ["h100-96gb-hbm2e-500w", "tpu-v5p"])
def test_a_renamed_chip_gains_from_more_of_something_as_the_original(name):
    original = hardware.cluster(name, 8)
    renamed = replace(original, chip=replace(original.chip, name="mine"))
    for one, other in zip(knobs(original), knobs(renamed), strict=True):
        chips = [each.turned(of, 1.5).chip for each, of in ((one, original), (other, renamed))]
        assert calibration(chips[0], "bf16").efficiencies == calibration(chips[1], "bf16").efficiencies
        assert power_share(chips[0]) == power_share(chips[1]) == power_share(original.chip)
