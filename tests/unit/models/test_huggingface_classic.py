"""Importers of the GPT-2 and BERT lines: published sizes, and a sentence for what is missing or unknown."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.errors import InputError
from dovetail.models import Model, model_graph
from dovetail.models.huggingface import IMPORTERS
from dovetail.models.huggingface.reader import ConfigReader


def imported(model_type: str, **fields: Any) -> Model:
    return IMPORTERS[model_type](ConfigReader(fields, "config.json"), "model")


def usual(hidden: int, layers: int, heads: int, vocab: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocab,
    }


def gpt2_names(hidden: int, layers: int, heads: int, vocab: int) -> dict[str, int]:
    return {"n_embd": hidden, "n_layer": layers, "n_head": heads, "vocab_size": vocab}


#: Parameters of checkpoints, as counted from their files.
PUBLISHED: list[tuple[str, str, dict[str, Any], int]] = [
    ("GPT-2", "gpt2", gpt2_names(768, 12, 12, 50257), 124_439_808),
    ("GPT-J", "gptj", gpt2_names(4096, 28, 16, 50400), 6_050_882_784),
    ("GPT-NeoX", "gpt_neox", usual(6144, 44, 64, 50432) | {"intermediate_size": 24576}, 20_554_567_680),
    (
        "OPT-350M",
        "opt",
        usual(1024, 24, 16, 50272) | {"ffn_dim": 4096, "word_embed_proj_dim": 512, "do_layer_norm_before": False},
        331_196_416,
    ),
    ("BLOOM", "bloom", {"n_embed": 14336, "n_layer": 70, "n_head": 112, "vocab_size": 250880}, 176_247_271_424),
    ("Falcon-7B", "falcon", usual(4544, 32, 71, 65024), 6_921_720_704),
    ("MPT-7B", "mpt", {"d_model": 4096, "n_layers": 32, "n_heads": 32, "vocab_size": 50432}, 6_649_286_656),
    ("Phi-2", "phi", usual(2560, 32, 32, 51200) | {"intermediate_size": 10240}, 2_779_683_840),
    ("BERT", "bert", usual(768, 12, 12, 30522) | {"intermediate_size": 3072}, 109_514_298),
    (
        "RoBERTa",
        "roberta",
        usual(768, 12, 12, 50265) | {"intermediate_size": 3072, "max_position_embeddings": 514, "type_vocab_size": 1},
        124_697_433,
    ),
]


@pytest.mark.parametrize(
    ("model_type", "fields", "parameters"), [c[1:] for c in PUBLISHED], ids=[c[0] for c in PUBLISHED]
)
def test_published_sizes(model_type: str, fields: dict[str, Any], parameters: int) -> None:
    assert model_graph(imported(model_type, **fields)).parameters() == parameters


def test_positions_a_model_can_use() -> None:
    sizes = usual(64, 2, 4, 100) | {"intermediate_size": 128, "max_position_embeddings": 514}
    assert imported("roberta", **sizes).max_seq_len == 512
    assert imported("opt", **sizes, ffn_dim=128).max_seq_len == 514
    assert imported("opt", **sizes, ffn_dim=128).embedding.positions == 516


def test_dropout_follows_the_config() -> None:
    assert imported("gpt2", **gpt2_names(64, 2, 4, 100)).dropout
    assert not imported("gpt2", **gpt2_names(64, 2, 4, 100), resid_pdrop=0.0).dropout


def test_gpt_neo_layers() -> None:
    sizes = {"hidden_size": 64, "num_heads": 4, "vocab_size": 100, "num_layers": 3}
    model = imported("gpt_neo", **sizes, attention_types=[[["global"], 1], [["local", "global"], 1]])
    order = [name for part in model.layers for _ in range(part.repeat) for name in part.blocks]
    assert order == ["global", "local", "global"]


# every size of Gemma 3 has a default
@pytest.mark.parametrize("model_type", sorted(IMPORTERS.keys() - {"gemma3_text"}))
def test_missing_sizes_are_named(model_type: str) -> None:
    # Gemma 4 has per-layer inputs unless a config says otherwise, and those are refused first
    fields = {"hidden_size_per_layer_input": 0} if model_type == "gemma4_text" else {}
    with pytest.raises(InputError, match=r"^config\.json: \w+: is missing.*; add it as .*\.$"):
        imported(model_type, **fields)


GPT_NEO = {"hidden_size": 64, "num_heads": 4, "num_layers": 2, "vocab_size": 100}
MPT = {"d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 100}


@pytest.mark.parametrize(
    ("model_type", "fields", "sentence"),
    [
        (
            "gpt2",
            gpt2_names(64, 2, 4, 100) | {"add_cross_attention": True},
            "add_cross_attention: needs cross-attention",
        ),
        ("gpt2", gpt2_names(64, 2, 5, 100), "n_head: 5 does not divide the hidden size 64"),
        (
            "gpt2",
            gpt2_names(64, 2, 4, 100) | {"resid_pdrop": 2},
            "resid_pdrop: is 2; it should be a number from 0 to 1",
        ),
        (
            "opt",
            usual(64, 2, 4, 100) | {"ffn_dim": 128, "word_embed_proj_dim": 32, "tie_word_embeddings": False},
            "word_embed_proj_dim: needs an untied output table",
        ),
        (
            "bloom",
            gpt2_names(64, 2, 4, 100) | {"apply_residual_connection_post_layernorm": True},
            "apply_residual_connection_post_layernorm: needs a residual stream",
        ),
        (
            "falcon",
            usual(64, 2, 4, 100) | {"new_decoder_architecture": True, "parallel_attn": False},
            "parallel_attn: is False; it should be True",
        ),
        ("mpt", MPT | {"attn_config": {"qk_ln": True}}, "attn_config: qk_ln: is True; it should be False"),
        ("mpt", MPT | {"expansion_ratio": 8}, "expansion_ratio: is 8; it should be 4"),
        ("gpt_neo", GPT_NEO | {"attention_types": [[["local"], 3]]}, "attention_types: covers more layers"),
        ("gpt_neo", GPT_NEO | {"attention_types": [[["local"], 1]]}, "attention_types: covers 1 layers"),
        ("gpt_neo", GPT_NEO | {"attention_types": "local"}, "attention_types: holds 'local'"),
        ("bert", usual(64, 2, 4, 100) | {"position_embedding_type": "relative_key"}, "position_embedding_type: is"),
    ],
)
def test_refusals(model_type: str, fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as error:
        imported(model_type, **fields)
    assert sentence in str(error.value)
