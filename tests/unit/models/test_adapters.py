"""LoRA and QLoRA: counts against closed forms, state bytes by hand, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dovetail import frameworks, hardware, models
from dovetail.errors import InputError
from dovetail.graph import differentiate
from dovetail.models import Job
from dovetail.models.adapters import Adapters
from dovetail.plans.plan import PlanSpec, resolve_plan
from dovetail.plans.plan_file import task_of
from dovetail.plans.write import job_part
from dovetail.step.evaluate import evaluate
from dovetail.step.evaluation import Evaluation

LLAMA = models.load("llama-3.1-8b")
#: in and out of the linear layers of one of its blocks
SHAPES = {
    "q": (4096, 4096), "k": (4096, 1024), "v": (4096, 1024), "o": (4096, 4096),
    "gate": (4096, 14336), "up": (4096, 14336), "down": (14336, 4096),
}  # fmt: skip
LAYERS, VOCAB, HIDDEN = 32, 128256, 4096
TABLES_AND_NORMS = 2 * VOCAB * HIDDEN + (2 * LAYERS + 1) * HIDDEN
LINEAR = LAYERS * sum(inner * outer for inner, outer in SHAPES.values())


ATTENTION = ("q", "k", "v", "o")


def adapted(rank: int = 16, targets: Any = ATTENTION, base: Any = "bf16") -> Job:
    return Job(LLAMA, 4096, 8, adapters=Adapters(rank=rank, targets=targets, base=base))


def adapter_parameters(rank: int, targets: Any) -> int:
    return LAYERS * rank * sum(sum(SHAPES[name]) for name in (SHAPES if targets == "all" else targets))


@pytest.mark.parametrize(("rank", "targets"), [(16, ATTENTION), (8, ("v",)), (64, "all"), (1, ("up", "down"))])
def test_trained_parameters_are_the_rank_times_in_and_out(rank, targets):
    graph = adapted(rank, targets).graph()
    trained = adapter_parameters(rank, targets)
    assert graph.trained_parameters() == trained
    assert graph.parameters() == LINEAR + TABLES_AND_NORMS + trained
    assert models.load("llama-3.1-8b") == LLAMA
    assert Job(LLAMA, 4096, 8).graph().trained_parameters() == LINEAR + TABLES_AND_NORMS


def test_a_step_needs_two_thirds_of_the_products_and_the_adapters():
    seq, rank = 4096, 16
    base, adapters = LINEAR + VOCAB * HIDDEN, adapter_parameters(rank, "all")
    attention = LAYERS * 4 * seq * HIDDEN
    by_hand = seq * (2 * 2 * base + 3 * 2 * adapters + 3 * attention)
    graph = adapted(rank, "all").graph()
    assert graph.training_flops(1, seq) == by_hand
    full = Job(LLAMA, seq, 8).graph().training_flops(1, seq)
    assert 2 / 3 < by_hand / full < 0.73


def test_gradients_end_at_adapters():
    graph = adapted().graph()
    assert not differentiate(graph.layers["embedding"]).graph.operators
    (block,) = (layer for name, layer in graph.layers.items() if name not in ("embedding", "head"))
    gradients = differentiate(block).gradients
    assert set(gradients) == {"x", *(w.name for w in block.weights() if ".lora_" in w.name)}
    # inputs of frozen products are not saved: those of adapters are, and of attention and the norms
    saved = {tensor.name for tensor in block.saved()}
    assert {"mixer_norm", "attention", "mlp.gate", "mlp.up"} <= saved
    assert not {"feed_forward_norm", "mlp.activation"} & saved


def evaluated(job: Job, framework: str, chips: int, **plan: Any) -> Evaluation:
    resolved = resolve_plan(
        PlanSpec(micro_batch=1, **plan), chips=chips, global_batch=job.global_batch, num_layers=LAYERS
    )
    return evaluate(resolved, job, hardware.cluster("h100-sxm", chips=chips), frameworks.load(framework), energy=False)


@pytest.mark.parametrize("base", ["bf16", "nf4"])
@pytest.mark.parametrize(("zero_stage", "shards"), [(0, 1), (3, 8)])
def test_state_bytes_are_those_by_hand(base, zero_stage, shards):
    parts = evaluated(adapted(base=base), "torchtitan", shards, zero_stage=zero_stage).memory_by_phase[0]["optimizer"]
    trained, sharded = adapter_parameters(16, ATTENTION), zero_stage == 3
    linear = 2 * LINEAR / shards
    if base == "nf4":
        # the scales of 64 elements are 8 bits, those of 256 scales float32, and every chip has all of them
        linear = LINEAR / 2 / shards + LINEAR / 64 + LINEAR / 64 / 256 * 4
    # the sharded float32 master of an adapter is its weight
    assert parts["weights"] == pytest.approx(linear + 2 * TABLES_AND_NORMS / shards + (0 if sharded else 2 * trained))
    assert parts["gradients"] == pytest.approx(4 * trained / shards)
    assert parts["optimizer"] == pytest.approx(12 * trained / shards)


def test_4_bit_weights_cost_time_and_no_more_memory():
    lora, qlora = (evaluated(adapted(base=base), "torchtitan", 1, recompute="full") for base in ("bf16", "nf4"))
    # each product writes its weight out first: half a byte is read and two are written, in the forward, when it is
    # recomputed and for the input gradient, of eight micro-batches; kernels reach most of the published 3.35 TB/s
    at_peak = 8 * 3 * LINEAR * 2.5 / 3.35e12
    assert at_peak < qlora.step_time_s - lora.step_time_s < 1.5 * at_peak
    assert qlora.peak_bytes < lora.peak_bytes - 1.4 * LINEAR


def test_a_job_with_adapters_is_written_and_read():
    job = adapted(64, "all", "nf4")
    part = job_part(job)
    assert part["adapters"] == {"rank": 64, "targets": "all", "base": "nf4"}
    assert "adapters" not in job_part(Job(LLAMA, 4096, 8))
    document = {"job": part, "cluster": {"chip": "h100-sxm", "chips": 8, "framework": "torchtitan"}}
    assert task_of(document, "case.yaml").job == job
    assert (job.train_kind, adapted().train_kind, replace(job, adapters=None).train_kind) == ("qlora", "lora", "full")


@pytest.mark.parametrize(
    ("model", "change", "where"),
    [
        ("gpt2-1.5b", {"targets": ("gate",)}, "names gate, which gpt2-1.5b does not have"),
        ("llama-3.1-8b", {"precision": "fp8"}, "are given with precision fp8"),
    ],
)
def test_adapters_that_a_job_cannot_have_are_refused(model, change, where):
    targets = change.pop("targets", ("q",))
    with pytest.raises(InputError, match=where):
        Job(models.load(model), 1024, 8, adapters=Adapters(rank=8, targets=targets), **change)


@pytest.mark.parametrize("name", ["deepseek-v2-lite", "mixtral-8x7b", "qwen3-0.6b", "gpt-oss-20b"])
def test_all_linear_layers_of_other_models_have_adapters(name):
    model = models.load(name)
    full, lora = (Job(model, 1024, 8, adapters=each) for each in (None, Adapters(rank=8, targets="all")))
    added = lora.graph().parameters() - full.graph().parameters()
    assert lora.graph().trained_parameters() == added > 0
