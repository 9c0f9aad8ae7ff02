"""Measured runs simulated: figures beside the model's, and a guard over the published runs."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace

import pytest
from small_runs import read, run

from dovetail.accuracy import MeasuredRun, Prediction, predict, published_runs
from dovetail.accuracy.simulated import (
    TIER,
    Simulated,
    SimulatedScore,
    score_simulated,
    simulate_runs,
    simulated_fields,
    simulated_step_s,
)
from dovetail.cli import main
from dovetail.errors import InputError
from dovetail.simulation import simulate
from dovetail.step.evaluate import least_step_s

#: Of every family so many runs are simulated here, those with least to do.
SAMPLED = 2
MOST_ITEMS = 2000
#: Simulated over modelled seconds, mean over a family.
MOST_LONGER = 1.1
MOST_SHORTER = 0.95
#: By how much simulation may be further off than the model, mean over families: over all runs it is by 0.003.
SAMPLE_WORSE = 0.01
MOST_WORSE = 0.005
#: The same for regret, which is equal.
MOST_REGRET = 0.0


def predicted(*runs: MeasuredRun) -> list[Prediction]:
    answers = predict(runs)
    assert all(isinstance(answer, Prediction) for answer in answers)
    return [answer for answer in answers if isinstance(answer, Prediction)]


def made(each: Prediction, model: float, simulation: float, **changes: str) -> Simulated:
    """A run that the model and simulation predict with given ratios to what was measured."""
    measured = replace(each.run, step_time_s=1.0, **changes)
    return Simulated(*(replace(each, run=measured, step_time_s=ratio) for ratio in (model, simulation)))


@pytest.fixture
def plain(tmp_path) -> Prediction:
    return predicted(run(tmp_path))[0]


def test_a_run_is_simulated_as_its_plan_is(tmp_path):
    measured = run(tmp_path)
    task = measured.task
    alone = simulate(task.plan, task.job, task.cluster, task.framework)
    assert simulated_step_s(measured) == pytest.approx(alone.step_time_s, rel=1e-12)
    (found,) = simulate_runs([replace(predicted(measured)[0], left_out_s=3.0)])
    assert found.simulation.step_time_s == simulated_step_s(measured)
    assert found.model.step_time_s == pytest.approx(alone.model_step_time_s, rel=1e-12)
    assert found.simulation.left_out_s is None
    assert found.simulation.memory_bytes == found.model.memory_bytes


def test_no_simulated_run_is_faster_than_the_bound(tmp_path):
    runs = read(
        tmp_path, {"id": "a"}, {"id": "b", "pp": "1", "dp": "8", "zero": "3"}, {"id": "c", "tp": "4", "dp": "2"}
    )
    for each in runs.runs:
        task = each.task
        assert simulated_step_s(each) >= (1 - 1e-9) * least_step_s(task.plan, task.job, task.cluster, task.framework)


def test_figures_are_of_both(plain):
    score = score_simulated(
        [made(plain, 1.2, 1.1), made(plain, 0.9, 1.0), made(plain, 1.0, 1.3, family="theirs")],
    )
    assert score.model_macro.mape == pytest.approx((0.15 + 0.0) / 2)
    assert score.macro.mape == pytest.approx((0.05 + 0.3) / 2)
    assert list(score.families) == ["ours", "theirs"]
    ours = score.families["ours"]
    assert ours.difference == pytest.approx(-0.1)
    assert ours.model.step_time.bias == pytest.approx(0.05)
    assert ours.simulation.step_time.bias == pytest.approx(0.05)
    assert ours.ratio == pytest.approx((1.1 / 1.2 + 1.0 / 0.9) / 2)
    assert score.all_runs.rows == 3
    assert score.all_runs.simulation.step_time.mape == pytest.approx(0.4 / 3)
    assert [(g.family, g.chip, g.model) for g in score.nearer] == [("ours", "a100-80gb", "GPT-small")]
    assert [g.family for g in score.further] == ["theirs"]
    assert score.further[0].difference == pytest.approx(0.3)


def test_groups_that_differ_most_come_first_and_equal_ones_not_at_all(plain):
    shifts = {"a": 0.02, "b": 0.3, "c": -0.04, "d": -0.2, "e": 0.0001, "f": 0.0}
    score = score_simulated([made(plain, 1.5, 1.5 + shift, family=name) for name, shift in shifts.items()])
    assert [g.family for g in score.further] == ["b", "a"]
    assert [g.family for g in score.nearer] == ["d", "c"]


def test_regret_is_that_of_the_plan_each_ranks_first(plain):
    plans = [replace(plain.run.task.plan, micro_batch=size) for size in (1, 2, 4)]
    measured, modelled, simulated = (1.0, 1.5, 2.0), (3.0, 2.0, 2.5), (1.0, 2.0, 3.0)
    runs: list[Simulated] = []
    for plan, at, *both in zip(plans, measured, modelled, simulated, strict=True):
        each = replace(plain.run, task=replace(plain.run.task, plan=plan), step_time_s=at)
        runs.append(Simulated(*(replace(plain, run=each, step_time_s=s) for s in both)))
    found = score_simulated(runs).all_runs
    assert found.model.ranking.mean_regret == pytest.approx(0.5)
    assert found.simulation.ranking.mean_regret == 0.0
    assert found.regret_difference == pytest.approx(-0.5)
    assert score_simulated(runs[:2]).all_runs.regret_difference is None


def test_nothing_to_simulate_is_refused():
    with pytest.raises(InputError, match="none of tier A can be predicted"):
        score_simulated([])


def test_fields_say_what_the_score_says(plain):
    score = score_simulated([made(plain, 1.2, 1.1), made(plain, 1.0, 1.3, family="theirs")])
    fields = json.loads(json.dumps(simulated_fields(score)))
    assert (fields["tier"], fields["rows"]) == (TIER, 2)
    assert fields["macro"] | {"families": 2, "mape": score.macro.mape} == fields["macro"]
    assert fields["model"]["macro"]["mape"] == score.model_macro.mape
    assert fields["step_time"]["mape"] == score.all_runs.simulation.step_time.mape
    assert fields["model"]["step_time"]["mape"] == score.all_runs.model.step_time.mape
    assert fields["ranking"]["mean_regret"] is fields["difference"]["mean_regret"] is None
    assert fields["by_family"]["theirs"]["difference"]["mape"] == pytest.approx(0.3)
    assert fields["by_family"]["theirs"]["model"]["step_time"]["mape"] == 0.0
    assert fields["nearer"][0]["family"] == "ours"
    assert fields["further"][0]["difference"] == pytest.approx(0.3)


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Runs the command beside a file of small runs; returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    read(tmp_path, {"id": "a"}, {"id": "b", "tier": "B", "pp": "1", "dp": "8"}, {"id": "c", "source_family": "theirs"})

    def command(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["validate", "--runs", "runs.csv", *arguments])
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    return command


def test_the_command_adds_to_the_scoreboard_and_changes_nothing_of_it(call):
    code, out, err = call("--simulate", "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    found = answer.pop("simulated")
    assert answer == json.loads(call("--json")[1])
    # the run of tier B is predicted, not simulated
    assert (answer["rows"]["used"], found["rows"]) == (3, 2)
    assert found["by_family"].keys() == {"ours", "theirs"}
    code, view, err = call("--simulate")
    assert (code, err) == (0, "")
    plain = call()[1]
    assert view.startswith(plain)
    added = view.removeprefix(plain)
    assert f"MAPE {found['macro']['mape']:.1%} (mean over 2 families)" in added
    assert f"the model's {found['model']['macro']['mape']:.1%}" in added
    assert [line for line in added.splitlines() if len(line) > 80] == []


def test_a_file_without_runs_of_the_tier_is_one_sentence(call, tmp_path):
    read(tmp_path, {"id": "b", "tier": "B"})
    assert call()[0] == 0
    code, out, err = call("--simulate")
    assert (code, out) == (2, "")
    assert err.startswith("runs.csv: none of tier A can be predicted")
    assert err.count("\n") == 1


def smallest(runs: list[MeasuredRun]) -> list[MeasuredRun]:
    """Those whose pipelines have fewest items: one, and others that are small."""

    def items(each: MeasuredRun) -> int:
        plan = each.task.plan
        return plan.num_microbatches * plan.pipeline_parallel * plan.virtual_stages

    first, *others = sorted(runs, key=lambda each: (items(each), each.id))[:SAMPLED]
    return [first, *(each for each in others if items(each) <= MOST_ITEMS)]


def published(*, sample: bool) -> SimulatedScore:
    families: defaultdict[str, list[MeasuredRun]] = defaultdict(list)
    for each in published_runs().runs:
        if each.tier == TIER:
            families[each.family].append(each)
    chosen = [each for runs in families.values() for each in (smallest(runs) if sample else runs)]
    return score_simulated(simulate_runs(predicted(*chosen)))


def test_simulation_stays_near_the_model_on_some_runs_of_every_family():
    score = published(sample=True)
    assert len(score.families) >= 11
    assert score.all_runs.rows >= 20
    assert score.macro.mape <= score.model_macro.mape + SAMPLE_WORSE
    longer = {name: each.ratio for name, each in score.families.items()}
    assert {name: ratio for name, ratio in longer.items() if not MOST_SHORTER < ratio < MOST_LONGER} == {}


@pytest.mark.slow
def test_simulation_stays_near_the_model_on_every_run_of_the_tier():
    score = published(sample=False)
    assert score.all_runs.rows >= 350
    assert score.macro.mape <= score.model_macro.mape + MOST_WORSE
    assert score.all_runs.regret_difference is not None
    assert score.all_runs.regret_difference <= MOST_REGRET
