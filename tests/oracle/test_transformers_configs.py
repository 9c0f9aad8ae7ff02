"""The small configs build and run in transformers, and ours reads as many parameters from them."""

from __future__ import annotations

from functools import cache

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch import nn
from transformers_configs import BATCH, CONFIGS, NOT_IMPORTED, SEQ, VOCAB, build, inputs

from dovetail.errors import InputError
from dovetail.models import model_graph
from dovetail.models.huggingface import import_config

pytestmark = pytest.mark.torch


@cache
def built(name: str) -> nn.Module:
    return build(name, use_cache=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_it_runs_on_meta(name: str) -> None:
    module = built(name)
    assert type(module).__name__ == CONFIGS[name]["architectures"][0]
    assert {p.device.type for p in module.parameters()} == {"meta"}
    result = module(**inputs())
    assert result.loss.shape == ()
    assert result.logits.shape == (BATCH, SEQ, VOCAB)


@pytest.mark.parametrize("name", sorted(CONFIGS.keys() - NOT_IMPORTED))
def test_the_imported_model_has_the_parameters_of_the_module(name: str) -> None:
    """Those of the module without buffers: the bias that balances experts is no parameter on either side."""
    model = import_config(CONFIGS[name], "config.json")
    assert model_graph(model).parameters() == sum(p.numel() for p in built(name).parameters())


@pytest.mark.parametrize("name", sorted(NOT_IMPORTED))
def test_what_is_not_imported_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="model_type: needs"):
        import_config(CONFIGS[name], "config.json")
