"""The catalogue against what was published: parameters of transformers to the last one, figures of papers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail.models import Model, ModelSummary, load, names, summarise
from dovetail.models.huggingface import import_config

CONFIGS: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("huggingface_configs.yaml").read_text(encoding="utf-8")
)

#: Model types transformers reads as another type.
SAME_AS = {"kimi_k2": "deepseek_v3"}

#: Catalogue models that transformers cannot build or the importer not read, and why.
WITHOUT_TRANSFORMERS = {
    "glm-130b": "GLM-130B's DeepNorm layers with gated feed-forwards are no architecture of transformers",
    "megatron-bert-345m": "transformers has it as a type of its own, which the importer does not read",
    "palm-540b": "PaLM was never released and is no architecture of transformers",
}

#: Models whose publication rounds its figure by more than 3 %.
ROUNDED = {
    "falcon-40b": "41.3 billion parameters, called 40B",
    "llama-2-7b": "6.74 billion parameters, which the first Llama paper calls 6.7B and the second 7B",
}

#: Models nobody published: they have no figure to compare with.
HYPOTHETICAL = {
    "megatron-gpt2-xl": "a model of PHAZE's code, between two of Megatron's",
    "moe-10t": "an example for tests of scale",
}

#: Published active parameters of mixtures of experts, and how many of the two vocabulary tables they leave out.
ACTIVE: Mapping[str, tuple[float, int]] = {
    "deepseek-v2": (21e9, 0),
    "deepseek-v2-lite": (2.4e9, 1),
    "deepseek-v3": (37e9, 0),
    "gemma-4-26b-a4b": (3.8e9, 0),
    "glm-4.5": (32e9, 2),
    "glm-4.5-air": (12e9, 2),
    "glm-5": (40e9, 0),
    "gpt-oss-120b": (5.13e9, 1),
    "gpt-oss-20b": (3.61e9, 1),
    "kimi-k2": (32e9, 0),
    "llama-4-maverick": (17e9, 0),
    "llama-4-scout": (17e9, 0),
    "mimo-v2-flash": (15e9, 0),
    "minimax-m2": (10e9, 2),
    "minimax-text-01": (45.9e9, 2),
    "mixtral-8x22b": (39e9, 0),
    "mixtral-8x7b": (12.9e9, 0),
    "nemotron-3-nano-30b-a3b": (3.6e9, 0),
    "nemotron-3-super-120b-a12b": (12e9, 1),
    "nemotron-3-ultra-550b-a55b": (55e9, 0),
    "qwen2-57b-a14b": (14e9, 0),
    "qwen3-235b-a22b": (22e9, 0),
    "qwen3-30b-a3b": (3.3e9, 0),
    "qwen3.5-122b-a10b": (10e9, 0),
    "qwen3.5-397b-a17b": (17e9, 0),
}


def _off(summary: ModelSummary) -> float:
    assert summary.published_parameters is not None
    return abs(summary.parameters / summary.published_parameters - 1)


def _text_type(config: Mapping[str, Any]) -> str:
    return str(config.get("text_config", config)["model_type"])


def test_table_is_broad() -> None:
    assert len(CONFIGS) >= 20
    assert len({_text_type(config) for config in CONFIGS.values()}) >= 12


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_equal_transformers(name: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    model_type = CONFIGS[name]["model_type"]
    fields = {field: value for field, value in CONFIGS[name].items() if field != "model_type"}
    config = transformers.AutoConfig.for_model(SAME_AS.get(model_type, model_type), **fields).get_text_config()
    auto = transformers.AutoModelForMaskedLM if model_type == "bert" else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        built = auto.from_config(config)
    assert summarise(load(name)).parameters == sum(weight.numel() for weight in built.parameters())


@pytest.mark.parametrize("name", CONFIGS)
def test_importer_gives_the_catalogue_model(name: str) -> None:
    model = load(name)
    imported = import_config(CONFIGS[name], name, name=name)
    catalogue_only = {"source", "note", "published_parameters", "layers"}
    assert imported.model_dump(exclude=catalogue_only) == model.model_dump(exclude=catalogue_only)
    # the catalogue folds patterns the importer writes out
    assert _order(imported) == _order(model)


def test_deepseek_moe_16b() -> None:
    config = {
        "model_type": "deepseek", "vocab_size": 102400, "hidden_size": 2048, "intermediate_size": 10944,
        "moe_intermediate_size": 1408, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16,
        "n_shared_experts": 2, "n_routed_experts": 64, "num_experts_per_tok": 6, "moe_layer_freq": 1,
        "first_k_dense_replace": 1, "norm_topk_prob": False, "attention_bias": False, "tie_word_embeddings": False,
    }  # fmt: skip
    attention, norms = 4 * 2048 * 2048, 2 * 2048
    dense, sparse = 3 * 2048 * 10944, 64 * 2048 + (64 + 2) * 3 * 2048 * 1408
    expected = 2 * 102400 * 2048 + 28 * (attention + norms) + dense + 27 * sparse + 2048
    assert summarise(import_config(config, "config.json")).parameters == expected
    assert expected == pytest.approx(16.4e9, rel=0.01)
    plain = {name: value for name, value in config.items() if "experts" not in name}
    assert summarise(import_config(plain, "config.json")).parameters == expected - 27 * (sparse - dense)


def _order(model: Model) -> list[str]:
    return [name for part in model.layers for _ in range(part.repeat) for name in part.blocks]


def test_every_model_is_checked_or_has_a_reason() -> None:
    assert set(names()) == set(CONFIGS) | set(WITHOUT_TRANSFORMERS)
    assert not set(CONFIGS) & set(WITHOUT_TRANSFORMERS)
    for name in WITHOUT_TRANSFORMERS:
        assert _off(summarise(load(name))) <= 0.02, name


@pytest.mark.parametrize("name", names())
def test_catalogue_file(name: str) -> None:
    model = load(name)
    assert model.name == name
    assert model.source
    assert (model.published_parameters is None) == (name in HYPOTHETICAL)
    if name not in ROUNDED and name not in HYPOTHETICAL:
        assert _off(summarise(model)) <= 0.03


def test_most_models_are_within_three_percent() -> None:
    assert len(set(names()) - set(ROUNDED)) >= 45
    for name in ROUNDED:
        assert 0.03 < _off(summarise(load(name))) <= 0.05, name


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters(name: str) -> None:
    summary = summarise(load(name))
    published, tables_left_out = ACTIVE[name]
    counted = summary.active_parameters - tables_left_out * summary.hidden * summary.vocab
    assert counted == pytest.approx(published, rel=0.06)
