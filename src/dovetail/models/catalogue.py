"""Models by name: the catalogue's, files of the user's own, and those of the Hugging Face Hub."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from dovetail import documents
from dovetail.documents import parse_document, read_document, validate
from dovetail.errors import InputError, one_of, quoted
from dovetail.models.aliases import HUB_IDS, OTHER_NAMES, spelling
from dovetail.models.build import check_description
from dovetail.models.hub import from_hub, hub_id
from dovetail.models.importing import from_huggingface
from dovetail.models.model import Model
from dovetail.models.traced import AnyModel, TracedModel

#: Names that end so are paths.
SUFFIXES = (".yaml", ".yml", ".json")
#: The `kind` of model files that hold a graph; others have none.
TRACED = "traced"


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    """Every model of the catalogue, in alphabetical order."""
    folder = files("dovetail.models") / "data"
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def load(name: str, *, strict: bool = False) -> Any:
    """A model by its name in the catalogue or another name of it, by path, or by Hugging Face id.

    A path is that of a model file, described or traced, of a Hugging Face config.json, or of the folder that holds one.
    It comes before aliases and ids; a name of the catalogue comes before everything.
    `strict` refuses a config whose model is traced with operators that the graph can only approximate.
    """
    if Path(name).suffix.lower() in SUFFIXES:
        return _from_file(name, strict=strict)
    if name in names():
        return from_catalogue(name)
    alias = catalogue_name(name)
    # a folder of another use may have the name of a model
    if os.path.isdir(name) and (alias is None or "/" in name or os.path.isfile(os.path.join(name, "config.json"))):
        return from_huggingface(name, strict=strict)
    if alias is not None:
        return from_catalogue(alias)
    if "/" not in name:
        raise InputError("model", f"{quoted(name)} is not in the catalogue", one_of(names(), name))
    asked = hub_id(name)
    if asked is None:
        fix = "give org/name, a file that ends in .yaml or .json, or a folder with a config.json"
        raise InputError("model", f"{quoted(name)} is neither a Hugging Face id nor an existing path", fix)
    return from_hub(asked, strict=strict)


def catalogue_name(name: str) -> str | None:
    """The catalogue's name of a model that is called by it, by an alias or by a Hugging Face id of it."""
    if name in names():
        return name
    return _hub_ids().get(name.casefold()) if "/" in name else _spellings().get(spelling(name))


def is_config(path: Path | str) -> bool:
    """Whether a file is a Hugging Face config and not a model file."""
    document = read_document(path, finite=False)
    named_so = Path(path).name == "config.json" and "blocks" not in document and not is_traced(document)
    return named_so or not document.keys().isdisjoint({"model_type", "architectures"})


def is_traced(document: Mapping[str, Any]) -> bool:
    """Whether a document is a model by its graph and not by its blocks."""
    return document.get("kind") == TRACED


def model_from(document: Mapping[str, Any], where: str) -> AnyModel:
    """The model of a model file's document."""
    if not is_traced(document):
        return validate(Model, document, where)
    model = validate(TracedModel, document, where)
    check_description(model, f"{where}: described")
    return model


def to_yaml(model: AnyModel) -> str:
    """The model as a model file: only what differs from the defaults."""
    return documents.to_yaml(document_of(model))


def save(model: AnyModel, path: Path | str) -> None:
    """Writes a model, described or traced, as a model file: JSON where the path ends in .json, otherwise YAML.

    YAML may have 256 KiB and JSON 4 MiB; traced models can be that long.
    """
    path = Path(path)
    check_file_name(path)
    is_json = path.suffix.lower() == ".json"
    text = json.dumps(document_of(model)) + "\n" if is_json else to_yaml(model)
    most = documents.MAX_FILE_BYTES if is_json else documents.MAX_YAML_BYTES
    if len(text.encode()) > most:
        what = f"would be longer than the {most:,} bytes that a {'JSON' if is_json else 'YAML'} file may have"
        raise InputError(str(path), what, "trace a part of the model" if is_json else "give it the ending .json")
    documents.write_text(path, text)


def check_file_name(path: Path) -> None:
    """Refuses a name that no model file has."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(str(path), "does not end in .yaml or .json", "give it the ending of YAML or of JSON")


def document_of(model: AnyModel) -> dict[str, Any]:
    """The fields of a model file."""
    return model.model_dump(mode="json", exclude_defaults=True)


def _from_file(name: str, *, strict: bool) -> AnyModel:
    if is_config(name):
        return from_huggingface(name, strict=strict)
    return model_from(read_document(name), name)


@lru_cache(maxsize=1)
def _hub_ids() -> Mapping[str, str]:
    return {each.casefold(): name for each, name in HUB_IDS.items()}


@lru_cache(maxsize=1)
def _spellings() -> Mapping[str, str]:
    return {spelling(alias): name for alias, name in (*OTHER_NAMES.items(), *((name, name) for name in names()))}


@lru_cache(maxsize=256)
def from_catalogue(name: str) -> Model:
    """A model of the catalogue by its name there."""
    entry = files("dovetail.models") / "data" / f"{name}.yaml"
    return validate(Model, parse_document(entry.read_text(encoding="utf-8"), name, ours=True), name)
