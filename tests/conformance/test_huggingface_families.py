"""Importers against transformers: equal parameter counts for small configs of every family."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from huggingface_reference import config_class, reference_parameters
from huggingface_variations import Fields, variations

from dovetail.models import Model, model_graph, prediction_parameters
from dovetail.models.huggingface import IMPORTERS, TEXT_PARTS, import_config
from dovetail.models.huggingface.reader import ConfigReader

pytestmark = pytest.mark.torch

VARIATIONS = 12

#: Types only their authors' own code builds; tests/published holds their counts.
NOT_IN_TRANSFORMERS = {"deepseek"}

every_type = pytest.mark.parametrize("model_type", sorted(IMPORTERS.keys() - NOT_IN_TRANSFORMERS))


@cache
def references(model_type: str) -> list[tuple[Fields, Fields, int]]:
    """Small configs as someone would write them, the same with every field, and transformers' count."""
    return [
        (fields, config.to_dict(), reference_parameters(config))
        for fields, config in variations(model_type, VARIATIONS)
    ]


def parameters(model: Model) -> int:
    """Our count, without the multi-token-prediction modules, which transformers leaves out."""
    graph = model_graph(model)
    return graph.parameters() - prediction_parameters(graph)


def imported(model_type: str, fields: Fields) -> int:
    """Our count of a config's model."""
    return parameters(IMPORTERS[model_type](ConfigReader(fields, "config.json"), "small"))


@every_type
def test_counts_equal(model_type: str) -> None:
    for fields, complete, expected in references(model_type):
        assert imported(model_type, complete) == expected, fields


@every_type
def test_absent_fields_take_their_defaults(model_type: str) -> None:
    for fields, _, expected in references(model_type):
        assert imported(model_type, fields) == expected, fields


@every_type
def test_variations_vary(model_type: str) -> None:
    assert len({expected for _, _, expected in references(model_type)}) > VARIATIONS // 2


def test_lists_of_equal_entries_count_as_their_entry() -> None:
    fields = {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 3072, "num_experts": 64, "moe_topk": 8, "vocab_size": 128167,
        "tie_word_embeddings": True,
    }  # fmt: skip
    expected = reference_parameters(known_class("hunyuan_v1_moe")(**fields))
    lists = {"moe_intermediate_size": [3072] * 32, "moe_topk": [8] * 32, "num_shared_expert": [1] * 32}
    assert imported("hunyuan_v1_moe", fields | lists) == expected == 80_393_183_232


def known_class(model_type: str) -> Any:
    found = config_class(model_type)
    assert found is not None
    return found


def test_empty_lists_of_llama4() -> None:
    for _, complete, _ in references("llama4_text"):
        for lists in ({"no_rope_layers": []}, {"moe_layers": []}):
            given = {name: value for name, value in complete.items() if name != "layer_types"} | lists
            expected = reference_parameters(known_class("llama4_text").from_dict(given))
            assert imported("llama4_text", given) == expected, lists


@pytest.mark.parametrize("outer", sorted(TEXT_PARTS))
def test_text_part(outer: str) -> None:
    for fields, complete, expected in references(TEXT_PARTS[outer]):
        whole = {"model_type": outer, "text_config": complete, "vision_config": {"hidden_size": 8}}
        assert parameters(import_config(whole, "config.json")) == expected, fields
