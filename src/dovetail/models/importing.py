"""Models from Hugging Face configs and PyTorch modules: read by their family where we know it, otherwise traced."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dovetail.documents import read_document
from dovetail.errors import InputError
from dovetail.models.traced import AnyModel, TracedModel

#: What traces a module, and what makes the module of a config.
TORCH, TRANSFORMERS = "torch", "transformers"


def from_huggingface(config: Path | str) -> Any:
    """The language model a Hugging Face config.json, or the folder that holds it, describes.

    A family that we do not read is traced, where torch and transformers are installed.
    """
    from dovetail.models import huggingface  # a reader for each family, which models of the catalogue do without

    path = huggingface.config_file(config)
    return read_or_traced(read_document(path, finite=False), path, str(path), huggingface.model_name(path))


def read_or_traced(config: Mapping[str, Any], path: Path, where: str, name: str) -> AnyModel:
    """The model of a config, whose file has this path and is called `where` in sentences."""
    from dovetail.models import huggingface

    try:
        return huggingface.import_config(config, where, name=name)
    except huggingface.NotReadError as refused:
        if not can_trace():
            fix = f'{refused.fix}, or run `pip install "dovetail[torch]"` to trace it'
            raise InputError(refused.where, refused.what, fix) from None
        try:
            return trace_config(path).model_copy(update={"name": name})
        except InputError as error:
            what = f"{refused.what}, and tracing it fails: {error.where.rpartition(': ')[2]} {error.what}"
            raise InputError(refused.where, what, error.fix) from None


def can_trace() -> bool:
    """Whether the packages that trace a config are installed; asked without importing them."""
    return not _missing(TORCH, TRANSFORMERS)


def trace_config(path: Path | str, *, strict: bool = False) -> TracedModel:
    """The model of a Hugging Face config.json, or of the folder that holds it, traced through its PyTorch module.

    `strict` refuses a module with operators that the graph can only approximate.
    """
    from dovetail.models import huggingface

    path = huggingface.config_file(path)
    _check_installed(str(path), TORCH, TRANSFORMERS)
    from dovetail.models.tracing import trace_config

    return trace_config(path, strict=strict)


def from_torch(
    module: Any,
    example_inputs: Any,
    *,
    name: str = "traced",
    strict: bool = False,
    max_seq_len: int | None = None,
) -> TracedModel:
    """The model that a torch.nn.Module is, by tracing its forward.

    Args:
        module: The module; its weights may be on the meta device.
        example_inputs: What its forward is called with.
        name: How answers call the model.
        strict: Whether operators that the graph can only approximate are refused.
        max_seq_len: The longest sequence; left out it is not limited.
    """
    _check_installed("module", TORCH)
    from dovetail.models.tracing import from_torch

    return from_torch(module, example_inputs, name=name, strict=strict, max_seq_len=max_seq_len)


def _missing(*packages: str) -> list[str]:
    return [package for package in packages if find_spec(package) is None]


def _check_installed(where: str, *packages: str) -> None:
    for package in _missing(*packages):
        what = f"needs the package {package} to trace a model, which is not installed"
        raise InputError(where, what, 'run `pip install "dovetail[torch]"`')
