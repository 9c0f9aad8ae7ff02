"""Frameworks as data: published bytes per parameter, rules of their schedules, and `ideal` above them all."""

from __future__ import annotations

import copy
import pickle
from dataclasses import asdict, fields
from importlib.resources import files
from typing import Any, get_args

import pytest
import yaml

from dovetail import frameworks
from dovetail.documents import validate
from dovetail.frameworks import Framework
from dovetail.frameworks.framework import FrameworkSpec, PipelineSchedule
from dovetail.frameworks.parameter_bytes import state_bytes

NAMES = ["deepspeed", "fsdp", "ideal", "maxtext", "megatron", "megatron-2022", "torchtitan", "wafer"]
SHARDS = (1, 2, 8, 64)


def document(name: str) -> dict[str, Any]:
    entry = files("dovetail.frameworks") / "data" / f"{name}.yaml"
    return yaml.safe_load(entry.read_text(encoding="utf-8"))


def test_the_catalogue_holds_these_frameworks():
    assert list(frameworks.names()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_framework_is_complete(name):
    framework = frameworks.load(name)
    assert framework.name == name
    assert framework.version
    assert framework.source
    # FSDP has no pipelines, and those of DeepSpeed are code
    assert {"1f1b", "gpipe"} & set(framework.pipeline_schedules) or name in ("fsdp", "deepspeed")
    assert {precision for precision, _ in framework.states} >= {"bf16", "fp32"}
    assert hash(framework) == hash(frameworks.load(name))
    assert copy.deepcopy(framework) == framework
    assert pickle.dumps(framework)


@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize(
    ("name", "precision", "zero_stage", "stays", "divided"),
    [
        # Megatron-LM, docs/user-guide/features/dist_optimizer.md
        ("megatron", "fp16", 0, 20, 0),
        ("megatron", "fp16", 1, 4, 16),
        ("megatron", "bf16", 0, 18, 0),
        ("megatron", "bf16", 1, 6, 12),
        ("megatron", "fp32", 0, 16, 0),
        ("megatron", "fp32", 1, 8, 8),
        # Rajbhandari et al., ZeRO, figure 1: 2 + 2 + K with K = 12
        ("deepspeed", "fp16", 0, 16, 0),
        ("deepspeed", "fp16", 1, 4, 12),
        ("deepspeed", "fp16", 2, 2, 14),
        ("deepspeed", "fp16", 3, 0, 16),
        # FSDP2: float32 shards of weights, gradients and two moments
        ("torchtitan", "bf16", 3, 0, 16),
        ("torchtitan", "bf16", 2, 2, 16),
        ("maxtext", "bf16", 3, 0, 16),
    ],
)
def test_published_bytes_per_parameter(name, precision, zero_stage, stays, divided, shards):
    found = frameworks.load(name).bytes_per_parameter(precision, zero_stage=zero_stage, shards=shards)
    assert found == pytest.approx(stays + divided / shards)


def test_an_optimizer_of_one_state_needs_less():
    megatron = frameworks.load("megatron")
    assert megatron.bytes_per_parameter("bf16", optimizer="lion") == 14
    assert megatron.bytes_per_parameter("bf16", optimizer="sgd") == 10


def test_parts_add_up_to_the_whole():
    megatron = frameworks.load("megatron")
    parts = state_bytes(1.0, 1 / 4, 1, megatron.state_bytes("bf16").parameter_bytes("adamw"))
    assert parts == (2, 4, 3)
    assert megatron.bytes_per_parameter("bf16", zero_stage=1, shards=4) == 9


@pytest.mark.parametrize("name", NAMES)
def test_nothing_runs_that_ideal_does_not(name):
    framework, ideal = frameworks.load(name), frameworks.load("ideal")
    for field in ("pipeline_schedules", "zero_stages", "zero_stages_with_pipeline", "context_parallel", "recompute"):
        assert set(getattr(framework, field)) <= set(getattr(ideal, field))
    assert set(framework.expert_parallel) <= set(ideal.expert_parallel)
    for precision, _ in framework.states:
        for stage in framework.zero_stages:
            for shards in SHARDS:
                ours = ideal.bytes_per_parameter(precision, zero_stage=stage, shards=shards)
                assert ours <= framework.bytes_per_parameter(precision, zero_stage=stage, shards=shards)
    for allowance in ("context_bytes", "allocator_overhead", "collective_buffer_bytes"):
        assert getattr(ideal, allowance).value <= getattr(framework, allowance).low


def test_ideal_has_every_schedule_and_hides_everything():
    ideal = frameworks.load("ideal")
    assert set(ideal.pipeline_schedules) == set(get_args(PipelineSchedule))
    overlaps = asdict(ideal.overlaps)
    assert set(overlaps.pop("pipeline_transfers")) == set(ideal.pipeline_schedules)
    assert overlaps.pop("tensor_backward") == 0.0  # all of it is hidden, not a part
    assert set(overlaps.values()) == {"always"}


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
@pytest.mark.parametrize("microbatches", range(1, 33))
def test_microbatches_of_an_interleaved_schedule(stages, microbatches):
    # Megatron-LM: M modulo the number of stages; PyTorch, ScheduleInterleaved1F1B: modulo the number of rounds
    assert frameworks.load("megatron").can_interleave(microbatches, stages) == (microbatches % stages == 0)
    rounds = max(1, microbatches // stages)
    assert frameworks.load("torchtitan").can_interleave(microbatches, stages) == (microbatches % rounds == 0)
    assert frameworks.load("ideal").can_interleave(microbatches, stages)
    assert not frameworks.load("deepspeed").can_interleave(microbatches, stages)


def test_a_plan_the_framework_cannot_run_is_refused(refusal):
    torchtitan = frameworks.load("torchtitan")
    assert "zero_stage" in refusal(torchtitan.bytes_per_parameter, "bf16", zero_stage=1)
    assert "precision" in refusal(torchtitan.bytes_per_parameter, "fp16")
    assert "optimizer" in refusal(torchtitan.bytes_per_parameter, "bf16", optimizer="adam")
    assert "shards" in refusal(torchtitan.bytes_per_parameter, "bf16", shards=0)


def test_a_wrong_name(refusal):
    assert "did you mean 'megatron'" in refusal(frameworks.load, "megatronn")


def test_a_framework_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(document("megatron") | {"name": "mine", "zero_stages_with_pipeline": [0, 1, 2]}))
    assert frameworks.load(str(path)).zero_stages_with_pipeline == (0, 1, 2)


def test_a_file_has_the_fields_of_a_framework():
    assert set(FrameworkSpec.model_fields) == {field.name for field in fields(Framework)}


WRONG: list[Any] = [{"not": "this"}, "nonsense", -1, 1e9, float("nan"), None, True, ["nonsense"], [[1]], "x" * 3000]
#: What is right for some field after all.
RIGHT_AFTER_ALL = {
    "version": "nonsense",
    "source": "nonsense",
    "name": "nonsense",
    "recompute_modules": ["nonsense"],
    "excluded": ["nonsense"],
}


@pytest.mark.parametrize("field", document("megatron"))
def test_a_wrong_value_is_refused_by_its_name(field, refusal):
    right = document("megatron")
    for value in WRONG:
        if value == RIGHT_AFTER_ALL.get(field) or (isinstance(right[field], bool) and value is True):
            continue
        sentence = refusal(validate, FrameworkSpec, right | {field: value}, "mine.yaml")
        assert sentence.startswith("mine.yaml: ")
        assert field in sentence


@pytest.mark.parametrize("field", ["states", "overlaps", "context_bytes", "allocator_overhead"])
def test_a_wrong_value_inside_is_refused_by_its_name(field, refusal):
    right = document("megatron")
    inner = right[field]["bf16"] if field == "states" else right[field]
    for name in inner:
        wrong = copy.deepcopy(right)
        place = wrong[field]["bf16"] if field == "states" else wrong[field]
        place[name] = {"not": "this"}
        assert name in refusal(validate, FrameworkSpec, wrong, "mine.yaml")
        place.pop(name)
        place[f"{name}x"] = 1
        assert f"did you mean '{name}'" in refusal(validate, FrameworkSpec, wrong, "mine.yaml")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"zero_stages": [0, 1]}, None),
        ({"zero_stages": [0]}, "zero_stages_with_pipeline"),
        ({"pipeline_schedules": ["1f1b"]}, "overlaps.pipeline_transfers"),
        ({"recompute": ["none", "full"]}, None),
        ({"launch": "slurm"}, "launch"),
        ({"doubts": {"colour": "grey"}}, "doubts.colour"),
    ],
)
def test_fields_that_contradict_each_other(change, named, refusal):
    changed = document("megatron") | change
    if named is None:
        assert validate(FrameworkSpec, changed, "mine.yaml")
    else:
        assert named in refusal(validate, FrameworkSpec, changed, "mine.yaml")
