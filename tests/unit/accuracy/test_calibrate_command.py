"""`dovetail calibrate`: numbers, errors and files for readers and programs; wrong input is answered by one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import yaml
from own_runs import ROWS, TRUTH, made, nccl_output, write_made
from test_gemm_timings import file_of
from test_gemm_timings import made as products

import dovetail as dt
from dovetail.accuracy import Prediction, predict, read_runs
from dovetail.cli import main
from dovetail.plans.plan_file import load_task
from dovetail.step.evaluate import evaluate

HEAVY = {"numpy", "torch", "numba", "ortools", "pyarrow", "optuna", "ray", "yaml"}
CHIP, CLUSTER = "h100-sxm-calibrated.yaml", "h100-sxm-calibrated-cluster.yaml"
PLAN = f"""
job: {{model: llama-3-8b, seq_len: 8192, global_batch: 128}}
cluster: {{name: {CLUSTER}, chips: 64}}
plan: {{tensor_parallel: 2, zero_stage: 1}}
"""


@pytest.fixture(scope="module")
def runs_text(tmp_path_factory):
    path = tmp_path_factory.mktemp("made") / "runs.csv"
    write_made(path, TRUTH)
    return path.read_text()


@pytest.fixture
def call(tmp_path, monkeypatch, capsys, runs_text):
    """Runs a command beside a file of made-up runs; returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "runs.csv").write_text(runs_text)

    def command(*arguments: str, name: str = "calibrate") -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([name, *arguments])
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    return command


def test_json_has_numbers_errors_and_files(call, tmp_path):
    code, out, err = call("runs.csv", "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["chip"] == "h100-sxm"
    assert answer["rows"] == {"read": 6, "used": 6, "refused": []}
    assert answer["parameters"].keys() >= TRUTH.keys()
    for name, value in TRUTH.items():
        number = answer["parameters"][name]
        assert number["rests_on"] == "6 runs"
        assert number["after"] == pytest.approx(value, rel=0.12)
    assert answer["after"]["mape"] < answer["cross_validated"]["mape"] < answer["before"]["mape"]
    assert answer["cross_validated"]["folds"] == 6
    assert answer["better_than_before"] is True
    assert answer["files"] == [CHIP, CLUSTER]
    files = {name: (tmp_path / name).read_bytes() for name in answer["files"]}
    assert call("runs.csv", "--json", "--force")[1] == out
    assert {name: (tmp_path / name).read_bytes() for name in files} == files


def test_the_view_has_the_same_figures_and_fits_a_terminal(call):
    answer = json.loads(call("runs.csv", "--json")[1])
    code, view, err = call("runs.csv", "--force")
    assert (code, err) == (0, "")
    lines = view.splitlines()
    assert lines[0].startswith("chip    h100-sxm (")
    assert lines[1] == "runs    runs.csv: 6 used, 0 refused"
    for line, part in zip(lines[2:5], ("before", "after", "cross_validated"), strict=True):
        assert f"MAPE {answer[part]['mape']:.1%}" in line
    row = next(line.split() for line in lines if line.startswith(" matrix.half "))
    number = answer["parameters"]["matrix.half"]
    assert row[1:3] == [f"{number['before']:.3f}", f"{number['after']:.3f}"]
    assert lines[-2:] == [f"wrote {CHIP}", f"wrote {CLUSTER}"]
    assert "warning" not in view
    assert [line for line in lines if len(line) > 80] == []


def test_the_files_load_and_price_the_same(call, tmp_path):
    answer = json.loads(call("runs.csv", "--json")[1])
    chip, cluster = dt.hardware.chip(CHIP), dt.hardware.cluster(CLUSTER)
    assert chip.calibration is not None
    written = {name: n["after"] for name, n in answer["parameters"].items() if n["written"]}
    assert dict(chip.calibration.values) == written
    assert cluster.chip == chip
    measured = read_runs("runs.csv")
    assert cluster.tiers == measured.runs[0].task.cluster.tiers
    off = []
    for run in measured.runs:
        task = run.task
        took = evaluate(task.plan, task.job, cluster, task.framework).step_time_s
        off.append(abs(took / run.step_time_s - 1))
    assert sum(off) / len(off) == pytest.approx(answer["after"]["mape"], rel=1e-9)


def test_the_files_serve_other_commands(call, tmp_path):
    call("runs.csv")
    code, out, err = call("show", CHIP, name="chips")
    assert (code, err) == (0, "")
    values = json.loads(call("show", CHIP, "--json", name="chips")[1])["calibration"]["values"]
    assert f"\nmeasured  matrix.half {values['matrix.half']:.4g}, " in out
    (tmp_path / "plan.yaml").write_text(PLAN)
    code, out, err = call("plan.yaml", "--json", name="estimate")
    assert (code, err) == (0, "")
    assert json.loads(out)["provenance"]["calibration"].startswith("fitted on this chip's own measurements (fitted on")
    # more chips than were measured: nodes stay as they are, and the network is the runs'
    tiers = load_task("plan.yaml").cluster.tiers
    assert [(t.size, t.bytes_per_s) for t in tiers] == [(8, 450e9), (64, 3200e9 / 64)]


def test_the_chip_file_can_stand_in_a_row_of_runs(call, tmp_path, runs_text):
    call("runs.csv")
    before = json.loads(call("runs.csv", "--json", "--force")[1])["after"]
    (tmp_path / "again.csv").write_text(runs_text.replace("h100-sxm", CHIP))
    assert not read_runs("again.csv").refused
    answer = json.loads(call("again.csv", "--json", "--force")[1])
    assert answer["before"] == before


def test_one_node_does_not_become_the_whole_cluster(call, tmp_path):
    rows = [row | {"num_chips": "8", "dp": str(8 // int(row["tp"]) // int(row["pp"]))} for row in ROWS[2:]]
    write_made(tmp_path / "node.csv", TRUTH, rows)
    assert call("node.csv")[0] == 0
    assert [tier.size for tier in dt.hardware.cluster(CLUSTER).tiers] == [8]
    assert [tier.size for tier in dt.hardware.cluster(CLUSTER, 32).tiers] == [8, 32]


def test_timings_alone(call, tmp_path):
    (tmp_path / "gemm.csv").write_text(file_of([products("h100-sxm", "bf16", 0.6, 0.7)]))
    (tmp_path / "one.log").write_text(nccl_output(0.7, 1.2e-5, 1.0))
    (tmp_path / "four.log").write_text(nccl_output(0.7, 1.2e-5, 0.6, hosts=4))
    answer = json.loads(call("--gemm", "gemm.csv", "--chip", "h100-sxm", "--json")[1])
    assert answer["files"] == [CHIP]
    assert (answer["before"], answer["after"], answer["cross_validated"]) == (None, None, None)
    assert answer["timings"]["products"]["after"] < answer["timings"]["products"]["before"]
    options = ("--gemm", "gemm.csv", "--nccl", "one.log", "--nccl", "four.log", "--chip", "h100-sxm", "--force")
    code, view, err = call(*options)
    assert (code, err) == (0, "")
    assert " collective_launch_s " in view
    assert "12 us" in view
    assert "unsure" not in view
    chip = dt.hardware.chip(CHIP)
    assert chip.calibration is not None
    found = dict(chip.calibration.values)
    assert found["network"] == pytest.approx(0.6, rel=0.03)
    assert found["matrix.half"] == pytest.approx(0.6, rel=0.02)
    assert dt.hardware.cluster(CLUSTER).chips == 32


def test_timings_and_runs_together(call, tmp_path):
    (tmp_path / "one.log").write_text(nccl_output(TRUTH["link"], 1.2e-5, 1.0))
    answer = json.loads(call("runs.csv", "--nccl", "one.log", "--json")[1])
    assert answer["parameters"]["link"]["after"] == pytest.approx(TRUTH["link"], rel=0.03)
    assert answer["parameters"]["link"]["rests_on"].startswith("21 collectives")


def test_a_fit_that_gains_nothing_says_so_and_is_written(call, tmp_path):
    write_made(tmp_path / "shipped.csv", {})
    lines = (tmp_path / "shipped.csv").read_text().splitlines()
    column = lines[0].split(",").index("step_time_s")
    for index, factor in enumerate((1.04, 0.96, 0.96, 1.04, 1.04, 0.96), start=1):
        cells = lines[index].split(",")
        cells[column] = repr(float(cells[column]) * factor)
        lines[index] = ",".join(cells)
    (tmp_path / "noise.csv").write_text("\n".join(lines))
    code, view, _ = call("noise.csv")
    assert code == 0
    assert "warning: on runs it has not seen, the fit is no better than the shipped numbers" in view
    assert (tmp_path / CHIP).exists()
    (tmp_path / "one.csv").write_text("\n".join(lines[:2]))
    assert "warning: one configuration cannot be cross-validated" in call("one.csv", "--force")[1]


def test_rows_that_cannot_be_used_are_named(call, tmp_path, runs_text):
    first = runs_text.splitlines()[1]
    wrong = [first.replace("run 0", f"wrong {n}").replace("h100-sxm", "abacus") for n in range(7)]
    other = first.replace("h100-sxm", "a100-80gb")
    (tmp_path / "mixed.csv").write_text("\n".join([*runs_text.splitlines(), *wrong, other]))
    code, out, err = call("mixed.csv")
    assert (code, out) == (2, "")
    assert err == "mixed.csv: has runs of a100-80gb, h100-sxm; say with --chip which to calibrate.\n"
    view = call("mixed.csv", "--chip", "h100-sxm")[1]
    assert "mixed.csv: 6 used, 7 refused, 1 of another chip or tier" in view
    assert view.count("\nrefused ") == 5
    assert "and 2 more: see --json" in view


def test_files_that_exist_stay(call, tmp_path):
    (tmp_path / CLUSTER).write_text("mine")
    code, out, err = call("runs.csv")
    assert (code, out) == (2, "")
    assert err.startswith(f"{CLUSTER}: already exists")
    assert not (tmp_path / CHIP).exists()
    (tmp_path / "there").mkdir()
    assert json.loads(call("runs.csv", "--out", "there", "--json")[1])["files"][0] == os.path.join("there", CHIP)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "has no measurements to fit"),
        (["absent.csv"], "absent.csv: cannot be read"),
        (["runs.csv", "--out", "nowhere"], "nowhere: is not a folder"),
        (["runs.csv", "--chip", "abacus"], "'abacus' is not in the catalogue"),
        (["runs.csv", "--chip", "b200"], "runs.csv: has no run of b200 that can be predicted among 6 rows"),
        (["--gemm", "absent.csv", "--chip", "h100-sxm"], "absent.csv: cannot be read"),
        (["--nccl", "runs.csv", "--chip", "h100-sxm"], "runs.csv: holds no results of nccl-tests"),
        (["--nccl", "runs.csv"], "--chip: is missing"),
        (["--gemm", "runs.csv", "--chip", "h100-sxm"], "runs.csv: has no column"),
        (["--colour"], "dovetail: "),
    ],
)
def test_wrong_input_is_one_sentence(call, arguments, words):
    for options in ((), ("--json",)):
        code, out, err = call(*arguments, *options)
        assert (code, out) == (2, "")
        assert words in err
        assert err.count("\n") == 1
        assert err.endswith(".\n")


def test_a_written_chip_is_the_catalogues_but_for_what_was_measured(call):
    from dovetail.documents import to_yaml
    from dovetail.hardware.chip import ChipSpec
    from dovetail.hardware.write import chip_document, cluster_document

    for name in dt.hardware.chip_names():
        chip = dt.hardware.chip(name)
        document = yaml.safe_load(to_yaml(chip_document(chip)))
        assert ChipSpec.model_validate(document).chip() == chip
    for name in dt.hardware.cluster_names():
        cluster = dt.hardware.cluster(name)
        document = yaml.safe_load(to_yaml(cluster_document(cluster, cluster.name, cluster.source)))
        again = dt.hardware.cluster_from(document, name)
        assert (again.chip, again.chips, again.tiers) == (cluster.chip, cluster.chips, cluster.tiers)


def test_unseen_runs_of_the_same_cluster_gain(call, tmp_path):
    """The point of it all: a plan that was never measured is predicted better on the calibrated cluster."""
    call("runs.csv")
    unseen = [row | {"global_batch": "128", "micro_batch": "1"} for row in ROWS[:2]]
    runs = made(tmp_path, TRUTH, unseen).runs
    before = [answer.step_time_ratio - 1 for answer in predict(runs) if isinstance(answer, Prediction)]
    cluster = dt.hardware.cluster(CLUSTER)
    for run, off in zip(runs, before, strict=True):
        task = run.task
        after = evaluate(task.plan, task.job, cluster, task.framework).step_time_s / run.step_time_s - 1
        assert abs(after) < 0.4 * abs(off)


def test_help_loads_nothing_heavy():
    program = (
        "import sys\nfrom dovetail.cli import main\ntry:\n    main(sys.argv[1:])\n"
        "except SystemExit as end:\n    assert not end.code\nprint(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "calibrate", "--help"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert {name.partition(".")[0] for name in done.stderr.split()} & HEAVY == set()
