"""What transformers builds from a config: the parameters of its language-model part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING
from transformers.models.step3p7.modeling_step3p7 import Step3p7TextModel

transformers.logging.set_verbosity_error()

#: Types whose flat configs transformers reads as another type.
SAME_AS: Mapping[str, str] = {
    "kimi_k2": "deepseek_v3",
    "minimax_m3": "minimax_m3_vl_text",
    "step3p7": "step3p5",
}

#: Types of a language model that transformers builds only without a head.
HEADLESS: Mapping[str, Any] = {"step3p5": Step3p7TextModel}


def config_class(model_type: str) -> type[PreTrainedConfig] | None:
    """The class of a language model's config, None where transformers lacks it."""
    name = SAME_AS.get(model_type, model_type)
    return type(CONFIG_MAPPING[name]().get_text_config()) if name in CONFIG_MAPPING else None


def language_config(fields: Mapping[str, Any]) -> PreTrainedConfig | None:
    """The language-model part of a published config, None where transformers lacks the type."""
    name = str(fields["model_type"])
    name = name if "text_config" in fields else SAME_AS.get(name, name)
    if name not in CONFIG_MAPPING:
        return None
    return CONFIG_MAPPING[name].from_dict({**fields, "model_type": name}).get_text_config()


def reference_parameters(config: PreTrainedConfig) -> int:
    """Parameters of the model with its head: masked language for encoders, next token for decoders."""
    with torch.device("meta"):
        if config.model_type in HEADLESS:
            body = HEADLESS[config.model_type](config)
            head = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
            return _count(body) + head
        auto = AutoModelForMaskedLM if type(config) in MODEL_FOR_MASKED_LM_MAPPING else AutoModelForCausalLM
        return _count(auto.from_config(config))


def _count(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
