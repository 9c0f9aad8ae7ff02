"""Studies that replay their leading designs, against replaying every design; resumed, and refused in a sentence."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from small_study import files_of
from typer.testing import CliRunner

from dovetail.bounds.design_tables import DesignTables
from dovetail.cli import app
from dovetail.documents import to_yaml
from dovetail.errors import InputError
from dovetail.exploration import study as study_module
from dovetail.exploration.fidelity import Worker
from dovetail.exploration.replays import simulation_document
from dovetail.exploration.store import Part
from dovetail.exploration.study import Study
from dovetail.search.plan import plan
from dovetail.search.simulated import simulated_plans
from dovetail.simulation import simulate

ROUNDING = 1e-9
PLANS: dict[str, Any] = {
    "tensor_parallel": [1, 2],
    "context_parallel": [1],
    "pipeline_parallel": [1, 2],
    "virtual_stages": [1],
    "pipeline_schedule": ["1f1b"],
    "sequence_parallel": [False],
    "micro_batch": [1],
    "zero_stage": [0, 1],
    "recompute": ["none"],
    "partition": "even",
}
#: Slow links and few chips of them: designs lie close together, and messages meet.
STUDY: dict[str, Any] = {
    "name": "replayed",
    "jobs": [{"model": "gpt3-1.3b", "seq_len": 2048, "global_batch": 32}],
    "hardware": {
        "base": "h100-sxm",
        "vary": {"link_ports": [2, 4, 6], "tensor_cores": [396, 528]},
    },
    "cluster": {"chips": 8, "framework": "megatron"},
    "plans": PLANS,
    "objectives": ["step_time"],
    "search": {"window": 2, "batch": 2},
}
JOBS = [
    {**STUDY["jobs"][0], "weight": 3},
    {"name": "reader", "model": "gpt2-1.5b", "seq_len": 1024, "global_batch": 64},
]
CASES: dict[str, dict[str, Any]] = {
    "one job": STUDY,
    "two jobs": {**STUDY, "jobs": JOBS, "hardware": {"base": "h100-sxm", "vary": {"link_ports": [2, 3, 6]}}},
}


def load(folder: Path, document: dict[str, Any]) -> Study:
    (folder / "study.yaml").write_text(to_yaml(document))
    return Study.load(folder / "study.yaml")


@cache
def every_design(name: str) -> dict[int, tuple[float, float]]:
    """Of each design: the least weighted seconds of its leading plans simulated, and those of the model's best plan."""
    with TemporaryDirectory() as folder:
        asked, found = load(Path(folder), CASES[name]), dict[int, tuple[float, float]]()
    for design in range(asked.space.size):
        cluster = asked.positions[0].cluster(asked.space.chip(design))
        least = own = 0.0
        for each in asked.jobs:
            job, weight = each.job, each.weight
            whole = asked.plans.resolve(job, cluster, asked.framework)
            simulated = simulated_plans(job, cluster, asked.framework, whole, 100)
            best = plan(job, cluster, asked.framework, space=asked.plans).plan
            assert simulated is not None
            assert simulated.certificate.status == "optimal"
            least += weight * simulated.plans[0].step_time_s
            own += weight * simulate(best, job, cluster, asked.framework).step_time_s
        found[design] = (least, own)
    return found


@pytest.mark.parametrize("name", ["one job", pytest.param("two jobs", marks=pytest.mark.slow)])
def test_the_fastest_of_all_designs_is_found_and_nothing_is_below_the_bound(tmp_path, name):
    study = load(tmp_path, CASES[name])
    every = every_design(name)
    best = min(every, key=lambda design: every[design])
    many = study.run(simulate_top=20).document["simulation"]
    assert many["certificate"]["status"] == "optimal"
    assert many["best"]["design"] == best
    assert many["best"]["step_time_s"] == pytest.approx(every[best][0], rel=ROUNDING)
    for top in (1, 2, 20):
        document = study.run(simulate_top=top).document
        simulation, model = document["simulation"], document["best"]
        bound, found = simulation["certificate"]["lower_bound"], simulation["best"]
        assert bound <= min(least for least, _ in every.values()) * (1 + ROUNDING)
        assert bound <= min(own for _, own in every.values()) * (1 + ROUNDING)
        assert simulation["certificate"]["gap"] == pytest.approx(1 - bound / found["step_time_s"], abs=ROUNDING)
        assert found["least_s"] <= found["step_time_s"] * (1 + ROUNDING)
        # what the model takes for the best is always among them, with no slower a plan than the model's own
        own = next(row for row in simulation["replayed"] if row["design"] == model["design"])
        assert own["step_time_s"] <= every[model["design"]][1] * (1 + ROUNDING)
        assert found["step_time_s"] == simulation["replayed"][0]["step_time_s"] <= own["step_time_s"]
        assert len(simulation["replayed"]) == document["counts"]["replayed"] <= top + 1


def test_what_the_model_finds_is_the_same(tmp_path):
    study = load(tmp_path, STUDY)
    plain, replayed = study.run().document, study.run(simulate_top=1).document
    assert "simulation" not in plain
    for field in ("best", "certificate"):
        assert replayed[field] == plain[field]


def test_floors_of_designs_hold_for_simulated_time(tmp_path):
    for design, (least, _) in every_design("one job").items():
        simulated, _ = floors(load(tmp_path, STUDY).simulating(1), design)
        assert simulated <= least * (1 + ROUNDING)
    # where there are stages, the simulation may reduce gradients of one while others work
    staged = STUDY | {"plans": PLANS | {"pipeline_parallel": [2]}}
    simulated, modelled = floors(load(tmp_path, staged).simulating(1), 0)
    assert simulated < modelled


def floors(study: Study, design: int) -> tuple[float, float]:
    """The floor of a design for simulated time, and for the model's."""
    chip = study.space.chip(design)
    cluster = study.positions[0].cluster(chip)
    ((tables, _),) = Worker(study)._tables_for(0, 0, [cluster])  # pyright: ignore[reportPrivateUsage]
    model = DesignTables(study.jobs[0].job, cluster, study.framework, study.plans)
    return float(tables.least_seconds([chip])[0]), float(model.least_seconds([chip])[0])


class StoppedError(Exception):
    """Ends a run under way."""


def test_an_interrupted_study_goes_on_as_if_it_had_not_been(tmp_path, monkeypatch):
    study = load(tmp_path, {**STUDY, "search": {**STUDY["search"], "simulate_top": 3}})
    whole = study.run(tmp_path / "run")
    files = files_of(tmp_path)
    assert {"parts/replay-000000.parquet", "index/replay-000000.json"} <= files.keys()
    (tmp_path / "run").rename(tmp_path / "whole")
    for level in ("replay", "physical"):

        def stop(progress: Any, level: str = level) -> None:
            if progress.level == level:
                raise StoppedError

        with pytest.raises(StoppedError):
            study.run(tmp_path / "run", listener=stop, resume=True)
    assert 0 < len(files_of(tmp_path)) < len(files)
    # the command line's option asks the same as the study's field
    again = load(tmp_path, STUDY).run(tmp_path / "run", resume=True, simulate_top=3)
    assert again.document == whole.document
    assert files_of(tmp_path) == files
    monkeypatch.setattr(study_module, "EXECUTORS", {})
    assert study.run(tmp_path / "run", resume=True).document == whole.document
    with pytest.raises(InputError, match=r"search.simulate_top: is 4, but the study of the existing run had 3"):
        study.run(tmp_path / "run", resume=True, simulate_top=4)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (
            {"objectives": ["step_time", "area"]},
            "search.simulate_top: cannot be combined with the objectives step_time, area",
        ),
        ({"objectives": ["area"]}, "search.simulate_top: cannot be combined with the objectives area"),
        ({"search": {"method": "random"}}, "search.simulate_top: cannot be combined with the method random"),
    ],
)
def test_where_simulated_time_decides_nothing_it_is_refused(tmp_path, part, said):
    document = {**STUDY, **part}
    with pytest.raises(InputError, match=said):
        load(tmp_path, document).run(simulate_top=2)
    with pytest.raises(InputError, match=said):
        load(tmp_path, {**document, "search": {**document["search"], "simulate_top": 2}})


def test_all_that_is_not_replayed_is_counted(tmp_path):
    study = load(tmp_path, STUDY)
    figures = {"least_s": 2.0, "plan_least_s": 1.5, "model_s": 1.9, "step_s": 2.0}
    name = study.jobs[0].name

    def said(bounds: dict[int, float], **changed: float) -> tuple[str, float]:
        columns: dict[str, Any] = {"code": np.array([3]), "simulated": np.array([2]), f"plan.{name}": ["{}"]}
        columns |= {f"{field}.{name}": np.array([value]) for field, value in (figures | changed).items()}
        codes, seconds = (
            np.array(list(bounds), np.int64),
            np.array(list(bounds.values()), np.float64),
        )
        certificate = simulation_document(study, [Part("replay", 0, columns, {})], codes, seconds)["certificate"]
        assert certificate["gap"] == pytest.approx(1 - certificate["lower_bound"] / 2.0)
        return certificate["status"], certificate["lower_bound"]

    assert said({3: 1.0}) == ("optimal", 2.0)
    assert said({3: 1.0, 4: 2.0, 5: 7.0}) == ("optimal", 2.0)
    assert said({3: 1.0, 4: 1.7, 5: 7.0}) == ("feasible", 1.7)
    assert said({3: 1.0, 4: 3.0}, least_s=1.6) == ("feasible", 1.6)


def test_only_what_is_slower_when_simulated_is_dropped(tmp_path):
    # clocks so close that the model drops, by its own time, designs that simulated time has to look at
    close = {"base": "h100-sxm", "vary": {"clock_hz": [f"{1.6 - n / 400} GHz" for n in range(12)]}}
    plans = {**PLANS, "tensor_parallel": [2], "pipeline_parallel": [1]}
    study = load(tmp_path, {**STUDY, "hardware": close, "plans": plans}).simulating(1)
    document = study.run().document
    best_s, worker = document["simulation"]["best"]["step_time_s"], Worker(study)
    chips = [study.space.chip(design) for design in range(study.space.size)]
    clusters = [study.positions[0].cluster(chip) for chip in chips]
    ((tables, _),) = worker._tables_for(0, 0, clusters)  # pyright: ignore[reportPrivateUsage]
    bounds = tables.least_seconds(chips)
    assert np.sum(bounds < document["best"]["objectives"]["step_time"]) < np.sum(bounds < best_s) < len(chips)
    assert document["counts"]["profile"] == np.sum(bounds < best_s)


def test_the_command_says_what_was_simulated(tmp_path, monkeypatch):
    load(tmp_path, STUDY)
    monkeypatch.chdir(tmp_path)
    asked = ["explore", "study.yaml", "--out", "run", "--simulate-top", "2"]
    run = CliRunner().invoke(app, asked)
    assert run.exit_code == 0, run.output
    assert "simulated  " in run.output
    assert "simulated; also the model's choice" in run.output
    run = CliRunner().invoke(app, [*asked, "--resume", "--json"])
    fields = json.loads(run.stdout)
    assert fields["simulation"]["certificate"]["time"] == "simulated"
    assert [Path(path).exists() for path in fields["simulated_plans"].values()] == [True]


@pytest.mark.parametrize("top", [0, 1001])
def test_a_number_of_designs_is_checked(tmp_path, top):
    with pytest.raises(InputError, match=rf"simulate_top: is {top}; it should be from 1 to 1000"):
        load(tmp_path, STUDY).run(simulate_top=top)
    with pytest.raises(InputError, match="simulate_top"):
        load(tmp_path, {**STUDY, "search": {"simulate_top": top}})


def test_designs_that_nothing_fits_are_said_to_be_infeasible(tmp_path):
    jobs = [{"model": "gpt3-175b", "seq_len": 2048, "global_batch": 32}]
    document = load(tmp_path, {**STUDY, "jobs": jobs}).run(simulate_top=2).document
    simulation = document["simulation"]
    assert (simulation["best"], simulation["replayed"]) == (None, [])
    assert simulation["certificate"]["status"] == document["certificate"]["status"] == "infeasible"
