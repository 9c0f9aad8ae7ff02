"""Studies of free mappings, against searching every wafer; their bounds, gaps, runs that stop and go on, refusals."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_study import files_of
from typer.testing import CliRunner

from dovetail.cli import app
from dovetail.documents import to_yaml
from dovetail.errors import InputError
from dovetail.exploration.fidelity import Worker
from dovetail.exploration.free_plans import FreeStage, free_rows
from dovetail.exploration.resolving import study_of
from dovetail.exploration.result import StudyResult
from dovetail.exploration.study import Study
from dovetail.mapping.tiles.free_plan import FreeLimits, free_plan
from dovetail.search.answer import Answer
from dovetail.search.plan import plan
from dovetail.simulation import simulate

ROUNDING = 1e-9
MODEL: dict[str, Any] = {
    "name": "tiny",
    "hidden": 1024,
    "vocab": 1024,
    "max_seq_len": 1024,
    "embedding": {"positions": 1024},
    "blocks": {
        "layer": {
            "mixer": {"kind": "attention", "heads": 8, "kv_heads": 8, "head_dim": 128, "rotary": False},
            "feed_forward": {"kind": "dense", "size": 4096, "activation": "gelu_tanh"},
            "norm": "layer",
        }
    },
    "layers": [{"blocks": ["layer"], "repeat": 2}],
    "head": {"tied": False, "norm": "layer"},
}
#: The power limit changes no plan: every wafer is there twice.
STUDY: dict[str, Any] = {
    "name": "free",
    "jobs": [{"model": "tiny.yaml", "seq_len": 1024, "global_batch": 1}],
    "hardware": {
        "wafer": "watos-like",
        "set": {
            "die_width_mm": "20 mm",
            "die_height_mm": "26 mm",
            "grid_rows": 2,
            "tensor_cores": 128,
            "vector_cores": 128,
        },
        "vary": {
            "grid_cols": [1, 2],
            "link_port_bytes_per_s": ["0.05 TB/s", "1 TB/s"],
            "power_limit_w": ["15 kW", "23 kW"],
        },
    },
    "cluster": {"framework": "wafer"},
    "plans": {"strategy": "free"},
    "search": {"simulate_top": 2},
}


def load(folder: Path, **changes: Any) -> Study:
    folder.mkdir(exist_ok=True)
    (folder / "tiny.yaml").write_text(to_yaml(MODEL))
    (folder / "study.yaml").write_text(to_yaml({**STUDY, **changes}))
    return Study.load(folder / "study.yaml")


@dataclass(frozen=True)
class Whole:
    """A study left alone, and every wafer of it searched by itself."""

    study: Study
    document: Any
    files: dict[str, bytes]
    by_design: dict[int, Answer]

    @property
    def best_s(self) -> float:
        """The best step of all wafers."""
        return min(answer.step_time_s for answer in self.by_design.values())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole") / "study"
    study = load(folder)
    result = study.run(folder / "run")
    kept = np.nonzero(study.space.keeps(np.arange(study.space.size)))[0].tolist()
    # power limits come last: of two designs that differ in nothing else one is enough
    by_design = {
        d: free_plan(study.jobs[0].job, study.cluster_of(d), study.framework, FreeLimits(named_s=0.0))
        for d in kept[::2]
    }
    return Whole(study, result.document, files_of(folder), by_design)


def test_the_best_wafer_is_that_of_searching_each(whole, tmp_path):
    best, counts, certificate = whole.document["best"], whole.document["counts"], whole.document["certificate"]
    assert best["objectives"]["step_time"] == pytest.approx(whole.best_s, rel=ROUNDING)
    assert whole.by_design[best["design"]].step_time_s == pytest.approx(whole.best_s, rel=ROUNDING)
    assert certificate["lower_bound"] <= whole.best_s
    # nothing that any search proves is above what the study says
    proven = min(answer.certificate.lower_bound_s for answer in whole.by_design.values())
    assert certificate["lower_bound"] >= proven * (1 - ROUNDING)
    assert certificate["gap"] == pytest.approx(1 - certificate["lower_bound"] / whole.best_s)
    assert "every operator sharded freely" in certificate["space"]
    assert "\n" not in certificate["space"]
    # twins are left out, and no stage looks at more designs than the one before it
    assert counts["physical"] <= counts["kept"] == 2 * len(whole.by_design)
    assert counts["alike"] > 0
    assert counts["alike"] + counts["blocks"] <= counts["physical"]
    assert counts["blocks"] >= counts["short"] >= counts["searched"]
    assert "layouts" in best["jobs"]["tiny"]["plan"]
    # the plan file stands for the same
    file = tmp_path / "plan.yaml"
    file.write_text(to_yaml(StudyResult(whole.study, whole.document, None).plan_file(best, "tiny")))
    answer = CliRunner().invoke(app, ["estimate", str(file), "--json"])
    assert json.loads(answer.stdout)["step_time_s"] == pytest.approx(whole.best_s, rel=ROUNDING)


def test_bounds_come_one_below_the_other(whole):
    study = whole.study
    codes = np.array(sorted(whole.by_design))
    physical = Worker(study).physical_of(0, codes)
    blocks = free_rows(study, codes, physical, np.zeros((0, 1)), FreeStage.BLOCKS)
    for code, low, row in zip(codes.tolist(), physical[:, 0].tolist(), blocks, strict=True):
        answer = whole.by_design[code]
        assert 0 < low < row.least_s[0] <= answer.certificate.lower_bound_s * (1 + ROUNDING)
        simulated = simulate(answer.plan, study.jobs[0].job, study.cluster_of(code), study.framework)
        assert row.least_s[0] <= min(answer.step_time_s, simulated.step_time_s)


def test_plans_of_leading_wafers_are_simulated(whole):
    simulation = whole.document["simulation"]
    assert len(simulation["replayed"]) == whole.document["counts"]["replayed"] == 2
    study, best = whole.study, simulation["best"]
    assert best["step_time_s"] >= simulation["certificate"]["lower_bound"]
    assert simulation["certificate"]["lower_bound"] <= min(
        simulate(answer.plan, study.jobs[0].job, study.cluster_of(code), study.framework).step_time_s
        for code, answer in whole.by_design.items()
    )


def test_a_gap_saves_searches_and_holds(whole, tmp_path):
    result = load(tmp_path / "study", search={"gap": 0.6}).run()
    certificate, counts = result.certificate, result.document["counts"]
    found = result.document["best"]["objectives"]["step_time"]
    assert whole.best_s * (1 - ROUNDING) <= found <= whole.best_s * 1.6
    assert certificate["lower_bound"] <= whole.best_s
    assert certificate["lower_bound"] >= found / 1.6 * (1 - ROUNDING)
    assert certificate["gap"] == pytest.approx(1 - certificate["lower_bound"] / found)
    assert counts["searched"] < whole.document["counts"]["searched"]


def test_a_run_that_is_stopped_goes_on_to_the_same_answer(whole, tmp_path):
    folder = tmp_path / "study"
    study = load(folder, plans={"strategy": "free", "work_limit": 1}, search={"batch": 1})
    left_alone, files = study.run(folder / "run"), files_of(folder)
    (folder / "run").rename(folder / "left-alone")

    def stop(progress: Any) -> None:
        if progress.level == "search" and progress.batches >= 2:
            raise KeyboardInterrupt

    partly = study.run(folder / "run", listener=stop)
    assert partly.stopped == "interrupt"
    assert 0 < len(files_of(folder)) < len(files)
    assert partly.document["best"] is not None
    assert partly.certificate["lower_bound"] <= whole.best_s
    assert study.run(folder / "run", resume=True).document == left_alone.document
    assert files_of(folder) == files


def test_a_time_limit_leaves_the_best_so_far_with_a_true_gap(whole, tmp_path):
    limited = load(tmp_path / "study", search={"simulate_top": 2, "time_limit_s": 1e-3})
    asked = ["explore", str(tmp_path / "study" / "study.yaml"), "--out", str(tmp_path / "study" / "run"), "--json"]
    told = CliRunner().invoke(app, asked)
    answer = json.loads(told.stdout)
    # a millisecond is over before the first plan
    assert told.exit_code == 4
    assert "--resume goes on" in told.stderr
    assert answer["certificate"]["status"] == "feasible"
    assert (answer["certificate"]["lower_bound"] or 0.0) <= whole.best_s
    assert answer["best"] is None
    # how long a run may take is no part of the question
    assert limited.document == whole.study.document


def test_physics_bounds_named_plans_on_random_wafers():
    plans = {"pipeline_schedule": ["1f1b"], "context_parallel": [1], "micro_batch": [1, 4], "recompute": ["none"]}
    document: dict[str, Any] = {**STUDY, "hardware": {"space": "wafer-grid"}, "search": {}}
    document["jobs"] = [{"model": "gpt3-1.3b", "seq_len": 1024, "global_batch": 24}]
    study = study_of(document, "s")
    named = study_of({**document, "plans": {**plans, "partition": "even", "zero_stage": [1]}}, "s")
    sample = study.positions[0].space.sample(40, 1).index
    bounds, found = Worker(study).physical_of(0, sample)[:, 0], list[float]()
    job = study.jobs[0].job
    for design, low in zip(sample.tolist(), bounds.tolist(), strict=True):
        if len(found) < 8 and np.isfinite(low):
            answer = plan(job, study.cluster_of(design), study.framework, space=named.plans)
            if answer.evaluation is not None:
                found.append(low / answer.fastest.step_time_s)
    assert len(found) == 8
    assert max(found) <= 1
    assert max(found) > 0.5, "a bound that is worth something"


def test_a_store_holds_what_dies_do_not():
    hardware = {"wafer": "watos-like", "set": {"hbm_stacks": 0, "store_bytes": "1 TB"}}
    hardware["vary"] = {"store_bytes_per_s": ["0.1 GB/s", "1 TB/s", "2 TB/s"]}
    document = {**STUDY, "jobs": [{"model": "gpt3-6.7b", "seq_len": 2048, "global_batch": 96}], "hardware": hardware}
    slow, fast, faster = Worker(study_of(document, "s")).physical_of(0, np.arange(3))[:, 0].tolist()
    assert fast == faster, "computation decides"
    # most of 2 bytes of 6.7 billion weights, once a step
    assert 0.5 * 2 * 6.7e9 / 0.1e9 < slow < 2 * 6.7e9 / 0.1e9
    hardware["set"] = {"hbm_stacks": 0, "store_bytes": "10 GB"}
    assert not np.isfinite(Worker(study_of(document, "s")).physical_of(0, np.arange(3))).any()


CHIPS = {"base": "tpu-v4", "vary": {"hbm_stacks": [2, 4]}}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"cluster": {"framework": "megatron"}}, "cluster.framework: megatron runs only named strategies; use wafer or"),
    ({"plans": {"strategy": "free", "zero_stage": [1]}}, "plans.zero_stage: cannot be combined with the strategy free"),
    ({"plans": {"strategy": "freely"}}, "plans.strategy: "),
    ({"plans": {"gap": 0.1}}, "plans.gap: is about free mappings; set plans.strategy to free"),
    ({"plans": {"work_limit": 5}}, "plans.work_limit: is about free mappings; set plans.strategy to free"),
    ({"plans": {"strategy": "free", "work_limit": 0}}, "plans.work_limit: "),
    ({"search": {"gap": 1.0}}, "search.gap: "),
    ({"search": {"gap": 0.1}, "objectives": ["step_time", "area"]}, "search.gap: is about the best of one objective"),
    ({"search": {"time_limit_s": 0}}, "search.time_limit_s: "),
    (
        {"hardware": CHIPS, "cluster": {"chips": 4, "framework": "ideal"}},
        "plans.strategy: free is for spaces of wafers",
    ),
]


@pytest.mark.parametrize(("changes", "said"), WRONG)
def test_what_free_mappings_do_not_have_is_refused_in_a_sentence(changes, said):
    document = {**STUDY, "jobs": [{"model": "gpt3-1.3b", "seq_len": 1024, "global_batch": 8}], "search": {}}
    with pytest.raises(InputError) as caught:
        study_of({**document, **changes}, "study.yaml")
    sentence = str(caught.value)
    assert sentence.startswith("study.yaml: ")
    assert said in sentence
    assert "\n" not in sentence


@pytest.mark.slow
def test_ray_gives_the_bytes_of_one_process(whole, tmp_path):
    pytest.importorskip("ray")
    folder = tmp_path / "study"
    study = load(folder)
    result = study.run(folder / "run", executor="ray", workers=2)
    assert result.document == whole.document
    assert files_of(folder) == whole.files
