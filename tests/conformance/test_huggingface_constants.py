"""Constants that a config.json leaves out are those transformers fills in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from transformers import CONFIG_MAPPING

from dovetail.models import catalogue_name, load, names
from dovetail.models.huggingface import IMPORTERS, from_huggingface
from dovetail.models.huggingface.constants import constants, routed_scale
from dovetail.models.huggingface.reader import ConfigReader

pytestmark = pytest.mark.torch

CONFIGS = Path(__file__).parents[2] / "../shared/data/hf_configs"
#: Types transformers has no configuration class of.
UNKNOWN = {"deepseek", "kimi_k2", "minimax_m3"}


@pytest.mark.parametrize("family", sorted(IMPORTERS))
def test_what_a_config_leaves_out(family):
    if family in UNKNOWN:
        pytest.skip("transformers has no configuration class of it")
    whole = CONFIG_MAPPING[family]().to_dict() | {"model_type": family}
    # columns of a head instead of a share of it
    whole.pop("rotary_dim", None)
    theirs = constants(ConfigReader(whole, family), 128)
    ours = constants(ConfigReader({"model_type": family}, family), 128)
    assert ours["norm_epsilon"] == theirs["norm_epsilon"]
    if "rope_parameters" in whole:
        assert [ours["rotary"][name] for name in ("base", "share")] == [
            theirs["rotary"][name] for name in ("base", "share")
        ]
    if whole.get("routed_scaling_factor") is not None:
        assert routed_scale(ConfigReader({"model_type": family}, family)) == whole["routed_scaling_factor"]


def test_published_configs_keep_their_constants():
    if not CONFIGS.is_dir():
        pytest.skip("../shared/data/hf_configs is not beside the repository")
    model = from_huggingface(CONFIGS / "deepseek-ai__DeepSeek-V3.json")
    config = json.loads((CONFIGS / "deepseek-ai__DeepSeek-V3.json").read_text(encoding="utf-8"))
    scaling = model.rotary.scaling
    assert scaling is not None
    assert (model.rotary.base, model.norm_epsilon) == (config["rope_theta"], config["rms_norm_eps"])
    assert (scaling.kind, scaling.factor, scaling.original_seq_len) == ("yarn", 40, 4096)
    assert (scaling.mscale, scaling.mscale_all_dim) == (1, 1)
    routed = model.blocks["sparse"].feed_forward
    assert getattr(routed, "routed_scale", None) == config["routed_scaling_factor"]


def test_the_catalogue_has_the_constants_of_published_configs():
    if not CONFIGS.is_dir():
        pytest.skip("../shared/data/hf_configs is not beside the repository")
    compared = 0
    for path in sorted(CONFIGS.glob("*.json")):
        name = catalogue_name(path.stem.replace("__", "/")) or path.stem.partition("__")[2].lower()
        if name not in names():
            continue
        listed, published = load(name), from_huggingface(path)
        for field in ("norm_epsilon", "rotary", "residual_scale", "embedding"):
            assert getattr(listed, field) == getattr(published, field), (name, field)
        scales = [
            {getattr(block.feed_forward, "routed_scale", 1.0) for block in model.blocks.values()}
            for model in (listed, published)
        ]
        assert scales[0] == scales[1], name
        compared += 1
    assert compared >= 20, compared
