"""`dovetail estimate`: the fields others rely on, the view for reading, plans that do not fit, and CPU time."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import yaml

from dovetail import hardware
from dovetail.digests import package_digests
from dovetail.plans.plan_file import task_of
from dovetail.plans.provenance import question_digests
from dovetail.report.answer_fields import evaluation_fields
from dovetail.step.evaluate import evaluate
from dovetail.step.evaluation import Evaluation
from timing import least_cpu_seconds
from valid_plans import PLAN_FILES, with_changes

PUBLISHED = Path(__file__).parents[2] / "published"

#: Field → type, as JSON has it; others rely on these names.
CONTRACT = {
    "fits": bool,
    "step_time_s": float,
    "mfu": float,
    "tokens_per_s_per_chip": float,
    "breakdown": dict,
    "memory_bytes": dict,
    "energy_j": float,
    "provenance": dict,
}

#: Far more weights than one chip's memory.
TOO_LARGE = with_changes(
    PLAN_FILES["dense"],
    job={"model": "llama-3.1-405b"},
    plan={"pipeline_parallel": 4, "data_parallel": 2, "recompute": "full", "zero_stage": 0},
)

LARGEST = {
    "job": {"model": "llama-3.1-405b", "seq_len": 8192, "global_batch": 2048},
    "cluster": {"chip": "h100-sxm", "chips": 16384, "framework": "megatron"},
    "plan": {
        "tensor_parallel": 8, "pipeline_parallel": 16, "sequence_parallel": True, "zero_stage": 1,
        "recompute": "selective",
    },
}  # fmt: skip


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dovetail", "estimate", *arguments],
        capture_output=True, text=True, timeout=120, env={**os.environ, **environment},
    )  # fmt: skip


def estimate(document: dict) -> Evaluation:
    task = task_of(document, "case.yaml")
    return evaluate(task.plan, task.job, task.cluster, task.framework)


@pytest.fixture
def plan_file(tmp_path):
    def write(document: dict) -> str:
        path = tmp_path / "case.yaml"
        path.write_text(yaml.safe_dump(document))
        return str(path)

    return write


@pytest.mark.parametrize("name", PLAN_FILES)
def test_the_fields_of_the_answer(name):
    result = estimate(PLAN_FILES[name])
    task = task_of(PLAN_FILES[name], "case.yaml")
    fields = evaluation_fields(result, task.job, task.cluster, task.framework)
    answer = json.loads(json.dumps(fields, allow_nan=False))
    for field, kind in CONTRACT.items():
        assert isinstance(answer[field], kind), field
    memory = answer["memory_bytes"]
    assert memory["peak"] == pytest.approx(max(sum(stage.values()) for stage in memory["by_stage"]))
    assert len(memory["by_stage"]) == answer["plan"]["pipeline_parallel"]
    assert sum(answer["breakdown"].values()) == pytest.approx(answer["step_time_s"], rel=1e-12)
    assert min(answer["breakdown"].values()) >= 0
    assert 0 < answer["mfu"] < 1
    tokens = task.job.tokens_per_step / answer["step_time_s"] / result.plan.chips
    assert answer["tokens_per_s_per_chip"] == pytest.approx(tokens)
    assert set(answer["provenance"]) == {"version", "calibration", "energy", "memory", "versions", "digests"}
    asked = question_digests(task.job, task.cluster, task.framework)
    assert answer["provenance"]["digests"] == {**package_digests(), **asked}


def test_a_chip_without_power_or_energies_has_no_energy():
    cluster = {"chip": "tpu-v7x", "tiers": None, "framework": "ideal"}
    result = estimate(with_changes(PLAN_FILES["described"], cluster=cluster))
    assert result.energy_j is None
    assert "no TDP" in result.provenance["energy"]


def test_the_same_file_gives_the_same_bytes(plan_file):
    path = plan_file(PLAN_FILES["mixture"])
    first, second = (run(path, "--json", PYTHONHASHSEED=seed) for seed in ("1", "3"))
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout == second.stdout
    assert set(CONTRACT) <= set(json.loads(first.stdout))


def test_the_view_for_reading(plan_file):
    done = run(plan_file(PLAN_FILES["dense"]))
    assert (done.returncode, done.stderr) == (0, "")
    for words in ("small, 64 sequences of 2048", "32 × h100-sxm", "TP4", "of peak (MFU)", "tokens/s per chip",
                  "time of the busiest stage", "backward", "memory of stage ", " GiB of ", "█"):  # fmt: skip
        assert words in done.stdout


def test_a_plan_that_does_not_fit_is_an_answer_and_exit_code_3(plan_file):
    path = plan_file(TOO_LARGE)
    done = run(path, "--json")
    assert done.returncode == 3
    assert done.stderr.startswith(f"{path}: stage 1: does not fit: ")
    assert "GiB" in done.stderr
    assert done.stderr.endswith(".\n")
    assert done.stderr.removesuffix("\n").isprintable()
    answer = json.loads(done.stdout)
    assert answer["fits"] is False
    memory = answer["memory_bytes"]
    assert memory["usable"] == hardware.chip("h100-sxm").usable_bytes
    assert memory["missing"] == -memory["headroom"] == pytest.approx(memory["peak"] - memory["usable"])


def test_a_plan_that_does_not_fit_is_no_exception_in_python():
    result = estimate(TOO_LARGE)
    assert result.fits is False
    assert result.missing_bytes > 0
    assert result.step_time_s > 0
    fitting = estimate(PLAN_FILES["dense"])
    assert fitting.fits is True
    assert fitting.missing_bytes == 0


def test_a_warm_evaluation_of_the_largest_runs_takes_milliseconds():
    task = task_of(LARGEST, "case.yaml")
    warm = partial(evaluate, task.plan, task.job, task.cluster, task.framework)
    assert least_cpu_seconds(warm, 0.020) < 0.020


def cpu_seconds(*command: str, bytecode: Path) -> float:
    """CPU seconds of a new process that finds its modules as bytecode, as an installed package has them."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(bytecode)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], check=True, capture_output=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


#: What an estimate of a plan on a cluster does without.
UNNEEDED = (
    "numba", "llvmlite", "rich", "dovetail.accuracy", "dovetail.bounds", "dovetail.cli.plan", "dovetail.cost.mesh",
    "dovetail.explanation", "dovetail.exploration", "dovetail.hardware.silicon.wafer_check",
    "dovetail.hardware.wafer_file", "dovetail.launch", "dovetail.layout.encoding.document", "dovetail.mapping",
    "dovetail.models.huggingface", "dovetail.partition", "dovetail.plans.space", "dovetail.report", "dovetail.schedule",
    "dovetail.search", "dovetail.serve", "dovetail.simulation",
)  # fmt: skip


def test_an_answer_needs_no_compiler_and_no_other_command():
    path = PUBLISHED / "korthikanti-175b-selective.yaml"
    code = (
        "import sys\nfrom dovetail.cli import main\ntry:\n    main(['estimate', sys.argv[1]])\n"
        "except SystemExit as end:\n    assert end.code == 0\n    print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=True, capture_output=True, text=True)
    loaded = done.stderr.split()
    assert "dovetail.step.evaluate" in loaded
    assert not [name for name in loaded if name in UNNEEDED or name.startswith(tuple(f"{each}." for each in UNNEEDED))]


def test_a_new_process_answers_in_a_second_of_cpu(tmp_path: Path):
    measure = partial(cpu_seconds, bytecode=tmp_path)
    command = ("-m", "dovetail", "estimate", str(PUBLISHED / "korthikanti-175b-selective.yaml"), "--json")
    measure(*command)  # bytecode is compiled once per machine
    measured: list[tuple[float, float]] = []
    for _ in range(8):
        # where the libraries alone take longer than on a quiet machine, so may the answer right after them
        measured.append((measure("-c", "import numpy, pydantic, typer, yaml"), measure(*command)))
        libraries, answer = measured[-1]
        if answer < max(1.1, 6.0 * libraries):
            return
    pytest.fail(f"libraries and answer took {measured} s")
