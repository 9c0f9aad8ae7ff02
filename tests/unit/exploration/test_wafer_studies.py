"""Studies of wafers, against planning every wafer of small spaces; their bounds, runs that go on, and refusals."""

from __future__ import annotations

import json
import math
from dataclasses import replace
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
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.exploration.resolving import study_of
from dovetail.exploration.scores import Scores
from dovetail.exploration.study import Study
from dovetail.hardware import Cluster
from dovetail.plans.narrowed_space import within
from dovetail.search.answer import Answer
from dovetail.search.plan import plan
from dovetail.simulation import simulate
from dovetail.step.evaluate import evaluate

ROUNDING = 1e-9
PLANS: dict[str, Any] = {
    "tensor_parallel": [1, 2],
    "pipeline_parallel": [1, 3],
    "context_parallel": [1],
    "virtual_stages": [1],
    "pipeline_schedule": ["1f1b"],
    "sequence_parallel": [False],
    "micro_batch": [1],
    "zero_stage": [0, 1],
    "recompute": ["none", "full"],
    "recompute_share": [1.0],
    "axis_order": ["tp-cp-dp-pp"],
    "partition": "even",
}
#: Some dies are too small for their cores, some wafers hold the model in no memory or have fewer dies than spare ones.
STUDY: dict[str, Any] = {
    "name": "wafers",
    "jobs": [{"model": "gpt3-1.3b", "seq_len": 1024, "global_batch": 24}],
    "hardware": {
        "wafer": "watos-like",
        "set": {"die_width_mm": "24 mm", "vector_cores": 128, "power_limit_w": "4 kW", "core_sram_bytes": "1 MiB"},
        "vary": {
            "grid_rows": [1, 3],
            "grid_cols": [2, 4],
            "die_height_mm": ["9 mm", "26 mm"],
            "around": [
                {"hbm_stacks": 0, "link_port_bytes_per_s": "1 TB/s"},
                {"hbm_stacks": 1, "link_port_bytes_per_s": "0.02 TB/s"},
                {"hbm_stacks": 1, "link_port_bytes_per_s": "1 TB/s"},
            ],
            "spare_dies": [0, 3],
        },
        "derive": {"tensor_cores": "vector_cores"},
    },
    "cluster": {"framework": "megatron"},
    "plans": PLANS,
    "search": {"window": 2, "batch": 2},
}


def load(folder: Path, **changes: Any) -> Study:
    (folder / "study.yaml").write_text(to_yaml({**STUDY, **changes}))
    return Study.load(folder / "study.yaml")


def cluster_by_hand(study: ResolvedStudy, design: int, wafers: int = 1) -> Cluster | None:
    """The wafer without the rows that its spare dies fill."""
    values = study.space.designs([design])
    rows, cols, spare = (int(study.space.values(name, values)[0]) for name in ("grid_rows", "grid_cols", "spare_dies"))
    left = rows - math.ceil(spare / cols)
    if left < 1:
        return None
    (wafer,) = study.space.wafers([design])
    return replace(wafer, rows=left, spare_dies=0).cluster(wafers)


def planned_one_by_one(study: Study) -> dict[tuple[int, int], Answer]:
    """The best plan of every wafer that keeps the rules, by its number of wafers and design."""
    found: dict[tuple[int, int], Answer] = {}
    for count, space in [(place.count, place.space) for place in study.positions]:
        for design in np.nonzero(space.keeps(np.arange(space.size)))[0].tolist():
            cluster = cluster_by_hand(study, design, count)
            if cluster is not None:
                answer = planned(study, cluster)
                if answer is not None and answer.evaluation is not None:
                    found[count, design] = answer
    return found


def planned(study: ResolvedStudy, cluster: Cluster) -> Answer | None:
    """The best plan on one of the clusters of a study; none where a degree divides none of its dies."""
    try:
        space = within(study.plans, study.jobs[0].job, cluster, study.framework, leave_out=True)
    except InputError:
        return None
    return plan(study.jobs[0].job, cluster, study.framework, space=space)


def test_the_best_wafer_is_that_of_planning_each(tmp_path):
    study = load(
        tmp_path,
        cluster={"wafers": [1, 2], "framework": "megatron"},
        limits={"total_power_w": 2000, "least_yield": 0.8},
    )
    every = planned_one_by_one(study)
    assert (
        12
        <= len(every)
        < sum(int(space.keeps(np.arange(space.size)).sum()) for space in [place.space for place in study.positions])
    )
    assert {count for count, _ in every} == {1, 2}
    result = study.run(tmp_path / "run")
    best, counts = result.document["best"], result.document["counts"]
    assert best["objectives"]["step_time"] == pytest.approx(min(a.step_time_s for a in every.values()), rel=ROUNDING)
    own = every[best["wafers"], best["design"]]
    assert best["jobs"]["gpt3-1.3b"]["step_time_s"] == pytest.approx(own.step_time_s, rel=ROUNDING)
    assert best["chips"] == own.cluster.chips < best["wafers"] * best["wafer"]["rows"] * best["wafer"]["cols"]
    assert result.certificate["status"] == "optimal"
    assert "2 to 12 dies" in result.certificate["space"]
    # every limit with what it leaves out, as the spaces count them
    by_hand = [space.count() for space in [place.space for place in study.positions]]
    assert counts["kept"] == sum(each.kept for each in by_hand) > counts["holding"] >= len(every)
    for text in ("die_share <= 1", "wafer_power_w <= 1000.0", "wafer_yield >= 0.8"):
        assert result.document["left_out"][text] == sum(each.left_out.get(text, 0) for each in by_hand) > 0
    # what was searched can be looked at by what the wafers are
    rows = result.to_pandas("warm_start")
    where = rows[rows["code"] == rows["code"].max()].iloc[0]
    (wafer,) = study.space.wafers([int(where["code"]) % study.space.size])
    assert (where["grid_rows"], where["grid_cols"], where["die_height_mm"]) == (wafer.rows, wafer.cols, 26.0)
    assert (where["link_port_bytes_per_s"], where["clock_hz"]) == (wafer.d2d_bytes_per_s, wafer.die.clock_hz)
    # the plan file stands for the same
    (tmp_path / "plan.yaml").write_text(to_yaml(result.plan_file(best, "gpt3-1.3b")))
    answer = CliRunner().invoke(app, ["estimate", str(tmp_path / "plan.yaml"), "--json"])
    assert json.loads(answer.stdout)["step_time_s"] == pytest.approx(own.step_time_s, rel=ROUNDING)


def test_the_front_is_that_of_planning_each(tmp_path):
    names = ["step_time", "tokens_per_joule", "tokens_per_dollar", "area"]
    hardware = {**STUDY["hardware"], "vary": {**STUDY["hardware"]["vary"], "grid_rows": [3]}}
    study = load(tmp_path, objectives=names, hardware=hardware)
    points: dict[int, tuple[float, ...]] = {}
    for (_, design), answer in planned_one_by_one(study).items():
        (wafer,), values = study.space.wafers([design]), study.space.designs([design])
        cluster = study.cluster_of(design)
        assert cluster.tiers == answer.cluster.tiers
        assert answer.evaluation is not None
        joules = evaluate(answer.plan, study.jobs[0].job, cluster, study.framework).energy_j
        assert joules is not None
        price = wafer.dies * float(study.space.values("system_cost_usd", values)[0])
        area = wafer.dies * wafer.die_width_mm * wafer.die_height_mm
        points[design] = (answer.step_time_s, joules, answer.step_time_s * price, area)
        floor = Scores.of(study, np.array([design])).points(np.array([answer.step_time_s]))[0]
        assert floor[0] == answer.step_time_s
        assert floor[1] <= joules / study.tokens
        assert floor[3] == area
    wanted = [
        design
        for design, point in points.items()
        if not any(all(a <= b for a, b in zip(other, point, strict=True)) for o, other in points.items() if o != design)
    ]
    result = study.run()
    assert sorted(point["design"] for point in result.pareto_front()) == wanted
    assert 1 < len(wanted) < len(points)
    assert result.certificate["status"] == "optimal"


def test_bounds_come_one_below_the_other_on_random_wafers():
    document = {**STUDY, "hardware": {"space": "wafer-grid"}, "search": {"simulate_top": 1}}
    for wafers in (1, 2):
        study = study_of({**document, "cluster": {"wafers": wafers, "framework": "megatron"}}, "s")
        sample = study.positions[0].space.sample(60, wafers).index
        worker, nothing = Worker(study), np.zeros((0, 1))
        physical = worker.physical_of(0, sample)
        kept = np.nonzero(np.isfinite(physical[:, 0]))[0]
        assert 0 < len(kept) < len(sample), "some wafers hold the model in no memory"
        gone = [int(sample[i]) for i in range(len(sample)) if i not in kept][:3]
        for design in gone:
            cluster = cluster_by_hand(study, design, wafers)
            if cluster is not None:
                answer = planned(study, cluster)
                assert answer is None or answer.certificate.status == "infeasible"
        some = kept[:6]
        profiled = worker._profiled(study.codes(0, sample[some]), physical[some], nothing)  # pyright: ignore[reportPrivateUsage]
        found = 0
        for row, (low, close) in zip(some.tolist(), zip(physical[some, 0], profiled[:, 0], strict=True), strict=True):
            cluster = cluster_by_hand(study, int(sample[row]), wafers)
            assert cluster is not None
            answer = planned(study, cluster)
            assert 0 < low <= close
            if answer is None or answer.evaluation is None:
                continue
            found += 1
            assert close <= answer.step_time_s * (1 + ROUNDING)
            if found == 1:
                simulated = simulate(answer.plan, study.jobs[0].job, cluster, study.framework)
                assert close <= simulated.step_time_s * (1 + ROUNDING)
        assert found


class StoppedError(Exception):
    """Ends a run under way."""


def test_a_run_that_is_stopped_goes_on_and_is_told(tmp_path):
    study = load(tmp_path, search={"window": 2, "batch": 1, "simulate_top": 2})
    whole = study.run(tmp_path / "run")
    files = files_of(tmp_path)
    (tmp_path / "run").rename(tmp_path / "whole")

    def stop(progress: Any) -> None:
        if progress.level == "profile":
            raise StoppedError

    with pytest.raises(StoppedError):
        study.run(tmp_path / "run", listener=stop)
    assert 0 < len(files_of(tmp_path)) < len(files)
    asked = ["explore", str(tmp_path / "study.yaml"), "--out", str(tmp_path / "run"), "--resume"]
    told = CliRunner().invoke(app, asked)
    assert told.exit_code == 0
    again = study.run(tmp_path / "run", resume=True)
    assert again.document == whole.document
    written = files_of(tmp_path)
    assert {name: content for name, content in written.items() if not name.startswith(("best/", "simulated/"))} == files
    for words in (
        "1 wafer",
        "3 x 4 dies of 24 x 26 mm",
        "128 per die at 2 GHz",
        "35 GB",
        "per edge of a die",
        "at its peak",
    ):
        assert words in told.stdout
    assert "by die_share <= 1" in told.stdout.replace("\n             ", " ")
    simulation = whole.document["simulation"]
    assert simulation["best"]["wafers"] == 1
    assert simulation["best"]["step_time_s"] >= simulation["certificate"]["lower_bound"] * (1 - ROUNDING)


TIER = {"name": "flat", "topology": "switch", "bytes_per_s": "50 GB/s", "latency_s": "1 us"}
SPARE = {"wafer": "watos-like", "set": {"grid_rows": 1, "grid_cols": 2}, "vary": {"spare_dies": [2]}}
CHIPS = {"base": "tpu-v4", "vary": {"hbm_stacks": [2, 4]}}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"cluster": {"chips": 8}}, "cluster.chips: cannot be combined with wafers, a space of wafers; use cluster.wafers"),
    ({"limits": {"chips": 8}}, "limits.chips: cannot be combined with wafers, a space of wafers; use limits.wafers"),
    ({"cluster": {"wafers": 2}, "limits": {"wafers": 1}}, "limits.wafers: is 1; it should allow at least one number"),
    ({"cluster": {"wafers": 0}}, "cluster.wafers: is 0"),
    ({"cluster": {"wafers": 2**18}}, "wafers: is 262144; it should be from 1 to"),
    ({"cluster": {"tiers": [TIER]}}, "cluster.tiers: cannot be combined with a space of wafers"),
    ({"search": {"method": "random"}}, "search.method: random is for spaces of chips; set it to exact"),
    ({"limits": {"least_yield": 1.5}}, "limits.least_yield: is 1.5"),
    ({"plans": {"tensor_parallel": [5]}}, "plans.tensor_parallel: 5 is in no plan"),
    ({"hardware": {"wafer": "watos-like"}}, "hardware.vary: is missing; say which variables of the wafer"),
    ({"hardware": {"wafer": "watos-like", "space": "wafer-grid"}}, "hardware: names both a space and a wafer"),
    ({"hardware": {**CHIPS, "wafer": "watos-like"}}, "hardware: wafer: cannot be combined with base; drop one of them"),
    ({"hardware": {"wafer": "watos", "vary": {"grid_rows": [3]}}}, "'watos' is not in the catalogue"),
    ({"hardware": SPARE}, "hardware: leaves no row of dies besides spare ones; give its wafers fewer spare dies"),
    ({"hardware": CHIPS}, "cluster.chips: is missing"),
    ({"hardware": CHIPS, "cluster": {"wafers": 1}}, "cluster.wafers: cannot be combined with wafers, a space of chips"),
    (
        {"hardware": CHIPS, "cluster": {"chips": 8}, "limits": {"least_yield": 0.5}},
        "limits.least_yield: cannot be combined with wafers, a space of chips; use it only for wafers",
    ),
]


@pytest.mark.parametrize(("changes", "said"), WRONG)
def test_what_wafers_do_not_have_is_refused_in_a_sentence(changes, said):
    with pytest.raises(InputError) as caught:
        study_of({**STUDY, **changes}, "study.yaml")
    sentence = str(caught.value)
    assert sentence.startswith("study.yaml: ")
    assert said in sentence
    assert "\n" not in sentence


def test_yield_and_power_are_limits_like_others():
    study = study_of({**STUDY, "limits": {"least_yield": 0.9, "power_w": 2000}}, "s")
    texts = [limit.text for limit in study.positions[0].space.limits]
    assert texts[-2:] == ["wafer_power_w <= 2000.0", "wafer_yield >= 0.9"]
    assert study.space.count().kept < study_of(STUDY, "s").space.count().kept
