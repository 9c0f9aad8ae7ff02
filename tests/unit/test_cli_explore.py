"""`dovetail explore`: one object on stdout, events on stderr, exit codes, plan files that other commands read."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import dovetail as dt
from dovetail.documents import to_yaml
from dovetail.exploration.executors import EXECUTORS
from dovetail.plans.plan_file import load_task

STUDY: dict[str, Any] = {
    "name": "small",
    "jobs": [
        {"model": "gpt2-1.5b", "seq_len": 1024, "global_batch": 64},
        {"name": "reader", "model": "bert-large", "seq_len": 512, "global_batch": 64, "weight": 2},
    ],
    "hardware": {"base": "h100-sxm", "vary": {"hbm_stacks": [2, 5], "tensor_cores": [264, 528]}},
    "cluster": {"chips": 16, "framework": "megatron-2022"},
    "plans": {
        "tensor_parallel": [1],
        "context_parallel": [1],
        "pipeline_parallel": [1],
        "micro_batch": [1],
        "zero_stage": [0],
        "recompute": ["none"],
    },
}
#: What programs may rely on.
CONTRACT = {"study", "certificate", "counts", "provenance", "run_dir", "plans", "timing"}
POINT = {"design", "chips", "objectives", "variables", "silicon", "jobs"}
COUNTS = {"designs", "kept", "unbeaten", "physical", "profile", "searched", "evaluated"}
EVENT = {
    "event", "level", "counted", "total", "pruned", "evaluated", "incumbent", "objective", "unit", "bound", "gap",
    "front", "batches", "batches_total", "workers", "elapsed_s", "eta_s", "left", "rate_per_s",
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(STUDY)
    return tmp_path


def write(study: dict[str, Any]) -> None:
    Path("study.yaml").write_text(to_yaml(study))


@pytest.fixture
def call(command):
    """Runs a command in this process: exit code, what it printed, what it complained of."""
    return command


@pytest.fixture
def refused(call):
    """The one sentence of a command that is refused."""

    def ask(*arguments: str, code: int = 2) -> str:
        found, out, err = call("explore", *arguments)
        assert (found, out) == (code, "")
        assert err.endswith(".\n")
        assert err.removesuffix("\n").isprintable()
        return err.removesuffix("\n")

    return ask


def test_one_objective_gives_the_best_as_one_object(call):
    code, out, err = call("explore", "study.yaml", "--out", "run", "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer.keys() == CONTRACT | {"best"}
    best = answer["best"]
    assert best.keys() == POINT
    assert best["objectives"].keys() == {"step_time"}
    assert best["jobs"].keys() == {"gpt2-1.5b", "reader"}
    steps = {name: job["step_time_s"] for name, job in best["jobs"].items()}
    assert best["objectives"]["step_time"] == pytest.approx(steps["gpt2-1.5b"] / 3 + steps["reader"] * 2 / 3)
    assert answer["certificate"]["status"] == "optimal"
    assert answer["certificate"]["gap"] == 0
    assert answer["certificate"]["lower_bound"] == best["objectives"]["step_time"]
    assert answer["counts"].keys() == COUNTS
    assert (answer["study"], answer["run_dir"], answer["counts"]["designs"]) == ("small", "run", 4)
    assert answer["timing"]["seconds"] > 0
    events = [json.loads(line) for line in err.splitlines()]
    assert {frozenset(event) for event in events} == {frozenset(EVENT)}
    assert {event["event"] for event in events} == {"progress"}
    assert [event["level"] for event in events][:3] == ["warm_start", "physical", "profile"]
    assert events[-1]["evaluated"] == answer["counts"]["evaluated"]


def test_several_objectives_give_the_front_as_one_object(call):
    cluster = {"chips": 16, "framework": "ideal"}
    write({**STUDY, "cluster": cluster, "objectives": ["tokens_per_dollar", "area"]})
    code, out, err = call("explore", "study.yaml", "--out", "run", "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer.keys() == CONTRACT | {"front", "front_plans"}
    assert answer["plans"] == {}
    assert len(answer["front"]) == len(answer["front_plans"]) > 1
    for point in answer["front"]:
        assert point.keys() == POINT | {"distinguishable"}
        assert list(point["objectives"]) == ["tokens_per_dollar", "area"]
        assert point["silicon"]["area_mm2"] == point["objectives"]["area"]
    assert "lower_bound" not in answer["certificate"]
    assert all(json.loads(line)["incumbent"] is None for line in err.splitlines())


def test_the_plan_files_of_the_best_are_read_by_the_other_commands(call):
    _, out, _ = call("explore", "study.yaml", "--out", "run", "--json")
    answer = json.loads(out)
    assert answer["plans"] == {name: f"run/best/{name}.yaml" for name in ("gpt2-1.5b", "reader")}
    for name, path in answer["plans"].items():
        code, out, err = call("estimate", path, "--json")
        assert (code, err) == (0, "")
        assert json.loads(out)["step_time_s"] == answer["best"]["jobs"][name]["step_time_s"]
        assert load_task(path).cluster.chips == 16


def test_every_point_of_a_front_has_plan_files_in_the_order_of_the_first_objective(call):
    write({**STUDY, "objectives": ["tokens_per_dollar", "area"], "cluster": {"chips": 16, "framework": "ideal"}})
    Path("run/front/9").mkdir(parents=True)
    for name in ("reader.yaml", "mine.txt"):
        Path("run/front/9", name).write_text("of an earlier result")
    Path("run").rename("before")
    _, out, _ = call("explore", "study.yaml", "--out", "run", "--json")
    Path("before/front").rename("run/front/8")  # a folder of somebody's own stays
    answer = json.loads(out)
    points = list(zip(answer["front"], answer["front_plans"], strict=True))
    points.sort(key=lambda each: -each[0]["objectives"]["tokens_per_dollar"])
    for number, (point, plans) in enumerate(points, 1):
        assert plans == {name: f"run/front/{number}/{name}.yaml" for name in ("gpt2-1.5b", "reader")}
        for name, path in plans.items():
            task = load_task(path)
            assert task.cluster.chip.name.endswith(f"-{point['design']}")
            taken = dt.evaluate(task.plan, task.job, task.cluster, task.framework, energy=False).step_time_s
            assert taken == point["jobs"][name]["step_time_s"]
    for name in ("reader.yaml", "mine.txt"):
        Path("run/front/8", name).write_text("of an earlier result")
    assert call("explore", "study.yaml", "--out", "run", "--resume")[0] == 0
    assert [path.name for path in Path("run/front/8").iterdir() if path.is_file()] == ["mine.txt"]


def test_reasons_are_said_after_the_answer_and_saved(call):
    code, answer, _ = call("explore", "study.yaml", "--out", "run")
    assert code == 0
    assert not Path("run/reasons.json").exists()
    code, out, _ = call("explore", "study.yaml", "--out", "run", "--resume", "--explain")
    assert code == 0
    assert out.startswith(answer)
    for words in ("Why design", "Bottleneck of reader", "Runner-ups", "What each variable gains", "by part"):
        assert words in out[len(answer) :]
    assert max(map(len, out[len(answer) :].splitlines())) <= 100
    saved = json.loads(Path("run/reasons.json").read_text())
    code, out, err = call("explore", "study.yaml", "--out", "run", "--resume", "--explain", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["reasons"] == saved
    (point,) = saved["points"]
    assert point["jobs"].keys() == {"gpt2-1.5b", "reader"}
    changed = {each["name"] for each in point["gains"]["changes"]}
    assert changed == {"hbm_stacks", "tensor_cores"}


def test_a_front_is_explained_point_by_point(call):
    write({**STUDY, "objectives": ["tokens_per_dollar", "area"], "candidates": ["h100-sxm"]})
    code, out, _ = call("explore", "study.yaml", "--out", "run", "--explain", "--json")
    assert code == 0
    answer = json.loads(out)
    points = answer["reasons"]["points"]
    assert len(points) == len(answer["front"]) > 1
    ordered = [point["objectives"]["tokens_per_dollar"] for point in points]
    assert ordered == sorted(ordered, reverse=True)
    assert any("chip" in each for each in points[0]["runner_ups"]["designs"])


def test_without_json_a_person_reads_the_answer_and_a_log_plain_lines(call):
    code, out, err = call("explore", "study.yaml", "--out", "run")
    assert code == 0
    for words in (
        "16 chips",
        "step time",
        " per step: ",
        "certificate  optimal",
        "4 in the space",
        "run/best/reader.yaml",
    ):
        assert words in out
    levels = [line.split(": ")[0].split()[-1] for line in err.splitlines()]
    assert levels[:3] == ["warm_start", "physical", "profile"]
    assert "of 4 designs" in err
    assert "\x1b" not in out + err


def test_a_front_is_a_table_in_the_order_of_its_first_objective(call):
    write({**STUDY, "objectives": ["area", "step_time"]})
    code, out, _ = call("explore", "study.yaml", "--out", "run")
    assert code == 0
    _, as_json, _ = call("explore", "study.yaml", "--out", "run", "--json", "--resume")
    front = sorted(json.loads(as_json)["front"], key=lambda point: point["objectives"]["area"])
    rows = [line.split()[0] for line in out.splitlines() if " mm2 " in line]
    assert rows == [str(point["design"]) for point in front]
    assert len(rows) > 1


def test_the_study_may_say_where_the_run_is_kept(call):
    write({**STUDY, "output": "kept", "objectives": ["area"]})
    code, out, _ = call("explore", "study.yaml", "--json")
    assert (code, json.loads(out)["run_dir"]) == (0, "kept")
    assert Path("kept/result.json").exists()
    code, out, _ = call("explore", "study.yaml", "--json", "--out", "other")
    assert (code, json.loads(out)["run_dir"]) == (0, "other")


def test_limits_that_leave_nothing_are_exit_3_and_name_the_one_that_binds(call):
    write({**STUDY, "limits": {"power_w": 10000, "area_mm2": 10}})
    code, out, err = call("explore", "study.yaml", "--out", "run", "--json")
    assert code == 3
    answer = json.loads(out)
    assert answer["best"] is None
    assert (answer["certificate"]["status"], answer["counts"]["kept"]) == ("infeasible", 0)
    last = json.loads(err.splitlines()[-1])
    assert last.keys() == {"event", "sentence"}
    assert last["event"] == "infeasible"
    assert last["sentence"].startswith("limits: exclude all 4 designs; area_mm2 <= 10")
    assert last["sentence"].endswith(".")
    assert not Path("run/best").exists()


def test_jobs_that_fit_on_no_design_are_exit_3(call):
    hardware = {**STUDY["hardware"], "set": {"hbm_stack_bytes": "1 GiB"}}
    write({**STUDY, "hardware": hardware, "objectives": ["step_time", "area"]})
    code, out, err = call("explore", "study.yaml", "--out", "run")
    assert code == 3
    assert "certificate  infeasible" in out
    assert err.splitlines()[-1].startswith("study: no plan fits on any of 4 designs; ")
    # the answer stays what it is
    code, out, _ = call("explore", "study.yaml", "--out", "run", "--json", "--resume")
    assert (code, json.loads(out)["front"]) == (3, [])


def test_mistakes_are_one_sentence_and_exit_2(refused):
    assert refused("none.yaml", "--out", "run").startswith("none.yaml: cannot be read")
    assert refused("study.yaml").startswith("--out: is missing; name a run directory")
    for flag, value in (("--workers", "2"), ("--address", "auto")):
        assert refused("study.yaml", "--out", "run", flag, value) == f"{flag}: requires Ray; add --executor ray."
    assert refused("study.yaml", "--out", "run", "--address", "auto") == "--address: requires Ray; add --executor ray."
    assert "--workers" in refused("study.yaml", "--out", "run", "--executor", "ray", "--workers", "0")
    assert "--executor" in refused("study.yaml", "--out", "run", "--executor", "spark")
    assert "study.yaml" in refused("study.yaml", "--out", "study.yaml")
    assert "is a file or inside one" in refused("study.yaml", "--out", "study.yaml/run")
    write({**STUDY, "objective": "area"})
    assert "did you mean 'objectives'" in refused("study.yaml", "--out", "run")
    assert not Path("run").exists()


def test_workers_of_a_ray_that_is_not_used_are_refused(refused):
    write({**STUDY, "executor": {"name": "ray"}})
    said = refused("study.yaml", "--out", "run", "--executor", "inline", "--workers", "2")
    assert said == "--workers: requires Ray; add --executor ray."


def test_no_arguments_are_one_sentence(refused):
    assert "FILE" in refused().upper()


def test_a_space_too_large_to_look_at_all_is_one_sentence(call):
    vary = {name: {"range": [1, 1000]} for name in ("tensor_cores", "vector_cores", "vector_lanes", "link_ports")}
    write({**STUDY, "hardware": {"base": "h100-sxm", "vary": vary}})
    code, out, err = call("explore", "study.yaml", "--out", "run", "--json")
    assert (code, out) == (2, "")
    assert "hardware: has 1,000,000,000,000 designs, too many to enumerate" in err
    assert "search.method" in err


def test_sampled_designs_take_one_number_of_chips(refused):
    write({**STUDY, "cluster": {"chips": [16, 32], "framework": "megatron-2022"}, "search": {"method": "random"}})
    assert "cluster.chips: has several numbers" in refused("study.yaml", "--out", "run")


def test_sampled_designs_are_no_more_than_asked_for_and_prove_nothing(call):
    write({**STUDY, "search": {"method": "random", "evaluations": 2}})
    code, out, _ = call("explore", "study.yaml", "--out", "run", "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["counts"]["searched"] <= 2
    assert answer["certificate"]["status"] == "feasible"
    assert 0 < answer["certificate"]["gap"] < 1
    assert answer["certificate"]["lower_bound"] < answer["best"]["objectives"]["step_time"]


def test_without_ray_the_sentence_says_how_to_install_it(refused, monkeypatch):
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "RAY_DEDUP_LOGS_SKIP_REGEX"):
        monkeypatch.setenv(name, "0")  # which is put back afterwards
    monkeypatch.setitem(sys.modules, "ray", None)
    sentence = refused("study.yaml", "--out", "run", "--executor", "ray")
    assert 'install it with `pip install "dovetail[cluster]"`' in sentence
    assert EXECUTORS.keys() == {"inline", "ray"}


def test_plan_files_that_cannot_be_written_are_one_sentence(call, refused):
    assert call("explore", "study.yaml", "--out", "run", "--json")[0] == 0
    for path in Path("run/best").iterdir():
        path.unlink()
    Path("run/best").rmdir()
    Path("run/best").write_text("in the way")
    assert "best" in refused("study.yaml", "--out", "run", "--resume")


def test_with_json_every_line_of_stderr_is_json(call):
    assert call("explore", "study.yaml", "--out", "run", "--json")[0] == 0
    part = Path("run/parts/warm_start-000000.parquet")
    part.write_bytes(part.read_bytes()[:-1])
    code, _, err = call("explore", "study.yaml", "--out", "run", "--json", "--resume")
    assert code == 0
    repairs = [event for event in map(json.loads, err.splitlines()) if event["event"] != "progress"]
    assert [event["event"] for event in repairs] == ["repair", "repair"]
    assert "batch 0 of level warm_start is run again" in repairs[0]["sentence"]
    part.write_bytes(part.read_bytes()[:-1])
    _, _, err = call("explore", "study.yaml", "--out", "run", "--resume")
    assert repairs[0]["sentence"] in err.splitlines()
