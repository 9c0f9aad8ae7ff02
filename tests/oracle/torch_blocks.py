"""Blocks of published models: the module transformers builds beside the same block described by hand.

Modules stand on the meta device, so that a 256-expert block costs no memory; the rotary tables are handed
in, as a whole model does, and so never counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AttentionInterface,
    BertConfig,
    DeepseekV3Config,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    PreTrainedConfig,
)
from transformers.models.bert.modeling_bert import BertLayer
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3DecoderLayer
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, repeat_kv
from transformers.models.mixtral.modeling_mixtral import MixtralDecoderLayer

from dovetail.documents import validate
from dovetail.graph import LayerGraph
from dovetail.models import Model, model_graph

#: Tokens that 256 experts do not share out evenly: 93.75 each.
BATCH, SEQ = 3, 1000

UNFUSED, FUSED = "eager", "one_attention_operator"


def attend_in_one_operator(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: object, **options: Any
) -> tuple[torch.Tensor, None]:
    """PyTorch's own fused operator, called by name: the dispatcher would choose a decomposition on meta."""
    groups = query.shape[1] // key.shape[1]
    out = torch.ops.aten._scaled_dot_product_efficient_attention(
        query,
        repeat_kv(key, groups),
        repeat_kv(value, groups),
        attn_bias=None,
        compute_log_sumexp=True,
        is_causal=bool(getattr(module, "is_causal", False)),
        scale=options["scaling"],
    )[0]
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(FUSED, attend_in_one_operator)


@dataclass(frozen=True)
class Case:
    """One block, twice: how transformers builds it and how a model file describes it."""

    layer: Callable[..., nn.Module]
    config: Callable[..., PreTrainedConfig]
    hidden: int
    #: the block of our model file
    block: Mapping[str, Any]
    #: which layer of the model it is
    index: int = 0
    #: width of the rotary tables
    rotary: int = 0

    def module(self, attention: str, *, experts: str = "grouped_mm", device: str = "meta") -> nn.Module:
        """The block as transformers builds it; experts in one operator keep their shapes in any routing."""
        config = self.config(attn_implementation=attention, experts_implementation=experts)
        with torch.device(device):
            return self.layer(config, self.index).to(torch.bfloat16)

    def arguments(
        self, device: str = "meta", batch: int = BATCH, seq: int = SEQ
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """The residual stream, which requires a gradient, and the rotary tables, which do not."""
        make = partial(torch.zeros, dtype=torch.bfloat16, device=device)
        tables = tuple(make(batch, seq, self.rotary) for _ in range(2))
        options = {"position_embeddings": tables} if self.rotary else {}
        return make(batch, seq, self.hidden, requires_grad=True), options

    def graph(self, *, fused: bool) -> LayerGraph:
        """The block as this package builds it."""
        document = {
            "name": "one-block",
            "hidden": self.hidden,
            "vocab": 32000,
            "blocks": {"block": self.block},
            "layers": [{"blocks": ["block"]}],
        }
        return model_graph(validate(Model, document, "one-block"), fused_attention=fused).layers["block"]


_LATENT = {
    "kind": "latent_attention", "heads": 128, "query_rank": 1536, "kv_rank": 512,
    "nope_dim": 128, "rope_dim": 64, "value_dim": 128,
}  # fmt: skip
_DEEPSEEK = partial(
    DeepseekV3Config, hidden_size=7168, intermediate_size=18432, moe_intermediate_size=2048,
    num_attention_heads=128, num_key_value_heads=128, q_lora_rank=1536, kv_lora_rank=512,
    qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, first_k_dense_replace=3,
    n_routed_experts=256, num_experts_per_tok=8, n_shared_experts=1, n_group=8, topk_group=4,
)  # fmt: skip

CASES: Mapping[str, Case] = MappingProxyType(
    {
        "llama-3.1-8b": Case(
            LlamaDecoderLayer,
            partial(
                LlamaConfig,
                hidden_size=4096,
                intermediate_size=14336,
                num_attention_heads=32,
                num_key_value_heads=8,
            ),
            4096,
            {
                "mixer": {"kind": "attention", "heads": 32, "kv_heads": 8, "head_dim": 128},
                "feed_forward": {"kind": "dense", "size": 14336},
            },
            rotary=128,
        ),
        "mixtral-8x7b": Case(
            MixtralDecoderLayer,
            partial(
                MixtralConfig, hidden_size=4096, intermediate_size=14336, num_attention_heads=32,
                num_key_value_heads=8, num_local_experts=8, num_experts_per_tok=2,
            ),
            4096,
            {
                "mixer": {"kind": "attention", "heads": 32, "kv_heads": 8, "head_dim": 128},
                "feed_forward": {"kind": "mixture", "experts": 8, "top_k": 2, "size": 14336},
            },
            rotary=128,
        ),
        "deepseek-v3-dense": Case(
            DeepseekV3DecoderLayer,
            _DEEPSEEK,
            7168,
            {"mixer": _LATENT, "feed_forward": {"kind": "dense", "size": 18432}},
            index=0,
            rotary=64,
        ),
        "deepseek-v3-moe": Case(
            DeepseekV3DecoderLayer,
            _DEEPSEEK,
            7168,
            {
                "mixer": _LATENT,
                "feed_forward": {
                    "kind": "mixture", "experts": 256, "top_k": 8, "size": 2048, "shared_size": 2048,
                    "score": "sigmoid", "correction_bias": True, "groups": 8, "top_groups": 4,
                },
            },
            index=3,
            rotary=64,
        ),
        "gpt2-xl": Case(
            GPT2Block,
            partial(GPT2Config, n_embd=1600, n_head=25),
            1600,
            {
                "mixer": {
                    "kind": "attention", "heads": 25, "kv_heads": 25, "head_dim": 64,
                    "rotary": False, "qkv_bias": True, "output_bias": True,
                },
                "feed_forward": {"kind": "dense", "size": 6400, "activation": "gelu_tanh", "bias": True},
                "norm": "layer",
            },
        ),
        "bert-large": Case(
            lambda config, _: BertLayer(config),
            partial(BertConfig, hidden_size=1024, num_attention_heads=16, intermediate_size=4096),
            1024,
            {
                "mixer": {
                    "kind": "attention", "heads": 16, "kv_heads": 16, "head_dim": 64, "causal": False,
                    "rotary": False, "qkv_bias": True, "output_bias": True,
                },
                "feed_forward": {"kind": "dense", "size": 4096, "activation": "gelu", "bias": True},
                "norm": "layer",
                "norm_position": "residual",
            },
        ),
    }
)  # fmt: skip

#: A mixture small enough to run for real.
SMALL_MIXTURE = Case(
    MixtralDecoderLayer,
    partial(
        MixtralConfig, hidden_size=48, intermediate_size=80, num_attention_heads=6, num_key_value_heads=2,
        num_local_experts=5, num_experts_per_tok=2,
    ),
    48,
    {
        "mixer": {"kind": "attention", "heads": 6, "kv_heads": 2, "head_dim": 8},
        "feed_forward": {"kind": "mixture", "experts": 5, "top_k": 2, "size": 80},
    },
    rotary=8,
)  # fmt: skip


def grouped_mm_flops(left: torch.Size, right: torch.Size, *_: object, **__: object) -> int:
    """`_grouped_mm` multiplies each group of rows (or of summed columns) by the matrix of its group.

    The groups cut one axis into pieces; every point of that axis lies in one piece. So rows × (group, k, n)
    costs 2·rows·k·n, and (m, columns) × (columns, n) → (group, m, n) costs 2·m·columns·n.
    """
    if len(left) == 2 and len(right) == 3:
        rows, summed = left
        return 2 * rows * summed * right[2]
    if len(left) == 2 and len(right) == 2:
        rows, summed = left
        return 2 * rows * summed * right[1]
    raise AssertionError(f"a grouped product of {left} by {right} occurs in no block")


#: What FlopCounterMode lacks. Its own formulas hold the rest, fused attention included.
FORMULAS = {torch.ops.aten._grouped_mm: grouped_mm_flops}

#: Names of operators that multiply and add over a summed axis.
MATMUL_LIKE = re.compile(r"mm|mv|matmul|dot|linear|einsum|conv|attention|addr|outer|kron|cdist|rnn|lstm|gru")


@dataclass(frozen=True)
class Counts:
    """What PyTorch counts on a block."""

    forward: int
    backward: int
    parameters: int
    operators: frozenset[Any]

    def uncounted(self, formulas: Mapping[Any, Any]) -> set[str]:
        """Matmul-like operators that ran without a formula."""
        return {str(o) for o in self.operators if MATMUL_LIKE.search(o.__name__) and o not in formulas}


class Seen(TorchDispatchMode):
    """Notes which ATen operators run."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators.add(func.overloadpacket)
        return func(*args, **(kwargs or {}))


def counter() -> FlopCounterMode:
    """PyTorch's counter with the formulas it lacks."""
    return FlopCounterMode(display=False, custom_mapping=FORMULAS)


def count(module: nn.Module, stream: torch.Tensor, options: Mapping[str, Any]) -> Counts:
    """Matmul FLOPs of a forward and of a backward, gradients of the stream and of every weight."""
    with Seen() as seen:
        with counter() as forward:
            result = module(stream, **options)
        out = result[0] if isinstance(result, tuple) else result
        with counter() as backward:
            torch.autograd.backward(out, torch.zeros_like(out))
    assert stream.grad is not None
    assert all(p.grad is not None for p in module.parameters())
    return Counts(
        forward.get_total_flops(),
        backward.get_total_flops(),
        sum(p.numel() for p in module.parameters()),
        frozenset(seen.operators),
    )
