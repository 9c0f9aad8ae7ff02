"""Frameworks by name, and framework files of the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from dovetail.documents import parse_document, read_document, validate
from dovetail.errors import InputError, one_of, quoted
from dovetail.frameworks.framework import Framework, FrameworkSpec

#: Fields that are maps.
_MAPS = ("states", "overlaps")


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    """Every framework of the catalogue, in alphabetical order."""
    folder = files("dovetail.frameworks") / "data"
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def load(name: str) -> Framework:
    """A framework of the catalogue, or the one a framework file (a path ending in .yaml, .yml or .json) describes."""
    if Path(name).suffix in (".yaml", ".yml", ".json"):
        return validate(FrameworkSpec, read_document(name), name).framework()
    if name not in names():
        raise InputError("framework", f"{quoted(name)} is not in the catalogue", one_of(names(), name))
    return _from_catalogue(name)


@lru_cache(maxsize=64)
def _from_catalogue(name: str) -> Framework:
    return validate(FrameworkSpec, _document(name), name).framework()


def changed(name: str, changes: Mapping[str, Any], where: str) -> Framework:
    """A framework of the catalogue with other values in some fields; of a field that is a map, with some others."""
    document = _document(name)
    for field, value in changes.items():
        before = document.get(field)
        document[field] = before | value if isinstance(before, dict) and field in _MAPS else value
    return validate(FrameworkSpec, document, where).framework()


def _document(name: str) -> dict[str, Any]:
    entry = files("dovetail.frameworks") / "data" / f"{name}.yaml"
    return parse_document(entry.read_text(encoding="utf-8"), name, ours=True)
