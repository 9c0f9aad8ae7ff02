"""config.json → launch file → the framework's own parser and builder → import: the same model and plan.

One process per parser, in environments of their own: DOVETAIL_LAUNCH_PYTHON (constraints-launch.txt),
DOVETAIL_MEGATRON (a folder with megatron-0.16 and megatron-0.19, unpacked), DOVETAIL_MAXTEXT (an environment whose
`src` holds MaxText). What is asked is in the probes; nothing of theirs is imported here.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_launch_parsers import parsed

from dovetail import models
from dovetail.errors import InputError
from dovetail.launch.targets import EXPORTERS, read_launch
from dovetail.models import Model, model_graph
from dovetail.models.catalogue import document_of
from dovetail.models.feed_forward import Mixture
from dovetail.models.huggingface import from_huggingface
from dovetail.models.latent_attention import LatentAttention
from dovetail.plans.plan_file import Task, task_of

PROBES = Path(__file__).with_name("probes")
CONFIGS: dict[str, dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[1] / "published" / "huggingface_configs.yaml").read_text(encoding="utf-8")
)
PYTHON, MEGATRON, MAXTEXT = (os.environ.get(f"DOVETAIL_{name}") for name in ("LAUNCH_PYTHON", "MEGATRON", "MAXTEXT"))
SAMPLE = ("deepseek-v3", "gpt-oss-20b", "llama-3.1-8b", "mistral-7b", "qwen2.5-7b", "qwen3-30b-a3b")

#: What a probe cannot build on a CPU although the file is right, and why.
NOT_BUILT = {
    ("megatron-0.19", "deepseek-v2-lite"): "its layers for CPUs want a query latent where there is none",
}
Facts = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """A framework's probe: how it is started, and what its files are called."""

    target: str
    release: str | None
    suffix: str
    command: tuple[str, ...]
    path: str = ""
    #: of models of the catalogue it takes at least so many
    least: int = 0


ASKED = {
    "megatron-0.19": Asked(
        "megatron", "0.19", ".args@64", (str(PYTHON), "megatron.py"), f"{MEGATRON}/megatron-0.19", 43
    ),
    "megatron-0.16": Asked(
        "megatron", "0.16", ".args@64", (str(PYTHON), "megatron.py"), f"{MEGATRON}/megatron-0.16", 41
    ),
    "torchtitan": Asked("torchtitan", None, ".py:recipe", (str(PYTHON), "torchtitan.py"), "", 35),
    "maxtext": Asked("maxtext", None, ".yml", (f"{MAXTEXT}/bin/python", "maxtext.py"), f"{MAXTEXT}/src", 33),
}


def imported(name: str, folder: Path) -> Model:
    """The model that a config.json describes."""
    path = folder / name / "config.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(CONFIGS[name]), encoding="utf-8")
    return from_huggingface(path)


def written(asked: Asked, names: Iterator[str] | tuple[str, ...], folder: Path) -> dict[str, tuple[Task, str]]:
    """Tasks of models and their launch files; models the framework does not train are refused with a sentence."""
    found: dict[str, tuple[Task, str]] = {}
    for name in names:
        model = imported(name, folder)
        job = {"model": document_of(model), "seq_len": min(4096, model.max_seq_len), "global_batch": 256}
        cluster = {"chip": "h100-sxm", "chips": 64, "framework": asked.target}
        zero = 1 if asked.target == "megatron" else 3
        plan = {"zero_stage": zero, "micro_batch": 2, "recompute": "full"}
        try:
            task = task_of({"job": job, "cluster": cluster, "plan": plan}, name)
            found[name] = task, EXPORTERS[asked.target].export(task, asked.release).text
        except InputError as refusal:
            assert refusal.where in (f"{name}: job.model", "job: model"), refusal  # noqa: PT017
    return found


def asked_facts(asked: Asked, files: Mapping[str, tuple[Task, str]], folder: Path) -> dict[str, Facts]:
    """What a framework made of the files, all in one process."""
    arguments: dict[str, str] = {}
    for name, (_, text) in files.items():
        stem = "own_" + name.replace(".", "_").replace("-", "_")
        plain = asked.suffix.partition("@")[0].partition(":")[0]
        (folder / f"{stem}{plain}").write_text(text, encoding="utf-8")
        arguments[name] = f"{stem}{asked.suffix}"
    program, script = asked.command
    # compiled once, and kept: the frameworks are large
    environment = {**os.environ, "PYTHONPATH": asked.path, "PYTHONDONTWRITEBYTECODE": ""}
    command = [program, str(PROBES / script), *arguments.values()]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=1800, cwd=folder, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return {name: found[argument] for name, argument in arguments.items()}


def radians(model: Model) -> list[float]:
    """How far each pair of dims turns per position, by the formulas of transformers."""
    mixer = next(block.mixer for block in model.blocks.values() if block.mixer is not None)
    whole = mixer.rope_dim if isinstance(mixer, LatentAttention) else getattr(mixer, "head_dim", 0)
    dims = whole if isinstance(mixer, LatentAttention) else int(whole * model.rotary.share)
    base, scaling = model.rotary.base, model.rotary.scaling
    plain = [base ** (-2 * i / dims) for i in range(dims // 2)]
    if scaling is None:
        return plain
    assert scaling.original_seq_len is not None
    if scaling.kind == "llama3":
        return [_llama3(each, scaling) for each in plain]
    assert scaling.kind == "yarn"

    length = scaling.original_seq_len

    def dim_of(turns: float) -> float:
        return dims * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = dim_of(scaling.beta_fast), dim_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    ramp = [min(max((i - low) / (high - low if high > low else 0.001), 0), 1) for i in range(dims // 2)]
    return [each / scaling.factor * r + each * (1 - r) for each, r in zip(plain, ramp, strict=True)]


def _llama3(each: float, scaling: Any) -> float:
    wavelength = 2 * math.pi / each
    if wavelength < scaling.original_seq_len / scaling.high_frequency:
        return each
    if wavelength > scaling.original_seq_len / scaling.low_frequency:
        return each / scaling.factor
    share = (scaling.original_seq_len / wavelength - scaling.low_frequency) / (
        scaling.high_frequency - scaling.low_frequency
    )
    return (1 - share) * each / scaling.factor + share * each


def router(model: Model) -> tuple[Any, ...] | None:
    """Score function, scale, groups, chosen groups, chosen experts and whether a bias corrects the choice."""
    for block in model.blocks.values():
        half = block.feed_forward
        if isinstance(half, Mixture):
            groups = (half.groups, half.top_groups) if half.groups > 1 else (1, 1)
            score = "sigmoid" if half.score == "sigmoid" else "softmax"
            return score, half.routed_scale, *groups, half.top_k, half.correction_bias
    return None


def understood(target: str, facts: Facts) -> Facts:
    """The same facts out of each framework's words."""
    build = facts if target == "torchtitan" else facts["build"]
    found: Facts = {"parameters": build.get("parameters"), "norm_eps": build.get("norm_eps")}
    match target:
        case "megatron":
            found["radians"] = build.get("radians_per_position")
            found["router"] = facts["num_moe_experts"] and (
                facts["moe_router_score_function"], facts["moe_router_topk_scaling_factor"] or 1.0,
                facts["moe_router_num_groups"] or 1, facts["moe_router_group_topk"] or 1, facts["moe_router_topk"],
                facts["moe_router_enable_expert_bias"],
            )  # fmt: skip
        case "torchtitan":
            (found["radians"],) = facts["radians_per_position"]
            names = ("score_func", "route_scale", "num_expert_groups", "num_limited_groups", "top_k")
            found["router"] = facts["experts"] and (
                *(facts["experts"][0][name] or 1 for name in names),
                facts["experts"][0]["correction_bias_rate"] is not None,
            )
        case _:
            assert build["not_the_same_model"] == []
            rotary = build["rotary"]
            found["radians"] = rotary[0]["radians_per_position"] if rotary else None
            found["router"] = facts["num_experts"] > 1 and (
                facts["routed_score_func"] or "softmax", facts["routed_scaling_factor"],
                max(facts["n_routing_groups"], 1), max(facts["topk_routing_group"], 1), facts["num_experts_per_tok"],
                False,
            )  # fmt: skip
    return found


def check(name: str, target: str, facts: Facts, task: Task) -> None:
    """A framework's facts are the model's."""
    assert "error" not in facts, (name, facts["error"])
    model, found = task.job.model, understood(target, facts)
    assert found["parameters"] == model_graph(model).parameters(), name
    assert found["norm_eps"] == [model.norm_epsilon], name
    assert (found["router"] or None) == router(model), name
    rotary = any(getattr(block.mixer, "rotary", False) for block in model.blocks.values())
    assert bool(found["radians"]) == rotary, name
    if rotary:
        assert found["radians"] == pytest.approx(radians(model), rel=2e-6), name


def check_import(asked: Asked, text: str, task: Task) -> None:
    """What is read back is the same plan of the same model."""
    where = "written.py" if asked.target == "torchtitan" else "written"
    reading = read_launch(text, where, asked.target, 64)
    assert reading.unknown == ()
    cluster = {"chip": "h100-sxm", "chips": 64, "framework": reading.framework}
    back = task_of({"job": dict(reading.job), "cluster": cluster, "plan": dict(reading.plan)}, "back")
    assert figures(back.job.model) == figures(task.job.model), task.job.model.name
    assert degrees(back) == degrees(task)
    assert (back.job.seq_len, back.job.global_batch) == (task.job.seq_len, task.job.global_batch)


def degrees(task: Task) -> list[Any]:
    """What of a plan every launch file states."""
    fields = (
        "tensor_parallel", "pipeline_parallel", "context_parallel", "data_parallel", "expert_parallel", "zero_stage",
        "zero_group", "micro_batch", "recompute", "num_microbatches",
    )  # fmt: skip
    return [getattr(task.plan, field) for field in fields]


def figures(model: Model) -> Facts:
    """What a model is, whatever it and its blocks are called; positions no launch states aside."""
    left_out = {"name", "source", "note", "published_parameters", "blocks", "layers", "max_seq_len"}
    found = model.model_dump(exclude=left_out)
    order = [model.blocks[name] for part in model.layers for name in part.blocks * part.repeat]
    found["layers"] = [block.model_dump() for block in order]
    for layer in found["layers"]:
        half = layer["feed_forward"]
        if half is not None and half["kind"] == "mixture" and half["score"] == "softmax" and half["renormalise"]:
            half["score"] = "top_k_softmax"
    if found["multi_token_prediction"] is not None:
        found["multi_token_prediction"]["block"] = None
    return found


@pytest.mark.skipif(PYTHON is None, reason="DOVETAIL_LAUNCH_PYTHON names no Python with the parsers")
def test_a_sample_is_the_same_model_in_torchtitan(tmp_path):
    asked = ASKED["torchtitan"]
    files = written(asked, SAMPLE, tmp_path)
    assert set(files) == set(SAMPLE)
    found = asked_facts(asked, files, tmp_path)
    for name, (task, text) in files.items():
        check(name, asked.target, found[name], task)
        check_import(asked, text, task)


@pytest.mark.slow
@pytest.mark.parametrize("name", ASKED)
def test_every_model_of_the_catalogue_is_the_same_model(name, tmp_path, record_testsuite_property):
    asked = ASKED[name]
    if not Path(asked.command[0]).exists() or (asked.path and not Path(asked.path).is_dir()):
        pytest.skip(f"the environment of {name} is not there")
    files = written(asked, tuple(CONFIGS), tmp_path)
    assert len(files) >= asked.least
    found = asked_facts(asked, files, tmp_path)
    built = 0
    for model, (task, text) in files.items():
        if (name, model) not in NOT_BUILT:
            check(model, asked.target, found[model], task)
            built += 1
        check_import(asked, text, task)
    record_testsuite_property(
        name, f"{len(CONFIGS)} configs, {len(files)} written and read back, {built} built the same"
    )


def test_the_catalogue_has_the_constants_of_the_configs(tmp_path):
    for name in CONFIGS:
        assert figures(models.load(name)) == figures(imported(name, tmp_path)), name


def test_every_model_is_written_or_refused_by_name(tmp_path):
    """A framework that has no word for a part of a model says which."""
    for asked in (ASKED["megatron-0.19"], ASKED["torchtitan"], ASKED["maxtext"]):
        files = written(asked, tuple(CONFIGS), tmp_path)
        assert len(files) >= asked.least, (asked.target, len(files))
        for task, text in files.values():
            check_import(asked, text, task)


#: Targets whose files hold no model: the framework a plan is for.
WITHOUT_MODEL = {"deepspeed": "deepspeed", "accelerate": "fsdp"}


@pytest.mark.slow
@pytest.mark.skipif(PYTHON is None, reason="DOVETAIL_LAUNCH_PYTHON names no Python with the parsers")
@pytest.mark.parametrize("target", WITHOUT_MODEL)
def test_plans_of_every_model_are_parsed_and_read_back(target, tmp_path):
    """Files of models that differ in nothing the format has are the same text, which is parsed once."""
    texts: dict[str, Task] = {}
    for name in CONFIGS:
        model = imported(name, tmp_path)
        job = {"model": document_of(model), "seq_len": min(2048, model.max_seq_len), "global_batch": 256}
        cluster = {"chip": "h100-sxm", "chips": 64, "framework": WITHOUT_MODEL[target]}
        plan = {"zero_stage": 3, "micro_batch": 2, "recompute": "full"}
        task = task_of({"job": job, "cluster": cluster, "plan": plan}, name)
        text = EXPORTERS[target].export(task).text
        texts[text] = task
        reading = read_launch(text, "written", target)
        document = {"model": job["model"], "seq_len": job["seq_len"], "global_batch": 256} | dict(reading.job)
        given = {"micro_batch": 2} | dict(reading.plan)
        back = task_of({"job": document, "cluster": cluster, "plan": given}, "back")
        assert reading.unknown == ()
        assert (degrees(back), back.job) == (degrees(task), task.job), name
    assert len(texts) > 0
    for text, task in texts.items():
        found = parsed(target, text, 64, tmp_path)
        assert {name: getattr(task.plan, name, found[name]) for name in found} == found
