"""Traced models of transformers agree with what we read from their configs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import transformers
from traced_models import PLANS, imported, saved, step_time_s, traced_config
from transformers_configs import CONFIGS, NOT_IMPORTED

from dovetail.errors import InputError
from dovetail.models import Model, model_graph
from dovetail.models.graph_document import document_of_graph
from dovetail.models.huggingface import IMPORTERS, from_huggingface, import_config
from dovetail.models.tracing import trace_config, trace_document, transformers_model
from dovetail.models.tracing.lowering import lower

pytestmark = pytest.mark.torch

IMPORTED = sorted(CONFIGS.keys() - NOT_IMPORTED)
#: At a size at which step times are not those of launches alone.
BATCH, SEQ = 3, 4096
#: Two plans of each are a minute together: these of every kind of block stand for the others.
QUICK = ("cohere", "deepseek_v3", "falcon_7b", "gpt_oss", "mamba2", "qwen3_next")
each_kind = pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in IMPORTED]
)
CONFIG_FILES = Path(__file__).parents[2].parent / "shared" / "data" / "hf_configs"
needs_configs = pytest.mark.skipif(not CONFIG_FILES.is_dir(), reason="the published configs are not there")


@pytest.mark.parametrize("name", IMPORTED)
def test_a_traced_model_counts_what_its_description_counts(name: str) -> None:
    model = traced_config(name)
    graph, own = model_graph(model), model_graph(imported(name))
    assert graph.parameters() == own.parameters()
    assert graph.active_parameters() == own.active_parameters()
    for causal in (False, True):
        assert graph.forward_flops(BATCH, SEQ, causal=causal) == own.forward_flops(BATCH, SEQ, causal=causal)
        assert graph.training_flops(BATCH, SEQ, causal=causal) == own.training_flops(BATCH, SEQ, causal=causal)
    assert saved(graph, BATCH, SEQ) == pytest.approx(saved(own, BATCH, SEQ), rel=0.02)
    assert model.described is not None
    assert (model.approximated, model.left_out) == ({}, ())
    assert model.num_layers == imported(name).num_layers


@each_kind
def test_a_step_takes_as_long_as_that_of_its_description(name: str) -> None:
    for plan in PLANS:
        own = step_time_s(imported(name), plan, 128)
        assert step_time_s(traced_config(name), plan, 128) == pytest.approx(own, rel=0.02)


#: Families that transformers computes in another way: windows as a mask in a buffer, linear attention written out.
WRITTEN_OTHERWISE = frozenset({"gpt_neo", "minimax"})
#: Types that transformers does not have, or whose default config it cannot build or no reader can read.
NO_DEFAULT = frozenset(
    {
        "deepseek", "deepseek_v2", "dots1", "gemma4_text", "glm4_moe", "hunyuan_v1_dense", "hunyuan_v1_moe", "kimi_k2",
        "minimax_m3", "ministral", "mpt", "nemotron", "step3p5", "step3p7",
    }
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(IMPORTERS.keys() - WRITTEN_OTHERWISE - NO_DEFAULT))
def test_every_family_counts_the_same_by_either_way(kind: str) -> None:
    """At the size transformers gives a family by default, which is that of a published model for most."""
    config = {**transformers.AutoConfig.for_model(kind).to_dict(), "model_type": kind, "architectures": None}
    described = import_config(config, "config.json")
    traced = trace_document(config, "config.json", kind.replace("_", "-"))
    own = model_graph(described.model_copy(update={"multi_token_prediction": None}))
    graph = model_graph(traced)
    assert graph.parameters() == own.parameters()
    assert graph.forward_flops(1, 4096) == own.forward_flops(1, 4096)
    assert traced.approximated == {}
    predicts = described.multi_token_prediction is not None
    assert [said.startswith("the modules that predict further tokens") for said in traced.left_out] == [True] * predicts


def test_an_encoder_and_a_decoder_are_traced_though_no_reader_has_them() -> None:
    graph = model_graph(traced_config("t5"))
    assert {name.split("_")[0] for name in graph.layers} >= {"encoder", "decoder"}
    assert step_time_s(traced_config("t5"), PLANS[0], 128) > 0


def _published(name: str) -> Path:
    return next(CONFIG_FILES.glob(f"*__{name}.json"))


#: Published parameters, where transformers has the class and no reader of ours has the family.
UNREAD = {"DeepSeek-V4-Flash": 284e9, "DeepSeek-V4-Pro": 1.57e12}


@needs_configs
@pytest.mark.parametrize("name", ["Meta-Llama-3.1-405B", pytest.param("DeepSeek-V3", marks=pytest.mark.slow)])
def test_published_models_agree_too(name: str) -> None:
    own = from_huggingface(_published(name))
    assert isinstance(own, Model)
    graph = model_graph(trace_config(_published(name)))
    described = model_graph(own.model_copy(update={"multi_token_prediction": None}))
    assert graph.parameters() == described.parameters()
    assert graph.forward_flops(1, 4096) == described.forward_flops(1, 4096)


@needs_configs
@pytest.mark.slow
@pytest.mark.parametrize("name", UNREAD)
def test_families_no_reader_has_are_traced(name: str) -> None:
    model = trace_config(_published(name))
    assert model_graph(model).parameters() == pytest.approx(UNREAD[name], rel=0.01)
    assert (model.approximated, model.left_out) == ({}, ())


@needs_configs
def test_a_family_transformers_does_not_have_is_named() -> None:
    with pytest.raises(InputError, match=r"model_type: is 'kimi_k3', which transformers .* does not have"):
        trace_config(_published("Kimi-K3"))


@needs_configs
@pytest.mark.slow
@pytest.mark.parametrize("name", ["Meta-Llama-3.1-8B", "Meta-Llama-3.1-405B", "DeepSeek-V3"])
def test_running_every_layer_gives_the_same_graph(name: str) -> None:
    module = transformers_model.build(json.loads(_published(name).read_text()), "config.json")
    graphs = [
        lower(transformers_model.record_tokens(module, 3, 2816, every_layer=every), name).graph
        for every in (False, True)
    ]
    assert document_of_graph(graphs[0]) == document_of_graph(graphs[1])
