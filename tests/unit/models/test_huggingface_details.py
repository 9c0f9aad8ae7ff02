"""Details of imported configs: prediction modules, other spellings, names and sources."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from valid_documents import CONFIGS

from dovetail.documents import validate
from dovetail.models import Model, from_huggingface, model_graph, summarise
from dovetail.models.huggingface import import_config


def imported(name: str, **fields: object) -> Model:
    return import_config(CONFIGS[name] | fields, "config.json")


def prediction_block(model: Model) -> tuple[str, object]:
    assert model.multi_token_prediction is not None
    block = model.blocks[model.multi_token_prediction.block]
    assert block.feed_forward is not None
    return block.feed_forward.kind, getattr(block.mixer, "window", None)


def test_step_predicts_with_dense_sliding_blocks():
    model = imported("step3p5", num_nextn_predict_layers=3)
    assert prediction_block(model) == ("dense", getattr(model.blocks["sliding_dense"].mixer, "window", None))
    assert prediction_block(imported("step3p5", num_nextn_predict_layers=3, sliding_window=None)) == ("dense", None)


def test_ernie_predicts_with_a_dense_block():
    assert prediction_block(imported("ernie4_5_moe", num_nextn_predict_layers=1)) == ("dense", None)


@pytest.mark.parametrize(
    ("fields", "half"),
    [
        ({}, "mixture"),
        ({"mtp_layers_block_type": ["attention", "moe"]}, "mixture"),
        ({"mtp_hybrid_override_pattern": "*E"}, "mixture"),
        ({"mtp_hybrid_override_pattern": "*-", "intermediate_size": 96}, "dense"),
    ],
)
def test_nemotron_predicts_as_its_config_says(fields, half):
    assert prediction_block(imported("nemotron_h", num_nextn_predict_layers=1, **fields))[0] == half


def test_other_prediction_modules_of_nemotron_are_refused(refusal):
    config = CONFIGS["nemotron_h"] | {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "M*E"}
    assert "mtp_hybrid_override_pattern: needs" in refusal(import_config, config, "config.json")


def test_the_first_configs_of_minimax_m2():
    model = imported("mixtral", model_type="minimax", use_qk_norm=True)
    (block,) = model.blocks.values()
    assert getattr(block.mixer, "qk_norm", None) == "all"


def test_a_config_in_the_current_folder_is_named_after_it(tmp_path, monkeypatch):
    folder = tmp_path / "Small-Llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGS["llama"]))
    monkeypatch.chdir(folder)
    model = from_huggingface("config.json")
    assert model.name == "small-llama"
    assert model.source == "Hugging Face config, model_type llama"
    assert from_huggingface(".") == from_huggingface(folder) == model


def test_an_indexer_is_not_differentiated():
    mixer = {"kind": "attention", "heads": 8, "kv_heads": 8, "head_dim": 16}
    indexer = {"heads": 4, "head_dim": 8, "top_k": 2**20}

    def flops(fields: Mapping[str, object]) -> tuple[float, float]:
        document = {
            "name": "small", "hidden": 128, "vocab": 100, "blocks": {"layer": {"mixer": fields}},
            "layers": [{"blocks": ["layer"]}],
        }  # fmt: skip
        model = validate(Model, document, "small")
        forward = model_graph(model).forward_flops(1, 64)
        assert isinstance(forward, int)
        return forward / 64, summarise(model, 64).flops_per_token

    plain, chosen = flops(mixer), flops(mixer | {"indexer": indexer})
    assert plain[1] == 3 * plain[0]
    assert chosen[0] > plain[0]
    assert chosen[1] == plain[1] + (chosen[0] - plain[0])
