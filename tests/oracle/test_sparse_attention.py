"""Which keys attention of traced models sees: as many as the masks of the real modules let it see."""

from __future__ import annotations

import sys
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from traced_models import traced_config
from transformers_configs import build

import dovetail as dt
from dovetail.graph import Kind
from dovetail.models import model_graph

pytestmark = pytest.mark.torch

SEQ = 160


def pairs_of_the_module(name: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pairs of query and key that its masks leave, for one head of one sequence in each layer."""
    module = build(name, "cpu", attn_implementation="eager").float()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.02)
    found: list[int] = []
    file = sys.modules[type(module).__module__]
    eager: Any = vars(file)["eager_attention_forward"]

    def watched(layer: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        found.append(int((mask[0, 0] > -1e4).sum()))
        return eager(layer, query, key, value, mask, **options)

    monkeypatch.setattr(file, "eager_attention_forward", watched)
    module(input_ids=torch.arange(SEQ)[None] + 3, use_cache=False)
    return found


@pytest.mark.parametrize("name", ["deepseek_v32", "deepseek_v4"])
def test_queries_see_as_many_keys_as_masks_leave(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = model_graph(traced_config(name))
    ours: list[float] = []
    for run in graph.chain:
        layer = graph.layers[run.layer]
        sizes = layer.resolve(batch=1, seq=SEQ)
        for operator in layer.operators:
            if operator.kind is Kind.ATTENTION:
                assert operator.mask is not None
                keys = float(sizes[operator.mask.key])
                ours += [float(operator.mask.coverage(sizes, causal=True)) * SEQ * keys] * run.count
    # keys that stand for several tokens are seen from the end of these on: here 7 of 160 tokens later than we count
    assert ours == pytest.approx(pairs_of_the_module(name, monkeypatch), rel=0.03)


@pytest.mark.parametrize("name", ["deepseek_v32", "deepseek_v4"])
def test_tables_of_the_search_count_the_same_keys(name: str) -> None:
    """A search ends in an error where its tables and an evaluation differ."""
    cluster = dt.hardware.cluster_on(dt.hardware.network("rail-optimised"), dt.hardware.chip("h100-sxm"), 8)
    model = traced_config(name).model_copy(update={"described": None})
    answer = dt.plan(dt.Job(model, SEQ, 8), cluster, time_limit_s=20)
    assert answer.best is not None


def test_nothing_of_an_indexer_is_left_out() -> None:
    for name in ("deepseek_v32", "deepseek_v4"):
        assert traced_config(name).left_out == ()
        graph = model_graph(traced_config(name))
        indexers = [o for layer in graph.layers.values() for o in layer.operators if o.kind is Kind.INDEXER]
        assert indexers
        for operator in indexers:
            assert operator.name == "index"
