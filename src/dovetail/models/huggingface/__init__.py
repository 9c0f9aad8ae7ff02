"""Import of a Hugging Face config.json by `model_type`, without torch or transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.documents import read_document
from dovetail.errors import InputError, near, quoted
from dovetail.models.huggingface.classic_families import CLASSIC
from dovetail.models.huggingface.decoder import Importer
from dovetail.models.huggingface.dense_families import DENSE
from dovetail.models.huggingface.encoder_families import ENCODERS
from dovetail.models.huggingface.hybrid_families import HYBRID
from dovetail.models.huggingface.latent_families import LATENT
from dovetail.models.huggingface.mixed_span_families import MIXED_SPAN
from dovetail.models.huggingface.mixture_families import MIXTURE
from dovetail.models.huggingface.reader import ConfigReader
from dovetail.models.huggingface.variant_families import VARIANTS
from dovetail.models.model import Model

#: `model_type` → importer.
IMPORTERS: Mapping[str, Importer] = {
    **DENSE,
    **VARIANTS,
    **CLASSIC,
    **ENCODERS,
    **MIXTURE,
    **MIXED_SPAN,
    **LATENT,
    **HYBRID,
}

#: Other published types, and those of models of more than text → the importer that reads their text part.
TEXT_PARTS: Mapping[str, str] = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "minimax_m1": "minimax",
    "minimax_m3_vl": "minimax_m3_vl_text",
    "minimax_text_01": "minimax",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_vl_text": "qwen3",
    "stablelm_epoch": "stablelm",
}

#: Types that need an operator the graph does not have: refused by its name rather than counted wrongly.
MISSING_OPERATORS: Mapping[str, str] = {
    "deepseek_v4": "hyper-connections (several residual streams mixed by Sinkhorn matrices) and pooled keys",
    "falcon_h1": "attention and a state-space model side by side in one layer",
    "falcon_mamba": "a selective scan (Mamba-1)",
    "gemma3n_text": "a token table per layer (per-layer inputs)",
    "jamba": "a selective scan (Mamba-1)",
    "lfm2": "gated short convolutions as a mixer",
    "longcat_flash": "two attention halves in one layer and experts that compute nothing",
    "mamba": "a selective scan (Mamba-1)",
    "recurrent_gemma": "a gated linear recurrence (RG-LRU)",
    "rwkv": "a receptance-weighted scan (RWKV)",
    "t5": "attention from a decoder to an encoder",
    "zamba2": "blocks whose weights several layers share",
}


#: What to do where a config has no type.
ADD_TYPE = "add it as the model's own config has it"
#: How close a misspelt type is to the right one; families have names that are nearly as close.
_CLOSE = 0.75


class NotReadError(InputError):
    """A type that no importer reads; the model may still be traced."""


def from_huggingface(path: Path | str) -> Model:
    """The language model a Hugging Face config.json, or the folder that holds it, describes."""
    path = config_file(path)
    return import_config(read_document(path, finite=False), str(path), name=model_name(path))


def config_file(path: Path | str) -> Path:
    """The config of a folder, or the file itself."""
    path = Path(path)
    return path / "config.json" if path.is_dir() else path


def model_name(path: Path) -> str:
    """How a model is called whose config has this path."""
    return _model_name(path.parent.resolve().name if path.stem == "config" else path.stem)


def import_config(config: Mapping[str, Any], where: str, *, name: str = "imported") -> Model:
    """The same for a config that is already a mapping."""
    reader = ConfigReader(config, where)
    outer_type = config.get("model_type")
    text = reader.part("text_config")
    if text is not None:
        inherited = {"tie_word_embeddings": config.get("tie_word_embeddings")}
        given = {n: v for n, v in text.fields.items() if v is not None}
        reader = ConfigReader(inherited | given, text.where)
    model_type = reader.fields.get("model_type", outer_type)
    if model_type is None:
        raise InputError(reader.at("model_type"), "is missing", ADD_TYPE)
    if not isinstance(model_type, str):
        raise InputError(reader.at("model_type"), f"is {quoted(model_type)}", "it should be a text such as 'llama'")
    importer = TEXT_PARTS.get(model_type, model_type)
    if importer in MISSING_OPERATORS:
        raise _not_read(reader.refuse("model_type", MISSING_OPERATORS[importer]))
    if reader.flag("is_encoder_decoder", default=False):
        raise _not_read(reader.refuse("is_encoder_decoder", "attention from a decoder to an encoder"))
    if importer not in IMPORTERS:
        raise NotReadError(reader.at("model_type"), f"{quoted(model_type)} is not imported", _unknown_type(model_type))
    reader = ConfigReader({**reader.fields, "model_type": importer}, reader.where)
    model = IMPORTERS[importer](reader, name)
    return model.model_copy(update={"source": f"Hugging Face config, model_type {model_type}"})


def _not_read(refused: InputError) -> NotReadError:
    return NotReadError(refused.where, refused.what, refused.fix)


def is_read(model_type: str) -> bool:
    """Whether an importer reads configs of a type."""
    return TEXT_PARTS.get(model_type, model_type) in IMPORTERS


def likely_type(model_type: str) -> str | None:
    """The type that a misspelt one stands for."""
    types = (*IMPORTERS, *TEXT_PARTS, *MISSING_OPERATORS)
    same = next((each for each in types if _letters(each) == _letters(model_type)), None)
    return same or near(types, model_type, _CLOSE)


def _unknown_type(model_type: str) -> str:
    """The fix for an unknown type."""
    likely = likely_type(model_type)
    if likely is not None:
        return f"did you mean {likely!r}"
    return "we do not read this family yet; docs/reference/models.md lists those we do"


def _letters(model_type: str) -> str:
    return model_type.lower().replace("-", "").replace("_", "")


def _model_name(stem: str) -> str:
    name = "".join(c if (c.isascii() and c.isalnum()) or c in "._-" else "-" for c in stem.rsplit("__", 1)[-1]).strip(
        "._-"
    )
    return name.lower()[:100] or "imported"
