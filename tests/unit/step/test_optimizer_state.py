"""State of optimizers against closed forms and torch's own, and what Muon's iterations add to a step."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from dovetail import frameworks
from dovetail.graph import orthogonalized
from dovetail.models.catalogue import load
from dovetail.plans.plan_file import Task, task_of
from dovetail.step.evaluate import evaluate

HIDDEN, HEADS, KV, FFN, VOCAB, LAYERS = 256, 4, 2, 768, 1024, 3
MODEL: dict[str, Any] = {
    "name": "small", "hidden": HIDDEN, "vocab": VOCAB,
    "blocks": {"block": {
        "mixer": {"kind": "attention", "heads": HEADS, "kv_heads": KV, "head_dim": HIDDEN // HEADS},
        "feed_forward": {"kind": "dense", "size": FFN, "activation": "swiglu"},
    }},
    "layers": [{"blocks": ["block"], "repeat": LAYERS}],
}  # fmt: skip
BYTES = {"sgd": 4.0, "adamw": 12.0, "adamw_bf16": 8.0, "adamw_8bit": 4 + 2 * (1 + 4 / 256)}


def asked(optimizer: str, model: Any = MODEL, chips: int = 8, batch: int = 64, seq_len: int = 256, **plan: Any) -> Task:
    """A job on one node under no framework's limits."""
    job = {"model": model, "seq_len": seq_len, "global_batch": batch, "optimizer": optimizer}
    cluster = {"chip": "h100-sxm", "chips": chips, "framework": "ideal"}
    return task_of({"job": job, "cluster": cluster, "plan": plan}, "case")


def optimizer_bytes(task: Task) -> float:
    result = evaluate(task.plan, task.job, task.cluster, task.framework)
    return sum(parts["optimizer"] for parts in result.memory_by_stage)


class Block(nn.Module):
    """The weights of one block, written out."""

    def __init__(self) -> None:
        super().__init__()
        kv = KV * HIDDEN // HEADS
        sizes = [(HIDDEN, HIDDEN), (HIDDEN, kv), (HIDDEN, kv), (HIDDEN, HIDDEN)]
        sizes += [(HIDDEN, FFN), (HIDDEN, FFN), (FFN, HIDDEN)]
        self.matrices = nn.ModuleList(nn.Linear(rows, cols, bias=False) for rows, cols in sizes)
        self.norms = nn.ModuleList(nn.RMSNorm(HIDDEN) for _ in range(2))


def elements_of_state(optimizer: torch.optim.Optimizer) -> int:
    """Elements of all states of an optimizer, counters apart, after one step."""
    for group in optimizer.param_groups:
        for weight in group["params"]:
            weight.grad = torch.ones_like(weight)
    optimizer.step()
    states = [t for state in optimizer.state.values() for t in state.values() if torch.is_tensor(t) and t.dim()]
    return sum(t.numel() for t in states)


@pytest.mark.parametrize("optimizer", BYTES)
def test_all_weights_have_the_same_bytes(optimizer):
    task = asked(optimizer)
    assert optimizer_bytes(task) == pytest.approx(BYTES[optimizer] * task.job.graph().parameters(), rel=1e-12)
    megatron = frameworks.load("megatron").bytes_per_parameter("bf16", optimizer=optimizer)
    assert megatron == pytest.approx(2 + 4 + BYTES[optimizer])


def test_bf16_moments_are_as_wide_as_torch_makes_them_of_bf16_weights():
    weight = nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
    optimizer = torch.optim.AdamW([weight])
    elements_of_state(optimizer)
    moments = [t for t in optimizer.state[weight].values() if t.dim()]
    assert sum(t.element_size() for t in moments) == BYTES["adamw_bf16"] - 4


@pytest.mark.parametrize(("stages", "zero_stage"), [(1, 0), (1, 1), (1, 3), (3, 1)])
def test_muon_keeps_as_many_states_as_torch(stages, zero_stage):
    torch.manual_seed(0)
    blocks = [Block() for _ in range(LAYERS)]
    tables = [nn.Embedding(VOCAB, HIDDEN), nn.Linear(HIDDEN, VOCAB, bias=False), nn.RMSNorm(HIDDEN)]
    matrices = [weight for block in blocks for each in block.matrices for weight in each.parameters()]
    norms = [norm for block in blocks for norm in block.norms]
    others = [weight for each in (*tables, *norms) for weight in each.parameters()]
    states = elements_of_state(torch.optim.Muon(matrices)) + elements_of_state(torch.optim.AdamW(others))
    task = asked("muon", chips=6, batch=48, pipeline_parallel=stages, zero_stage=zero_stage)
    parameters = sum(weight.numel() for weight in (*matrices, *others))
    assert task.job.graph().parameters() == parameters
    shards = 6 // stages if zero_stage else 1
    assert optimizer_bytes(task) * shards == pytest.approx(4 * parameters + 4 * states, rel=1e-12)


def test_a_tied_table_has_two_states_once():
    task = asked("muon", MODEL | {"head": {"tied": True}})
    table = VOCAB * HIDDEN
    vectors = table + (2 * LAYERS + 1) * HIDDEN
    assert optimizer_bytes(task) == pytest.approx(8 * task.job.graph().parameters() + 4 * vectors, rel=1e-12)


def test_iterations_of_newton_and_schulz_are_counted_by_products():
    flops = orthogonalized(asked("muon").job.graph().layers["block"])
    up, key = flops["mlp.up.weight"], flops["key.weight"]
    for found, (m, n) in ((up, (HIDDEN, FFN)), (key, (KV * HIDDEN // HEADS, HIDDEN))):
        # X·Xᵀ, its square, and their sum times X
        iteration = 2 * m * m * n + 2 * m**3 + 2 * m * m * n
        assert found.flops_per_parameter * m * n == pytest.approx(5 * iteration)
    (mixture,) = (
        graph for graph in asked("muon", "mixtral-8x7b").job.graph().layers.values() if "experts" in graph.sizes
    )
    assert orthogonalized(mixture)["expert.up.weight"].dims == ("hidden", "expert_ffn")


def test_muon_takes_about_as_much_longer_as_its_authors_say():
    """At most T·m / B of a step's FLOPs, T iterations, m columns, B tokens; below 1 % (Jordan 2024)."""
    batch, seq_len = 512, 8192
    steps = {o: asked(o, "llama-3-8b", 64, batch, seq_len, zero_stage=1) for o in ("adamw", "muon")}
    parts = {o: evaluate(t.plan, t.job, t.cluster, t.framework) for o, t in steps.items()}
    more = parts["muon"].breakdown["optimizer"] - parts["adamw"].breakdown["optimizer"]
    assert 0 < more / parts["adamw"].step_time_s < 5 * load("llama-3-8b").hidden / (batch * seq_len) < 0.01


def test_muon_needs_about_half_of_adamws_states():
    """Moonlight (Liu et al. 2025): half of AdamW's memory for states, embedding and head apart."""
    muon, adamw, master = (optimizer_bytes(asked(o, "llama-3.1-405b")) for o in ("muon", "adamw", "sgd"))
    assert (muon - master) / (adamw - master) == pytest.approx(0.5, abs=0.01)
    assert math.isclose(adamw, 3 * master)
