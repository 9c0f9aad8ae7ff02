"""Megatron-LM: plans as arguments and launches as plans; what is written reads back, what cannot run is refused."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dovetail import models
from dovetail.errors import InputError
from dovetail.launch.launch_file import Reading
from dovetail.launch.megatron.read import read
from dovetail.launch.megatron.write import export
from dovetail.models import Model
from dovetail.plans.launch_models.megatron import VERSION, model_arguments
from dovetail.plans.launch_models.megatron_lists import layout_parts, layout_text, list_text, list_values
from dovetail.plans.overlaps import settled
from dovetail.plans.plan import Plan
from dovetail.plans.plan_file import Task, task_of

GOLDEN = Path(__file__).parents[2] / "golden" / "launch"

#: Plans whose arguments were put through the parser of Megatron-LM, core 0.16.1 and 0.19.2.
PLANS: dict[str, dict[str, Any]] = {
    "dense": {
        "job": {"model": "llama-3.1-70b", "seq_len": 8192, "global_batch": 1024},
        "cluster": {"chip": "h100-sxm", "chips": 512},
        "plan": {
            "tensor_parallel": 8, "sequence_parallel": True, "pipeline_parallel": 4, "virtual_stages": 5,
            "context_parallel": 2, "context_kind": "ring", "zero_stage": 1, "recompute": "selective",
        },
    },
    "moe": {
        "job": {"model": "deepseek-v3", "seq_len": 4096, "global_batch": 8192, "precision": "fp8"},
        "cluster": {"chip": "h100-sxm", "chips": 2048},
        "plan": {
            "pipeline_parallel": 16, "expert_parallel": 64, "expert_tensor_parallel": 1, "zero_stage": 1,
            "zero_group": 64, "recompute": ["mla_up_proj", "moe_act"], "layers_per_stage": [4] * 13 + [3] * 3,
        },
    },
    "uneven": {
        "job": {"model": "llama-3.1-405b", "seq_len": 8192, "global_batch": 512},
        "cluster": {"chip": "h100-sxm", "chips": 1024},
        "plan": {
            "tensor_parallel": 8, "sequence_parallel": True, "pipeline_parallel": 8, "virtual_stages": 4,
            "layers_per_stage": [2, *[4] * 29, 5, 3], "zero_stage": 1, "recompute": "full",
            "axis_order": "tp-cp-pp-dp",
        },
    },
}  # fmt: skip


def again(task: Task, reading: Reading) -> Task:
    """The task that was read, on the cluster it was written for."""
    cluster = {"chip": task.cluster.chip.name, "chips": task.cluster.chips}
    return task_of({"job": reading.job, "cluster": cluster, "plan": reading.plan}, "again")


def as_run(task: Task) -> Plan:
    """The plan with all that it leaves to the framework."""
    return settled(task.plan, task.framework, task.job)


def small(**plan: Any) -> Task:
    """A dense model on 16 chips."""
    job = {"model": "llama-3.1-8b", "seq_len": 8192, "global_batch": 64}
    return task_of({"job": job, "cluster": {"chip": "h100-sxm", "chips": 16}, "plan": plan}, "small")


# Golden files.


@pytest.mark.parametrize("name", PLANS)
def test_arguments_are_those_the_parser_of_megatron_has_read(name):
    assert export(task_of(PLANS[name], name)).text == (GOLDEN / f"megatron-{name}.args").read_text()


@pytest.mark.parametrize("name", PLANS)
def test_golden_files_read_back_as_their_plans(name):
    task = task_of(PLANS[name], name)
    reading = read((GOLDEN / f"megatron-{name}.args").read_text(), name, task.cluster.chips)
    found = again(task, reading)
    assert replace(found, plan=task.plan) == task
    assert as_run(found) == as_run(task)
    assert reading.job["model"] == PLANS[name]["job"]["model"]
    assert reading.unknown == ()


def test_the_version_is_named():
    assert "0.19" in VERSION


# There and back.


MODELS = (
    "llama-3.1-8b", "llama-3.1-70b", "llama-3-8b", "mixtral-8x7b", "deepseek-v3", "deepseek-v2-lite", "gpt3-175b",
    "qwen3-30b-a3b", "qwen2.5-32b", "mistral-7b", "nemotron-4-340b", "gpt-oss-20b", "qwen3-235b-a22b", "qwen3-0.6b",
    "glm-4.5",
)  # fmt: skip


def random_document(draw: random.Random) -> dict[str, Any]:
    tensor, context, data = (draw.choice((1, 1, 2, 4, 8)) for _ in range(3))
    stages, chunks = draw.choice((1, 1, 2, 4, 8)), draw.choice((1, 1, 2, 3))
    chunks = chunks if stages > 1 else 1
    modules = ["core_attn", "layernorm", "mlp", "moe", "moe_act", "shared_experts", "mla_up_proj"]
    plan: dict[str, Any] = {
        "tensor_parallel": tensor, "context_parallel": context, "pipeline_parallel": stages, "virtual_stages": chunks,
        "context_kind": draw.choice(("all_gather", "ring", "ulysses")), "micro_batch": draw.choice((1, 1, 2, 4)),
        "zero_stage": draw.choice((0, 1, 2, 3)), "sequence_parallel": tensor > 1 and draw.random() < 0.7,
        "recompute": draw.choice(("none", "selective", "full", draw.sample(modules, draw.choice((1, 2))))),
        "axis_order": draw.choice(("tp-cp-dp-pp", "tp-cp-pp-dp")),
    }  # fmt: skip
    if plan["recompute"] == "full" and draw.random() < 0.5:
        plan["recompute_share"] = draw.choice((1, 2, 3)) / draw.choice((4, 5, 8))
    if plan["zero_stage"] and draw.random() < 0.4:
        plan["zero_group"] = draw.choice((1, 2, 4))
    if draw.random() < 0.7:
        plan |= {"expert_tensor_parallel": draw.choice((1, tensor)), "expert_parallel": draw.choice((1, 2, 4, 8))}
    job = {
        "model": draw.choice(MODELS), "seq_len": draw.choice((1024, 2048)),
        "global_batch": data * plan["micro_batch"] * draw.choice((1, 2, 4)) * stages,
        "precision": draw.choice(("bf16", "bf16", "bf16", "fp16", "fp8", "fp4", "fp32")),
        "optimizer": draw.choice(("adamw", "adamw", "sgd", "momentum")),
        "attention": draw.choice(("fused", "fused", "unfused")),
    }  # fmt: skip
    return {
        "job": job, "cluster": {"chip": "h100-sxm", "chips": tensor * context * data * stages}, "plan": plan,
    }  # fmt: skip


def random_cut(draw: random.Random, task: Task) -> tuple[int, ...]:
    """Layers moved between neighbouring stages."""
    layers = list(task.plan.layers_per_stage)
    for _ in range(draw.randrange(4)):
        i = draw.randrange(len(layers) - 1)
        if layers[i] > 1:
            layers[i], layers[i + 1] = layers[i] - 1, layers[i + 1] + 1
    return tuple(layers)


def random_tasks(seed: int, count: int) -> list[tuple[Task, str]]:
    """Tasks that Megatron-LM runs, and their arguments."""
    draw = random.Random(seed)  # noqa: S311
    found: list[tuple[Task, str]] = []
    while len(found) < count:
        try:
            task = task_of(random_document(draw), "random")
            if task.plan.pipeline_parallel > 1:
                task = replace(task, plan=replace(task.plan, layers_per_stage=random_cut(draw, task)))
            found.append((task, export(task).text))
        except InputError:
            continue
    return found


def test_200_random_plans_come_back_as_they_were():
    tasks = random_tasks(seed=1, count=200)
    for task, text in tasks:
        reading = read(text, "args", task.cluster.chips)
        found = again(task, reading)
        assert as_run(found) == as_run(task)
        assert found.job == task.job
        assert reading.unknown == ()
    plans = [task.plan for task, _ in tasks]
    # the draw covers what a plan has: otherwise little is shown
    assert len({task.job.model.name for task, _ in tasks}) == len(MODELS)
    assert {plan.zero_stage for plan in plans} == {0, 1, 2, 3}
    assert any(plan.virtual_stages > 1 and len(set(plan.layers_per_stage)) > 1 for plan in plans)
    assert any(plan.recompute_share < 1 for plan in plans)
    assert any(plan.zero_group < plan.data_parallel * plan.context_parallel for plan in plans)
    assert any(plan.expert_parallel > 1 and plan.expert_tensor_parallel > 1 for plan in plans)


def test_every_model_with_arguments_reads_back_as_itself():
    written = 0
    for name in models.names():
        model = models.load(name)
        seq_len = min(model.max_seq_len, 2048)
        try:
            lines = model_arguments(model, seq_len)
        except InputError as error:
            assert f"{VERSION} has no arguments for" in error.what  # noqa: PT017
            continue
        written += 1
        text = "".join(" ".join((flag, *(f"'{v}'" for v in values))) + "\n" for flag, *values in lines)
        text += f"--seq-length {seq_len}\n--micro-batch-size 1\n--global-batch-size 8\n--bf16\n"
        found = models.load(read(text, name).job["model"])
        assert found.name == name or nameless(found) == nameless(model)
    assert written > 40


def nameless(model: Model) -> dict[str, Any]:
    """What is left where models are the same and their papers are not (Qwen2 and Qwen2.5)."""
    return model.model_dump(exclude={"name", "source", "note", "published_parameters"})


def test_a_model_of_nobody_reads_back_as_a_document():
    task = small()
    block = task.job.model.blocks["full"]
    model = task.job.model.model_copy(update={"hidden": 4608, "blocks": {"full": block}, "name": "imported"})
    task = replace(task, job=replace(task.job, model=model))
    reading = read(export(task).text, "args", 16)
    assert isinstance(reading.job["model"], dict)
    found = again(task, reading).job.model
    assert found.hidden == 4608
    assert found.num_layers == model.num_layers
    assert list(found.blocks.values()) == [block]


# Refusals.


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        ({"recompute": "selective", "recompute_share": 0.5}, "recompute_share: is 0.5 of recompute selective"),
        ({"recompute": "full", "recompute_share": 0.3}, "recompute_share: is 0.3 of the 8 blocks of a stage"),
        (
            {"recompute": "full", "recompute_share": 0.5, "layers_per_stage": (7, 8, 8, 9)},
            "recompute_share: is 0.5 of uneven stages",
        ),
    ],
)
def test_a_plan_megatron_cannot_run_is_refused_with_the_reason(plan, sentence):
    with pytest.raises(InputError, match=r"which megatron \(Megatron-LM, core 0\.16 to 0\.20\) does not run") as error:
        export(changed(small(pipeline_parallel=4), **plan))
    assert sentence in str(error.value)


def changed(task: Task, **fields: Any) -> Task:
    return replace(task, plan=replace(task.plan, **fields))


def test_schedules_sequences_and_optimizers_it_lacks_are_refused():
    task = small(context_parallel=4)
    with pytest.raises(InputError, match="pipeline_schedule: is gpipe"):
        export(changed(task, pipeline_parallel=2, pipeline_schedule="gpipe"))
    with pytest.raises(InputError, match="virtual_stages: is 1 with the interleaved schedule"):
        export(changed(task, pipeline_parallel=2, pipeline_schedule="interleaved"))
    with pytest.raises(InputError, match="zero_stage: is 3 with a pipeline"):
        export(changed(task, pipeline_parallel=2, zero_stage=3))
    with pytest.raises(InputError, match="context_parallel: is 4 for sequences of 8196"):
        export(replace(task, job=replace(task.job, seq_len=8196)))
    with pytest.raises(InputError, match="context_parallel: is 4 with unfused attention"):
        export(replace(task, job=replace(task.job, fused_attention=False)))
    with pytest.raises(InputError, match="job: optimizer: is lion"):
        export(replace(task, job=replace(task.job, optimizer="lion")))


def mixture(**plan: Any) -> Task:
    job = {"model": "mixtral-8x7b", "seq_len": 4096, "global_batch": 64}
    return task_of({"job": job, "cluster": {"chip": "h100-sxm", "chips": 16}, "plan": plan}, "mixture")


def test_experts_it_cannot_place_are_refused():
    with pytest.raises(InputError, match="sequence_parallel: is false with experts"):
        export(mixture(tensor_parallel=2))
    with pytest.raises(InputError, match=r"zero_group: is 2, .*8 groups divide the 2 replicas"):
        export(mixture(expert_parallel=8, zero_stage=1, zero_group=2))
    assert (
        "--num-distributed-optimizer-instances 2\n"
        in export(mixture(expert_parallel=8, zero_stage=1, zero_group=8)).text
    )


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mamba2-2.7b", "blocks with one half"),
        ("falcon-40b", "parallel halves"),
        ("gemma-2-9b", "scales its embeddings"),
        ("bert-large", "segments"),
        ("llama-4-scout", "chunked|attention"),
        ("qwen3-next-80b-a3b", "gated_delta"),
        ("bloom-176b", "normalises its embeddings"),
    ],
)
def test_models_without_arguments_are_refused(name, reason):
    model = models.load(name)
    with pytest.raises(InputError, match=reason):
        model_arguments(model, 512)


# Grammars.


def test_layouts_are_written_as_megatron_reads_them():
    assert layout_text([3, 4, 4, 4, 3]) == "Et*3|(t*4|)*3t*3L"
    assert layout_text([0, 2, 1, 0], predictions=1) == "E|t*2|,t|mL"
    assert layout_parts("Ettt|(tt|)*3,m|L") == ["Ettt", "tt", "tt", "tt", "m", "L"]
    assert layout_parts("Et*2|x|L") is None
    assert layout_parts("Et*999999999|L") is None
    draw = random.Random(2)  # noqa: S311
    for _ in range(200):
        layers = [draw.choice((0, 1, 2)), *(draw.choice((1, 1, 2, 12)) for _ in range(draw.randrange(9))), 3]
        assert [part.count("t") for part in layout_parts(layout_text(layers)) or []] == layers


def test_lists_are_written_as_megatron_reads_them():
    assert list_text([False] * 3 + [True] * 58) == "[0]*3+[1]*58"
    assert list_text([True, False] * 12) == "([1]+[0])*12"
    assert list_values("([1]*3+[0])*2") == [1, 1, 1, 0] * 2
    assert list_values("[0]*3+[1,1]") == [0, 0, 0, 1, 1]
    for wrong in ("[0]*3+", "[0]*99999999", "__import__", "(" * 3000, "[0,,1]"):
        assert list_values(wrong) is None
    draw = random.Random(3)  # noqa: S311
    for _ in range(200):
        values = [draw.random() < 0.5 for _ in range(draw.randrange(1, 9))] * draw.randrange(1, 4)
        assert list_values(list_text(values)) == [int(value) for value in values]
