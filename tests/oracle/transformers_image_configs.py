"""Small configs of transformers' models of images and text, and what such a model really runs on."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers_configs import VOCAB

from dovetail.models.tracing.transformers_images import Images

#: Where an image stands among the tokens.
IMAGE = 7

_TEXT = {
    "vocab_size": VOCAB, "hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 20,
    "intermediate_size": 224, "num_hidden_layers": 3, "max_position_embeddings": 1024, "rms_norm_eps": 1e-6,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
#: An encoder of patches that knows its image's size.
_SIGLIP = {
    "model_type": "siglip_vision_model", "hidden_size": 80, "intermediate_size": 136, "num_hidden_layers": 2,
    "num_attention_heads": 5, "image_size": 64, "patch_size": 8,
}  # fmt: skip
_QWEN_VISION = {
    "depth": 2, "hidden_size": 80, "intermediate_size": 136, "num_heads": 5, "patch_size": 4, "temporal_patch_size": 2,
    "spatial_merge_size": 2, "out_hidden_size": 96, "num_position_embeddings": 64,
}  # fmt: skip
_QWEN_TOKENS = {
    "image_token_id": IMAGE, "video_token_id": 8, "vision_start_token_id": 9, "vision_end_token_id": 10,
}  # fmt: skip


def _text(model_type: str, **fields: Any) -> dict[str, Any]:
    return {"model_type": model_type, **_TEXT, **fields}


#: Name of the case → its config.json.
IMAGE_CONFIGS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "qwen3_5": {
            "model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"], **_QWEN_TOKENS,
            "text_config": _text(
                "qwen3_5_text", head_dim=24, layer_types=["full_attention"] * 3,
                linear_key_head_dim=12, linear_value_head_dim=14, linear_num_key_heads=2, linear_num_value_heads=4,
                rope_parameters={"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.5,
                                 "mrope_section": [2, 2, 2], "mrope_interleaved": True},
            ),
            "vision_config": {"model_type": "qwen3_5", **_QWEN_VISION},
        },
        "qwen2_5_vl": {
            "model_type": "qwen2_5_vl", "architectures": ["Qwen2_5_VLForConditionalGeneration"], **_QWEN_TOKENS,
            "text_config": _text(
                "qwen2_5_vl_text", hidden_size=120, head_dim=20, use_sliding_window=False,
                rope_parameters={"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 3, 3]},
            ),
            "vision_config": {
                "model_type": "qwen2_5_vl", **_QWEN_VISION, "out_hidden_size": 120, "window_size": 32,
                "fullatt_block_indexes": [1],
            },
        },
        "kimi_k25": {
            "model_type": "kimi_k25", "architectures": ["Kimi_K25ForConditionalGeneration"], "image_token_id": IMAGE,
            "projection_hidden_size": 80,
            "text_config": _text(
                "deepseek_v3", num_key_value_heads=6, head_dim=8, q_lora_rank=72, kv_lora_rank=40, qk_nope_head_dim=16,
                qk_rope_head_dim=8, v_head_dim=20, n_routed_experts=8, num_experts_per_tok=3, n_group=1, topk_group=1,
                moe_intermediate_size=56, first_k_dense_replace=1, n_shared_experts=1, **_ROPE,
            ),
            "vision_config": {
                "model_type": "kimi_k25_vision", "hidden_size": 80, "intermediate_size": 136, "num_attention_heads": 5,
                "num_hidden_layers": 2, "patch_size": 4, "merge_kernel_size": [2, 2], "pos_emb_height": 16,
                "pos_emb_width": 16, "pos_emb_time": 2,
            },
        },
        "gemma4": {
            "model_type": "gemma4", "architectures": ["Gemma4ForConditionalGeneration"], "image_token_id": IMAGE,
            "video_token_id": 8, "audio_token_id": 9, "audio_config": None,
            "text_config": _text(
                "gemma4_text", sliding_window=1024, hidden_size_per_layer_input=0,
                num_kv_shared_layers=0, layer_types=["sliding_attention", "sliding_attention", "full_attention"],
                global_head_dim=40, tie_word_embeddings=True,
            ),
            "vision_config": {
                "model_type": "gemma4_vision", "hidden_size": 80, "intermediate_size": 136, "num_attention_heads": 5,
                "num_key_value_heads": 5, "head_dim": 16, "num_hidden_layers": 2, "patch_size": 4,
                "pooling_kernel_size": 2, "position_embedding_size": 64,
            },
        },
        "gemma3": {
            "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "image_token_index": IMAGE,
            "mm_tokens_per_image": 16,
            "text_config": _text(
                "gemma3_text", sliding_window=1024, tie_word_embeddings=True,
                layer_types=["sliding_attention", "sliding_attention", "full_attention"],
                rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 1e6},
                                 "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}},
            ),
            "vision_config": {**_SIGLIP, "vision_use_head": False},
        },
        "llava": {
            "model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "image_token_id": IMAGE,
            "vision_feature_layer": -1, "vision_feature_select_strategy": "full",
            "text_config": _text("llama", **_ROPE), "vision_config": {**_SIGLIP, "vision_use_head": False},
        },
    }
)  # fmt: skip


def build(name: str, device: str = "cpu") -> Any:
    """The module transformers builds from a config."""
    fields = {k: v for k, v in IMAGE_CONFIGS[name].items() if k != "architectures"}
    with torch.device(device):
        return AutoModelForImageTextToText.from_config(AutoConfig.for_model(**fields))


def real_features(module: Any, images: Images) -> int:
    """How many tokens the encoder really makes of one image."""
    numbers = {name: torch.tensor(rows) for name, rows in images.numbers.items()}
    with torch.no_grad():
        made = module.get_image_features(torch.zeros(images.pixels), **numbers)
    features = getattr(made, "pooler_output", made)
    rows = features if isinstance(features, torch.Tensor) else torch.cat(list(features))
    return rows.numel() // rows.shape[-1] // 2


def inputs(images: Images, tokens: int, batch: int, seq: int, names: frozenset[str]) -> dict[str, torch.Tensor]:
    """What a model really takes: pixels, and as many tokens that stand for them."""
    ids = torch.full((batch, seq), 11)
    ids[:, 1 : tokens + 1] = IMAGE
    kinds = (ids == IMAGE).long()
    given = {"input_ids": ids, "labels": ids, "pixel_values": torch.zeros(images.pixels)}
    given |= {name: torch.tensor(rows) for name, rows in images.numbers.items()}
    return given | {name: kinds for name in ("mm_token_type_ids", "token_type_ids") if name in names}
