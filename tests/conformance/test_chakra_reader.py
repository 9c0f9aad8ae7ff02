"""Chakra traces as the public package reads them: random plans, exported and decoded by its protobuf bindings.

The package (mlc-chakra, and protobuf) has an environment of its own; DOVETAIL_CHAKRA_PYTHON names its Python.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from chakra_bytes import CountedStep
from dovetail.plans.plan_file import Task, question_of, task_of
from dovetail.simulation.chakra_trace import GROUPS_FILE, INDEX_FILE, ChakraTraces, RankChoice, chakra_traces
from random_plans import random_plans_of
from valid_plans import EXPERTS, GPT, PLAN_FILES, model

PYTHON = os.environ.get("DOVETAIL_CHAKRA_PYTHON")
READER = Path(__file__).with_name("read_chakra.py")

LOG = logging.getLogger(__name__)

needs_reader = pytest.mark.skipif(PYTHON is None, reason="DOVETAIL_CHAKRA_PYTHON names no Python with mlc-chakra")

#: Model, chip, chips, sequences a step, tokens of a sequence, framework.
QUESTIONS = (
    (model(4), "h100-sxm", 16, 32, 2048, "megatron"),
    (model(4), "h100-sxm", 8, 8, 16384, "ideal"),
    (model(4, feed_forward=EXPERTS), "h100-sxm", 16, 32, 4096, "megatron"),
    (model(4, feed_forward=EXPERTS), "h800-sxm", 16, 16, 2048, "ideal"),
    (model(8) | {"head": {"tied": True}}, "h100-sxm", 8, 16, 2048, "megatron"),
    ("qwen3-0.6b", "a100-80gb", 8, 8, 4096, "torchtitan"),
    (GPT, "a100-80gb", 8, 16, 2048, "deepspeed"),
    (model(4, feed_forward=EXPERTS), "tpu-v5p", 16, 32, 4096, "maxtext"),
    (model(4), "h100-sxm", 16, 32, 4096, "fsdp"),
    (model(6), "h100-sxm", 24, 48, 2048, "ideal"),
)
#: Of each question at most, some of which have fewer; and of all.
MOST, PLANS = 125, 1000

Document = dict[str, Any]


def random_tasks(number: int) -> Iterator[tuple[str, Task]]:
    """So many plans of each question, all of which can be simulated."""
    for question, (described, chip, chips, batch, seq, name) in enumerate(QUESTIONS):
        document: Document = {
            "job": {"model": described, "seq_len": seq, "global_batch": batch},
            "cluster": {"chip": chip, "chips": chips, "framework": name},
        }
        asked = question_of(document, "question.yaml")
        drawn = random_plans_of(asked.job, asked.cluster, asked.framework, number, seed=question)
        for number_of_plan, plan in enumerate(drawn.plans):
            yield f"{question}-{number_of_plan}", Task(asked.job, asked.cluster, asked.framework, plan)


def read(root: Path) -> Document:
    """What the public reader finds, one process for all folders."""
    assert PYTHON is not None, "DOVETAIL_CHAKRA_PYTHON"
    done = subprocess.run([PYTHON, str(READER), str(root)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def export(task: Task, folder: Path, ranks: RankChoice = "distinct") -> tuple[int, int]:
    """Writes the traces of a plan; how many nodes, and bytes of all groups."""
    traces = chakra_traces(task.plan, task.job, task.cluster, task.framework, ranks)
    traces.write(folder)
    check_bytes(traces, task)
    return traces.num_nodes, sum(traces.bytes_per_group.values())


def check(folder: Path, files: Document) -> None:
    """Everything that the folder says is what was read, and every send has its receive."""
    index, groups = (json.loads((folder / name).read_text()) for name in (INDEX_FILE, GROUPS_FILE))
    sent = index["bytes_per_group"]
    assert set(groups) == set(sent) == {group for found in files.values() for group in found["groups"]}
    assert len(files) == index["written"]
    for stage in index["stages"]:
        for rank in {*map(int, files)} & {*stage["same_work"]}:
            found = files[str(rank)]
            assert found["version"] == "1.0.0"
            assert found["nodes"] == found["distinct"] == stage["nodes"]
            assert found["ordered"]
            assert found["groups"] == {group: sent[group] for group, ranks in groups.items() if rank in ranks}
    check_messages(files)


def check_bytes(traces: ChakraTraces, task: Task) -> None:
    """The bytes of groups inside a stage against those counted layer by layer, each node in whole bytes."""
    counted = CountedStep(task)
    for stage, by_axes in enumerate(counted.bytes_by_stage()):
        expected: dict[tuple[int, ...], float] = {}
        for axes, sent in by_axes.items():
            ranks = traces.ranks.along(stage, 0, tuple(axes))
            expected[ranks] = expected.get(ranks, 0.0) + sent
        for ranks, sent in expected.items():
            written = traces.bytes_per_group[traces.ranks.groups[ranks]]
            assert abs(written - sent) <= 0.5 * len(traces.nodes[stage]), (stage, ranks)


def check_messages(files: Document) -> None:
    """Between ranks that have a file, every send has its receive."""
    for rank, found in files.items():
        for ends in found["sends"]:
            source, target, *_ = ends.split()
            assert source == rank
            if target in files:
                assert files[target]["receives"][ends] == found["sends"][ends] == 1, ends
        for ends in found["receives"]:
            source, target, *_ = ends.split()
            assert target == rank
            if source in files:
                assert files[source]["sends"][ends] == 1, ends


@needs_reader
def test_plans_of_every_kind(tmp_path):
    for name, document in PLAN_FILES.items():
        task = task_of(document, "case.yaml")
        choices: tuple[RankChoice, ...] = ("distinct", "all") if task.plan.chips <= 16 else ("distinct",)
        for ranks in choices:
            export(task, tmp_path / f"{name} {ranks}", ranks)
    for folder, files in read(tmp_path)["folders"].items():
        check(tmp_path / folder, files)


@needs_reader
@pytest.mark.slow
def test_random_plans(tmp_path):
    written = [export(task, tmp_path / name) for name, task in islice(random_tasks(MOST), PLANS)]
    assert len(written) == PLANS
    answer = read(tmp_path)
    assert len(answer["folders"]) == PLANS
    for folder, files in answer["folders"].items():
        check(tmp_path / folder, files)
    nodes, sent = map(sum, zip(*written, strict=True))
    read_nodes = sum(found["nodes"] for files in answer["folders"].values() for found in files.values())
    assert nodes == read_nodes
    LOG.info("%d plans, %d nodes, %d bytes of groups, read by %s", PLANS, nodes, sent, answer["versions"])
