"""Models from Hugging Face configs and PyTorch modules: read by their family where we know it, otherwise traced."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dovetail.documents import read_document
from dovetail.errors import InputError, quoted
from dovetail.models.traced import AnyModel, TracedModel

#: What traces a module, and what makes the module of a config.
TORCH, TRANSFORMERS = "torch", "transformers"
#: The files of `transformers` that list its types.
_TYPES = ("auto_mappings.py", "configuration_auto.py")
_OWN_CODE = "its code is the model's own (auto_map): build the module and use dt.models.from_torch"


def from_huggingface(config: Path | str, *, strict: bool = False) -> Any:
    """The language model a Hugging Face config.json, or the folder that holds it, describes.

    A family that we do not read is traced, where torch and transformers are installed. `strict` then refuses operators
    that the graph can only approximate.
    """
    from dovetail.models import huggingface  # a reader for each family, which models of the catalogue do without

    path = huggingface.config_file(config)
    return read_or_traced(read_document(path, finite=False), str(path), huggingface.model_name(path), strict=strict)


def read_or_traced(config: Mapping[str, Any], where: str, name: str, *, strict: bool = False) -> AnyModel:
    """The model of a config whose file is called `where` in sentences."""
    from dovetail.models import huggingface
    from dovetail.models.huggingface.reader import MissingOperatorError

    try:
        return huggingface.import_config(config, where, name=name)
    except MissingOperatorError as refused:
        if can_trace() and _is_own_code(config):
            raise InputError(refused.where, refused.what, _OWN_CODE) from None
        raise
    except huggingface.NotReadError as refused:
        if not can_trace():
            fix = f'{refused.fix}, or run `pip install "dovetail[torch]"` to trace it'
            raise InputError(refused.where, refused.what, fix) from None
        _check_type(config, where)
        try:
            return trace_document(config, where, name, strict=strict)
        except InputError as error:
            if strict:
                raise
            subject = error.where.removeprefix(where).removeprefix(": ") or "it"
            what = f"{refused.what}, and tracing it fails: {subject} {error.what}"
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
    return trace_document(read_document(path, finite=False), str(path), huggingface.model_name(path), strict=strict)


def trace_document(config: Mapping[str, Any], where: str, name: str, *, strict: bool = False) -> TracedModel:
    """The same for a config that is already a mapping."""
    _check_installed(where, TORCH, TRANSFORMERS)
    _check_type(config, where)
    from dovetail.models.tracing import trace_document

    return trace_document(config, where, name, strict=strict)


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
        example_inputs: What its forward is called with: a tensor, a tuple or a dict. The first axis is the batch, of
            two samples or more; the second axis of whole numbers is the sequence.
        name: How answers call the model.
        strict: Whether operators that the graph can only approximate are refused.
        max_seq_len: The longest sequence; left out it is not limited.
    """
    _check_installed("module", TORCH)
    from dovetail.models.tracing import from_torch

    return from_torch(module, example_inputs, name=name, strict=strict, max_seq_len=max_seq_len)


def _check_type(config: Mapping[str, Any], where: str) -> None:
    """Refuses a type that `transformers` cannot build, before anything is imported for it."""
    from dovetail.models import huggingface

    kind, where = config.get("model_type"), f"{where}: model_type"
    if kind is None:
        raise InputError(where, "is missing", huggingface.ADD_TYPE)
    if not isinstance(kind, str) or _transformers_has(kind):
        return
    if huggingface.is_read(kind):
        what = f"is {quoted(kind)}, which the installed transformers does not have"
        raise InputError(where, what, "import it without tracing")
    what = f"{quoted(kind)} is not imported, and the installed transformers does not have it"
    likely = huggingface.likely_type(kind)
    fix = "a newer transformers may have it" if likely is None else f"did you mean {likely!r}"
    raise InputError(where, what, _OWN_CODE if _is_own_code(config) else fix)


def _is_own_code(config: Mapping[str, Any]) -> bool:
    """Whether the module of a config is code that comes with the weights, which we do not run."""
    kind = config.get("model_type")
    return "auto_map" in config and isinstance(kind, str) and not _transformers_has(kind)


def _transformers_has(model_type: str) -> bool:
    """Whether `transformers` may have a type: by its files, since importing it takes seconds."""
    imported: Any = sys.modules.get(TRANSFORMERS)
    if imported is not None:
        return model_type in imported.CONFIG_MAPPING
    folders = getattr(find_spec(TRANSFORMERS), "submodule_search_locations", None) or ()
    lists = [path for folder in folders for name in _TYPES if (path := Path(folder, "models", "auto", name)).is_file()]
    return not lists or any(f'"{model_type}"' in path.read_text(encoding="utf-8") for path in lists)


def _missing(*packages: str) -> list[str]:
    return [package for package in packages if find_spec(package) is None]


def _check_installed(where: str, *packages: str) -> None:
    for package in _missing(*packages):
        what = f"needs the package {package} to trace a model, which is not installed"
        raise InputError(where, what, 'run `pip install "dovetail[torch]"`')
