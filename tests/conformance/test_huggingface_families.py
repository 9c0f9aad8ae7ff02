"""Importers against transformers: equal parameter counts for small configs of every family."""

from __future__ import annotations

from functools import cache

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from huggingface_reference import reference_parameters
from huggingface_variations import Fields, variations

from dovetail.models import Model, model_graph, prediction_parameters
from dovetail.models.huggingface import IMPORTERS, TEXT_PARTS, import_config
from dovetail.models.huggingface.reader import ConfigReader

pytestmark = pytest.mark.torch

VARIATIONS = 12

every_type = pytest.mark.parametrize("model_type", sorted(IMPORTERS))


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


@pytest.mark.parametrize("outer", sorted(TEXT_PARTS))
def test_text_part(outer: str) -> None:
    for fields, complete, expected in references(TEXT_PARTS[outer]):
        whole = {"model_type": outer, "text_config": complete, "vision_config": {"hidden_size": 8}}
        assert parameters(import_config(whole, "config.json")) == expected, fields
