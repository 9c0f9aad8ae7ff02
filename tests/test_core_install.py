"""Without extras: the same answers, and one sentence where a question needs more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from source_tree import ROOT, packages_of_extras

STUDY = """name: small
jobs: [{model: gpt3-1.3b, seq_len: 2048, global_batch: 64}]
hardware: {base: tpu-v4, vary: {tensor_cores: [4, 8]}}
cluster: {chips: 16, framework: ideal}
"""
#: Packing these on four cores needs the exact solver: their work would fit in 5 cycles, and they take 7.
OPERATORS = [(5, 2), (5, 1), (2, 2)]
INSTALL = 'which is not installed; run `pip install "dovetail[study]"`.'

#: Runs commands in one process, as if the packages were not there, and prints what each printed.
SCRIPT = """
import contextlib, io, json, sys
missing, commands = json.loads(sys.argv[1])
sys.modules.update(dict.fromkeys(missing))
from dovetail.cli import main
for command in commands:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(command)
        except SystemExit as ended:
            code = ended.code or 0
    sys.__stdout__.write(json.dumps([code, out.getvalue(), err.getvalue()]) + "\\n")
"""

PLAN = ("--model", "gpt2-1.5b", "--chip", "a100-40gb", "--chips", "4", "--global-batch", "8", "--seq-len", "1024")
#: One of each kind of question that needs no extra.
CORE = (
    ["plan", *PLAN, "--out", "plan.yaml", "--json"],
    ["estimate", "plan.yaml", "--json"],
    ["simulate", "plan.yaml", "--json"],
    ["fit", "--model", "gpt2-1.5b", "--chip", "a100-40gb", "--json"],
    ["export", "plan.yaml", "--to", "megatron", "--as", "slurm", "--out", "train.sbatch"],
    ["import", "train.sbatch", "--chip", "a100-40gb", "--model", "gpt2-1.5b", "--out", "imported.yaml"],
    ["schedule", "chain.json", "--json"],
    ["chips", "show", "h100-sxm", "--json"],
    ["wafers", "show", "watos-like", "--json"],
    ["models", "show", "gpt2-1.5b", "--json"],
)
#: Questions that need an extra: the study, if it runs, would make the folder of the last one.
MORE = (
    ["explore", "study.yaml", "--out", "run"],
    ["explore", "sampled.yaml", "--out", "run"],
    ["schedule", "operators.json"],
    ["explore", "study.yaml", "--out", "s3://user:secret@bucket/run"],
)


def asked_in(folder: Path) -> Path:
    """A new folder with the files that commands name."""
    folder.mkdir()
    (folder / "study.yaml").write_text(STUDY)
    (folder / "sampled.yaml").write_text(f"{STUDY}search: {{method: evolutionary, evaluations: 2}}\n")
    for name, operators in (("operators", OPERATORS), ("chain", OPERATORS[:1])):
        tasks = [
            {"name": f"task {number}", "modes": [[{"cycles": cycles, "tensor_cores": cores}]]}
            for number, (cycles, cores) in enumerate(operators)
        ]
        problem = {"tensor_cores": 4, "vector_cores": 0, "tasks": tasks}
        (folder / f"{name}.json").write_text(json.dumps(problem))
    return folder


def answers(folder: Path, missing: set[str], commands: Sequence[Sequence[str]]) -> list[tuple[int, Any, str]]:
    """Exit code, answer and complaints of commands in a process without these packages."""
    asked = json.dumps([sorted(missing), commands])
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, asked],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[tuple[int, Any, str]] = []
    for line in done.stdout.splitlines():
        code, out, err = json.loads(line)
        if out.startswith("{"):
            out = {name: value for name, value in json.loads(out).items() if name != "timing"}
        found.append((code, out, err))
    assert len(found) == len(commands)
    return found


def test_answers_are_the_same_without_extras(tmp_path):
    extras = packages_of_extras()
    assert {"ortools", "pyarrow", "optuna", "pandas", "duckdb", "ray", "torch", "huggingface_hub"} <= extras
    bare, full = asked_in(tmp_path / "bare"), asked_in(tmp_path / "full")
    without = answers(bare, extras, CORE)
    assert [code for code, _, _ in without] == [0] * len(CORE), without
    # complaints are left out: progress has times in it
    assert [answer[:2] for answer in without] == [answer[:2] for answer in answers(full, set(), CORE)]
    for name in ("plan.yaml", "train.sbatch", "imported.yaml"):
        assert (bare / name).read_bytes() == (full / name).read_bytes()


def test_a_question_that_needs_an_extra_says_which(tmp_path):
    folder = asked_in(tmp_path / "bare")
    found = answers(folder, packages_of_extras(), MORE)
    assert [answer[:2] for answer in found] == [(2, "")] * len(MORE)
    purposes = (
        "run: needs the package pyarrow to save a run",
        "search.method: needs the package optuna for evolutionary",
        "dovetail schedule: needs the package ortools to find the shortest schedule of this problem",
        "s3://...@bucket/run: needs the package pyarrow to read and write there",
    )
    assert [err for _, _, err in found] == [f"{purpose}, {INSTALL}\n" for purpose in purposes]
    assert not (folder / "run").exists(), "nothing to resume is left behind"
