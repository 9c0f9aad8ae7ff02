"""Models of images and text are traced with both: they multiply what the real ones multiply, and are planned."""

from __future__ import annotations

import inspect
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers_image_configs
from autograd_flops import autograd_flops
from traced_models import products, step_time_s
from transformers_image_configs import IMAGE_CONFIGS, real_features

import dovetail as dt
from dovetail.models import model_graph
from dovetail.models.traced import TracedModel
from dovetail.models.tracing import trace_config, trace_document
from dovetail.models.tracing.transformers_images import images_of

pytestmark = pytest.mark.torch

#: What takes patches, and what takes whole images: they stand for the others.
QUICK = ("llava", "qwen2_5_vl")
each = pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in IMAGE_CONFIGS]
)
CONFIG_FILES = Path(__file__).parents[2].parent / "shared" / "data" / "hf_configs"
needs_configs = pytest.mark.skipif(not CONFIG_FILES.is_dir(), reason="the published configs are not there")


@cache
def traced(name: str) -> TracedModel:
    return trace_document(IMAGE_CONFIGS[name], "config.json", name.replace("_", "-"))


@each
def test_it_multiplies_what_the_real_model_multiplies(name: str) -> None:
    """With the tokens of an image among those of the text, as its own forward puts them there."""
    module = transformers_image_configs.build(name).train()
    (images, *_) = images_of(module, 2)
    tokens = real_features(module, images)
    seq = tokens + 40
    given = transformers_image_configs.inputs(
        images, tokens, 2, seq, frozenset(inspect.signature(module.forward).parameters)
    )
    forward, backward, _ = autograd_flops(module, (), given)
    assert products(model_graph(traced(name)), 2, seq) == pytest.approx((forward, backward), rel=1e-9)


@each
def test_it_has_an_encoder_with_all_its_parameters(name: str) -> None:
    model, module = traced(name), transformers_image_configs.build(name, "meta")
    unused = 160 if name == "llava" else 0  # the norm behind the last layer, which it does not take features from
    assert model_graph(model).parameters() == sum(p.numel() for p in module.parameters()) - unused
    assert model.approximated == {}
    assert len(model.left_out) == bool(unused)
    assert any(layer.startswith("vision_block") for layer in model_graph(model).layers)
    assert model.hidden == module.config.get_text_config().hidden_size
    assert (model.fixed_seq_len, model.learned_positions) == (None, False)
    assert "pixels in each sequence" in model.source


@each
def test_it_is_estimated_and_planned(name: str) -> None:
    model = traced(name)
    whole = step_time_s(model, {"tensor_parallel": 2, "micro_batch": 1}, 512)
    assert whole > 0
    assert step_time_s(model, {"pipeline_parallel": 2, "micro_batch": 1}, 512) > 0
    cluster = dt.hardware.cluster_on(dt.hardware.network("rail-optimised"), dt.hardware.chip("h100-sxm"), 8)
    assert dt.plan(dt.Job(model, 512, 16), cluster, time_limit_s=20).step_time_s <= whole


@needs_configs
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parameters"),
    [("Qwen3.5-27B", 27_356_728_560), ("gemma-4-26B-A4B", 25_805_933_872), ("Kimi-K2.5", 1_026_879_353_328)],
)
def test_published_models_are_traced_whole(name: str, parameters: int) -> None:
    model = trace_config(next(CONFIG_FILES.glob(f"*__{name}.json")))
    assert model_graph(model).parameters() == parameters
    assert model.approximated == {}
    assert all(said.startswith("the modules that predict further tokens") for said in model.left_out)


def test_images_that_cannot_be_run_are_left_out() -> None:
    """The language model is traced all the same, and what is missing is said."""
    broken = {**IMAGE_CONFIGS["llava"], "vision_config": {**IMAGE_CONFIGS["llava"]["vision_config"], "patch_size": 100}}
    model = trace_document(broken, "config.json", "broken")
    assert any(said.startswith("the encoder of images, which cannot be run") for said in model.left_out)
    assert "pixels" not in model.source
    assert not any(layer.startswith("vision") for layer in model_graph(model).layers)


def test_contents_that_are_known_are_computed() -> None:
    """What depends on whole numbers alone has the values it has, whatever is done to it."""
    from dovetail.models.tracing import record

    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)
            self.sizes = [3, 4]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            sizes = torch.tensor(self.sizes).repeat_interleave(2)
            sizes += 1
            assert sizes.tolist() == [4, 4, 5, 5]
            kept = torch.arange(20)[torch.arange(20) % 5 == 0]
            assert kept.tolist() == [0, 5, 10, 15]
            written = torch.zeros(4, dtype=torch.int64)
            written[1:3] = 7
            assert written.sum().item() == 14
            written[:1] = x.sum().long()  # of which nothing is known, nor of what shares its memory
            assert written.sum().item() == 1
            return self.linear(x)[:, : int(sizes.max())]

    trace = record.record(Counts(), (torch.zeros(2, 9, 8),))
    assert trace.outputs[0].shape == (2, 5, 8)
    assert trace.notes == ["a branch on the contents of a tensor took the side of 1"]
