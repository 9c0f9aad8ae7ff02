"""Published models by name, and model files of the user's own."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from dovetail import documents
from dovetail.documents import parse_document, read_document, validate
from dovetail.errors import InputError, one_of, quoted
from dovetail.models.model import Model


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    """Every model of the catalogue, in alphabetical order."""
    folder = files("dovetail.models") / "data"
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def load(name: str) -> Model:
    """A model of the catalogue, or the one a model file (a path ending in .yaml, .yml or .json) describes."""
    if Path(name).suffix.lower() in (".yaml", ".yml", ".json"):
        document = read_document(name)
        if "model_type" in document:
            fix = "read it with dovetail models import, or dovetail.models.from_huggingface"
            raise InputError(name, "is a Hugging Face config, not a model file", fix)
        return validate(Model, document, name)
    if name not in names():
        raise InputError("model", f"{quoted(name)} is not in the catalogue", one_of(names(), name))
    return _from_catalogue(name)


def to_yaml(model: Model) -> str:
    """The model as a model file: only what differs from the defaults."""
    return documents.to_yaml(document_of(model))


def document_of(model: Model) -> dict[str, Any]:
    """The fields of a model file."""
    return model.model_dump(mode="json", exclude_defaults=True)


@lru_cache(maxsize=256)
def _from_catalogue(name: str) -> Model:
    entry = files("dovetail.models") / "data" / f"{name}.yaml"
    return validate(Model, parse_document(entry.read_text(encoding="utf-8"), name, ours=True), name)
