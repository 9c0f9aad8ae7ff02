"""The oracle of autograd's FLOPs against closed forms, and its two ways against each other."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import torch.nn.functional as F  # noqa: N812
import torch_models
import transformers_configs
from autograd_flops import UncountedError, autograd_flops, joint_flops
from torch import nn
from torch_models import DenseMixture, LoopedMixture, VitBlock, chunked_scan

pytestmark = pytest.mark.torch

BATCH, SEQ, HIDDEN, FFN, HEADS = 3, 20, 48, 112, 4

#: The joint graph takes ten times as long to make.
each_way = pytest.mark.parametrize("count", [pytest.param(joint_flops, marks=pytest.mark.slow), autograd_flops])


def on_meta(make: Any) -> nn.Module:
    with torch.device("meta"):
        return make()


def stream(*, differentiable: bool) -> torch.Tensor:
    return torch.empty(BATCH, SEQ, HIDDEN, device="meta", requires_grad=differentiable)


# a gradient of the input counts only where someone asks for it; without one the first layer has no input gradient
@each_way
@pytest.mark.parametrize("trained", [True, False])
def test_a_stack_of_linears(count: Any, trained: bool) -> None:
    final = on_meta(lambda: nn.Linear(FFN, 7, bias=False)).requires_grad_(trained)
    stack = nn.Sequential(on_meta(lambda: nn.Linear(HIDDEN, FFN)), nn.ReLU(), final)
    first, last = 2 * BATCH * SEQ * HIDDEN * FFN, 2 * BATCH * SEQ * FFN * 7
    forward, backward, operators = count(stack, (stream(differentiable=False),))
    assert forward == first + last
    assert backward == first + last + last * trained
    assert operators == {"addmm": first, "mm": forward + backward - first}


@each_way
def test_an_asked_for_input_gradient_counts(count: Any) -> None:
    linear = on_meta(lambda: nn.Linear(HIDDEN, FFN))
    product = 2 * BATCH * SEQ * HIDDEN * FFN
    assert count(linear, (stream(differentiable=False),))[:2] == (product, product)
    assert count(linear, (stream(differentiable=True),))[:2] == (product, 2 * product)


@each_way
def test_a_transformer_layer(count: Any) -> None:
    """Attention in one operator: four products backward for its two forward."""
    layer = on_meta(lambda: VitBlock(HIDDEN, HEADS, FFN))
    first = 2 * BATCH * SEQ * HIDDEN * 3 * HIDDEN
    attention = 4 * BATCH * SEQ * SEQ * HIDDEN
    linears = first + 2 * BATCH * SEQ * HIDDEN * (HIDDEN + 2 * FFN)
    forward, backward, operators = count(layer, (stream(differentiable=False),))
    # behind a norm with a weight, the first product's input has a gradient too
    assert (forward, backward) == (linears + attention, 2 * (linears + attention))
    assert operators["_scaled_dot_product_flash_attention_for_cpu"] == attention
    assert operators["_scaled_dot_product_flash_attention_for_cpu_backward"] == 2 * attention
    layer.register_module("norm1", nn.Identity())
    assert count(layer, (stream(differentiable=False),))[:2] == (forward, backward - first)


def test_attention_in_one_operator_costs_what_it_costs_written_out() -> None:
    class Attention(nn.Module):
        def __init__(self, fused: bool) -> None:
            super().__init__()
            self.fused = fused
            self.scale = nn.Parameter(torch.empty(HEADS, SEQ, HIDDEN // HEADS))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.view(BATCH, SEQ, HEADS, -1).transpose(1, 2) * self.scale
            if self.fused:
                return F.scaled_dot_product_attention(x, x, x, is_causal=True)
            return (x @ x.transpose(-2, -1)).softmax(dim=-1) @ x

    fused, written = (
        joint_flops(on_meta(partial(Attention, f)), (stream(differentiable=False),)) for f in (True, False)
    )
    assert fused[:2] == written[:2] == (4 * BATCH * SEQ * SEQ * HIDDEN, 8 * BATCH * SEQ * SEQ * HIDDEN)


@each_way
@pytest.mark.parametrize("groups", [1, 4, HIDDEN])
def test_a_convolution_in_groups(count: Any, groups: int) -> None:
    conv = on_meta(lambda: nn.Conv1d(HIDDEN, 2 * HIDDEN, 5, groups=groups, stride=2))
    places = (17 - 5) // 2 + 1
    forward = 2 * BATCH * places * 2 * HIDDEN * (HIDDEN // groups) * 5
    x = partial(torch.empty, BATCH, HIDDEN, 17, device="meta")
    assert count(conv, (x(),))[:2] == (forward, forward)
    assert count(conv, (x(requires_grad=True),))[:2] == (forward, 2 * forward)


@each_way
def test_a_loss_of_its_own_is_the_loss(count: Any) -> None:
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(HIDDEN, FFN)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(self.linear(x).flatten(0, 1), labels.flatten())

    labels = torch.zeros(BATCH, SEQ, dtype=torch.int64, device="meta")
    product = 2 * BATCH * SEQ * HIDDEN * FFN
    assert count(on_meta(Classifier), (stream(differentiable=False), labels))[:2] == (product, product)


@each_way
def test_an_operator_without_a_formula_is_noticed(count: Any) -> None:
    bilinear = on_meta(lambda: nn.Bilinear(HIDDEN, HIDDEN, FFN))
    with pytest.raises(UncountedError, match="_trilinear"):
        count(bilinear, (stream(differentiable=False), stream(differentiable=False)))


# ---- the models that traces are tried on -------------------------------------------------------------------------


#: One layer of each kind.
SHORT: dict[str, dict[str, Any]] = {
    "gpt": {"layers": 1},
    "mamba": {"layers": 1},
    "vit": {"layers": 1},
    "dit": {"layers": 1},
    "unet": {"depth": 1},
    "encoder_decoder": {"encoders": 1, "decoders": 1},
    "dense_mixture": {"layers": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_the_traced_graph_costs_what_running_costs(name: str) -> None:
    module = torch_models.build(name, **SHORT[name])
    forward, backward, _ = joint_flops(module, module.example(BATCH))
    assert 0 < forward < backward <= 2 * forward
    assert autograd_flops(module, module.example(BATCH))[:2] == (forward, backward)


@pytest.mark.parametrize("name", torch_models.CASES)
def test_the_models_run_for_real(name: str) -> None:
    torch.manual_seed(0)
    module = torch_models.build(name, device="cpu")
    out = module(*module.example(BATCH, device="cpu"))
    assert out.isfinite().all()
    gradients = torch.autograd.grad(out.square().mean(), list(module.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize(
    ("name", "parameters"), [("gpt", 124_439_808), ("vit", 86_567_656), ("dit", 674_816_272)], ids=str
)
def test_realistic_sizes_are_those_of_published_models(name: str, parameters: int) -> None:
    # DiT-XL/2 has 675M of them
    assert sum(p.numel() for p in torch_models.build(name, realistic=True).parameters()) == parameters


def test_experts_in_a_loop_cost_what_their_tokens_cost() -> None:
    experts, top_k = 6, 2
    torch.manual_seed(0)
    x = torch.randn(BATCH, SEQ, HIDDEN)
    tokens, router = BATCH * SEQ, 2 * BATCH * SEQ * HIDDEN * experts
    looped = autograd_flops(LoopedMixture(HIDDEN, FFN, experts, top_k), (x,))
    expert = 4 * tokens * HIDDEN * FFN
    assert looped[0] == router + top_k * expert
    dense = autograd_flops(DenseMixture(HIDDEN, FFN, experts, top_k), (x,))
    assert dense[0] == router + experts * expert + 2 * tokens * experts * HIDDEN


def test_the_chunked_scan_is_a_recurrence() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 24, 3, 5, dtype=torch.float64)
    decay = -torch.rand(2, 24, 3, dtype=torch.float64)
    into, out_of = torch.randn(2, 2, 24, 7, dtype=torch.float64)
    state, expected = torch.zeros(2, 3, 5, 7, dtype=torch.float64), []
    for t in range(24):
        state = decay[:, t].exp()[..., None, None] * state + x[:, t, ..., None] * into[:, t, None, None]
        expected.append((state @ out_of[:, t, None, :, None]).squeeze(-1))
    torch.testing.assert_close(chunked_scan(x, decay, into, out_of, chunk=8), torch.stack(expected, dim=1))


@pytest.mark.slow
def test_a_model_of_transformers_costs_three_times_its_products() -> None:
    """Grouped products of experts among them; nothing lies before the table of tokens."""
    module, arguments = transformers_configs.build("mixtral", num_hidden_layers=1), transformers_configs.inputs()
    hidden, heads, kv_heads, width, ffn, top_k, experts = 96, 6, 2, 20, 224, 2, 8
    tokens, seq = transformers_configs.BATCH * transformers_configs.SEQ, transformers_configs.SEQ
    attention = 4 * tokens * seq * heads * width
    grouped = 6 * tokens * top_k * hidden * ffn
    linears = 2 * tokens * hidden * (2 * heads * width + 2 * kv_heads * width + experts)
    forward = attention + grouped + linears + 2 * tokens * hidden * transformers_configs.VOCAB
    joint, ran = joint_flops(module, (), arguments), autograd_flops(module, (), arguments)
    assert joint[:2] == ran[:2] == (forward, 2 * forward)
    assert joint[2]["_grouped_mm"] == 3 * grouped
