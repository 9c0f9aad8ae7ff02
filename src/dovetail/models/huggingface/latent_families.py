"""Importers of decoders with multi-head latent attention: DeepSeek, Kimi, GLM-5."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.models.huggingface.decoder import BlockFields, Importer, without_none
from dovetail.models.huggingface.mixture_families import deepseek_layers
from dovetail.models.huggingface.reader import ConfigReader
from dovetail.models.limits import MAX_HEADS, MAX_TOKENS
from dovetail.models.model import Model


def latent_attention(reader: ConfigReader, **options: object) -> BlockFields:
    """Latent attention from the usual fields."""
    fields: BlockFields = {
        "kind": "latent_attention",
        "heads": reader.integer("num_attention_heads", high=MAX_HEADS),
        "query_rank": reader.optional("q_lora_rank"),
        "kv_rank": reader.integer("kv_lora_rank"),
        "nope_dim": reader.integer("qk_nope_head_dim"),
        "rope_dim": reader.integer("qk_rope_head_dim"),
        "value_dim": reader.integer("v_head_dim"),
        "bias": reader.flag("attention_bias", default=False),
    }
    return without_none(fields | options)


def deepseek_v2(reader: ConfigReader, name: str) -> Model:
    """DeepSeek-V2: softmax routing."""
    bias = reader.flag("mlp_bias", default=False)
    return deepseek_layers(reader, name, latent_attention(reader), score="softmax", bias=bias)


def deepseek_v3(reader: ConfigReader, name: str) -> Model:
    """DeepSeek-V3, Kimi K2: sigmoid routing with a balancing bias."""
    return deepseek_layers(reader, name, latent_attention(reader))


def glm4_lite(reader: ConfigReader, name: str) -> Model:
    """GLM-4.7-Flash: the first layer dense unless the config says otherwise."""
    return deepseek_layers(reader, name, latent_attention(reader), dense_first=1)


def sparse_latent(reader: ConfigReader, name: str) -> Model:
    """DeepSeek-V3.2, GLM-5: an indexer picks the keys each query attends to."""
    indexer = {
        "heads": reader.integer("index_n_heads", high=MAX_HEADS),
        "head_dim": reader.integer("index_head_dim"),
        "top_k": reader.integer("index_topk", high=MAX_TOKENS),
        "query_from": "latent",
    }
    return deepseek_layers(reader, name, latent_attention(reader, indexer=indexer))


#: `model_type` → importer.
LATENT: Mapping[str, Importer] = {
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "deepseek_v32": sparse_latent,
    "glm4_moe_lite": glm4_lite,
    "glm_moe_dsa": sparse_latent,
    "kimi_k2": deepseek_v3,
}
