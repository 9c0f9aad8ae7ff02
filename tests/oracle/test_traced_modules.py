"""Modules outside transformers are traced, estimated and planned, and multiply what autograd multiplies."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import torch.nn.functional as F  # noqa: N812
import torch_models
import transformers_configs
from autograd_flops import autograd_flops, joint_operators
from torch import nn
from traced_models import PLANS, products, products_one_by_one, step_time_s, traced_config, traced_module

import dovetail as dt
from dovetail.errors import InputError
from dovetail.graph import Kind
from dovetail.models import from_torch, model_graph
from dovetail.models.traced import approximations, longest_seq_len
from dovetail.models.tracing import lowering
from dovetail.plans.plan import PlanSpec, resolve_plan

pytestmark = pytest.mark.torch

MODELS = tuple(torch_models.CASES)
cluster = dt.hardware.cluster_on(dt.hardware.network("rail-optimised"), dt.hardware.chip("h100-sxm"), 8)


@pytest.mark.parametrize("name", MODELS)
def test_it_is_traced_estimated_and_planned(name: str) -> None:
    model = traced_module(name)
    module = torch_models.build(name)
    assert model_graph(model).parameters() == sum(p.numel() for p in module.parameters())
    assert model.left_out == ()
    length = model.fixed_seq_len or min(longest_seq_len(model), 40)
    assert step_time_s(model, {"tensor_parallel": 2, "micro_batch": 1}, length) > 0
    answer = dt.plan(dt.Job(model, length, 8), cluster, time_limit_s=20)
    assert answer.best is not None


def test_long_skips_ride_on_every_boundary_they_cross() -> None:
    graph = model_graph(traced_module("unet"))
    handed = [len(graph.layers[run.layer].stream(graph.layers[run.layer].outputs)) for run in graph.chain[:-1]]
    assert max(handed) > 3
    assert handed[-1] < max(handed)
    split = step_time_s(
        traced_module("unet"), {"pipeline_parallel": 2, "micro_batch": 1}, longest_seq_len(traced_module("unet"))
    )
    assert split > 0


def test_the_memory_rides_past_a_decoder() -> None:
    graph = model_graph(traced_module("encoder_decoder"))
    decoder = next(layer for name, layer in graph.layers.items() if name.startswith("decoder"))
    assert len(decoder.stream(decoder.inputs)) == 2


@pytest.mark.parametrize("name", [n for n in MODELS if n != "looped_mixture"])
def test_products_are_those_of_autograd(name: str) -> None:
    module = torch_models.build(name)
    inputs = module.example(2)
    forward, backward, _ = autograd_flops(module, inputs)
    model = traced_module(name)
    seq = inputs[0].shape[1] if inputs[0].dim() == 2 else longest_seq_len(model)
    ours = products(model_graph(model), 2, seq)
    assert ours == pytest.approx((forward, backward), rel=0.01)


#: Without windows, chunks and scans, whose work is counted otherwise, and loops, which the joint graph refuses.
ONE_BY_ONE = (
    "gpt", "vit", "dit", "unet", "encoder_decoder", "dense_mixture", "llama", "qwen3", "gpt2", "bert", "mixtral",
    "deepseek_v3", "falcon_40b", "bloom", "gpt_neox", "cohere", "t5",
)  # fmt: skip
#: Fusions that a framework makes, and not the module.
BY_FRAMEWORKS = frozenset({"qkv", "mlp.up", "shared.up"})


@pytest.mark.parametrize("name", [n if n == "gpt" else pytest.param(n, marks=pytest.mark.slow) for n in ONE_BY_ONE])
def test_operators_are_those_of_the_joint_graph_one_by_one(name: str) -> None:
    """As many products, attentions and convolutions in each pass, each of as many FLOPs; as many norms and look-ups."""
    if name in torch_models.CASES:
        module, model = torch_models.build(name), traced_module(name)
        inputs = module.example(2)
        theirs = joint_operators(module, inputs)
        batch, seq = 2, inputs[0].shape[1] if inputs[0].dim() == 2 else longest_seq_len(model)
    else:
        model, batch, seq = traced_config(name), transformers_configs.BATCH, transformers_configs.SEQ
        theirs = joint_operators(transformers_configs.build(name), (), transformers_configs.inputs())
    graph = model_graph(model)
    operators = [o for n, count in graph.counts().items() for o in graph.layers[n].operators for _ in range(count)]
    merged = frozenset(o.fusion for o in operators if o.kind is Kind.CONTRACTION and o.fusion) - BY_FRAMEWORKS
    called = Counter(packet.__name__ for packet, *_ in theirs)
    ours = products_one_by_one(
        graph, batch, seq, merged=merged, written_out=not any("scaled_dot_product" in each for each in called)
    )
    for is_forward, products_of_pass in zip((True, False), ours, strict=True):
        assert products_of_pass == sorted(cost for _, f, cost in theirs if f == is_forward and cost)
    # a table of positions that is cut, and not looked up in, is a look-up for us
    assert sum(o.kind is Kind.EMBEDDING for o in operators) - called["embedding"] in (0, 1)
    norms = called["native_layer_norm_backward"] + called["native_group_norm_backward"]
    if norms:  # others are written out
        assert sum(o.kind is Kind.NORMALISATION for o in operators) == norms


class Strange(nn.Module):
    """A block with a function we have no operator for."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(131, 48)
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 96), Wild(), nn.Linear(96, 48)) for _ in range(3)]
        )
        self.head = nn.Linear(48, 131)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class Wild(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(x)


def tokens() -> torch.Tensor:
    return torch.zeros(2, 40, dtype=torch.int64, device="meta")


def strange() -> Any:
    with torch.device("meta"):
        return Strange()


def test_an_unknown_operator_is_estimated_and_named() -> None:
    model = from_torch(strange(), (tokens(),))
    assert [a.words for a in approximations(model)] == ["special_bessel_j0"]
    evaluation = dt.evaluate(dt.plan(dt.Job(model, 40, 8), cluster, time_limit_s=20), energy=False)
    assert [a.operator for a in evaluation.approximated] == [a.operator for a in approximations(model)]
    assert 0 < evaluation.approximated_share < 1


def test_what_is_not_trained_has_no_gradient() -> None:
    module = strange()
    module.table.weight.requires_grad_(False)
    graph = model_graph(from_torch(module, (tokens(),)))
    assert graph.parameters() - graph.trained_parameters() == 131 * 48


class Lora(nn.Module):
    """A linear layer with a low-rank one beside it, or (`merged`) added to its weight first."""

    def __init__(self, base: nn.Linear, *, merged: bool) -> None:
        super().__init__()
        self.base, self.merged = base, merged
        self.down = nn.Parameter(torch.zeros(8, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.merged:
            return F.linear(x, self.up @ self.down)
        return self.base(x) + F.linear(F.linear(x, self.down), self.up)


class Latents(nn.Module):
    """Adds what is made of learned latents alone."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.zeros(10, 48))
        self.query = nn.Linear(48, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.query(self.latents).mean(0)


def partly_trained(kind: str) -> Any:
    """A module with frozen weights, or with weights that are made of others."""
    with torch.device("meta"):
        module: Any = Strange()
        for number, block in enumerate(module.blocks):
            if kind in ("lora", "merged"):
                block[1] = Lora(block[1].requires_grad_(False), merged=kind == "merged")
            elif kind == "bias":
                block[1].bias.requires_grad_(False)
            elif kind == "latents" and not number:
                module.table = nn.Sequential(module.table, Latents())
    if kind == "lora":
        for name, weight in module.named_parameters():
            weight.requires_grad_(name.endswith((".up", ".down")))
    return module


@pytest.mark.parametrize("kind", ["bias", "lora", "merged", "latents"])
def test_a_plan_is_what_its_evaluation_says(kind: str) -> None:
    """With frozen weights and operators on weights alone."""
    answer = dt.plan(dt.Job(from_torch(partly_trained(kind), (tokens(),)), 40, 64), cluster, time_limit_s=20)
    assert answer.best is not None
    assert dt.evaluate(answer, energy=False).step_time_s == answer.step_time_s


def test_frozen_weights_are_in_memory() -> None:
    model = from_torch(partly_trained("lora"), (tokens(),))
    graph, job = model_graph(model), dt.Job(model, 40, 16)
    plan = resolve_plan(PlanSpec(zero_stage=0, micro_batch=1), chips=8, global_batch=16, num_layers=model.num_layers)
    memory = dt.evaluate(plan, job, cluster, "torchtitan").memory_by_phase[0]["optimizer"]
    assert graph.trained_parameters() == 3 * 8 * (48 + 96) < graph.parameters() / 5
    assert memory["weights"] == pytest.approx(2 * graph.parameters())
    assert memory["gradients"] == pytest.approx(4 * graph.trained_parameters())
    assert memory["optimizer"] == pytest.approx(12 * graph.trained_parameters())


def test_products_that_are_lost_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check on the graph's products can fail."""
    monkeypatch.setattr(lowering, "products_of", lambda node: 1e9)
    (said,) = from_torch(strange(), (tokens(),)).left_out
    assert said.startswith("products of ")


def test_strict_refuses_it_by_name() -> None:
    with pytest.raises(InputError, match=r"can only be approximated: .*special_bessel_j0"):
        from_torch(strange(), (tokens(),), strict=True)


def test_a_module_is_as_it_was_after_its_trace() -> None:
    module = strange().eval()
    before = dict(module.named_parameters())
    from_torch(module, (tokens(),))
    assert all(p is before[name] and p.device.type == "meta" for name, p in module.named_parameters())
    assert not module.training
    assert "forward" not in vars(module)


def test_a_module_that_fails_is_one_sentence() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ torch.zeros(7, 7)

    with pytest.raises(InputError, match=r"module: cannot be run without contents .*RuntimeError"):
        from_torch(Broken(), (torch.zeros(2, 40, 48),))


def test_inputs_without_a_tensor_are_refused() -> None:
    with pytest.raises(InputError, match="example_inputs: hold no tensor"):
        from_torch(strange(), ())


def test_plans_differ_where_traced_layers_differ() -> None:
    """The same plan on another model is another time: nothing is read off names alone."""
    assert step_time_s(traced_module("gpt"), PLANS[0], 40) != step_time_s(traced_module("dense_mixture"), PLANS[0], 40)
