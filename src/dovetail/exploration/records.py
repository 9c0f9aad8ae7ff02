"""The JSON files of a run directory: whether a file is intact, and whether a run belongs to a study."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

from dovetail.errors import InputError, quoted
from dovetail.exploration.folder import LEFTOVERS, Folder

SCHEMA_VERSION = 1
STUDY = "study.json"

_ABSENT = object()


class DamagedError(Exception):
    """What is wrong with a file of a run: the end of a sentence."""


def to_json(document: Mapping[str, Any]) -> bytes:
    """A document as the content of a file of a run, always the same bytes."""
    return (json.dumps(document, allow_nan=False) + "\n").encode()


def fields(content: bytes, **types: type) -> dict[str, Any]:
    """The mapping in a JSON file, which must have these fields."""
    try:
        document: object = json.loads(content)
    except (ValueError, RecursionError):
        raise DamagedError("is not complete JSON") from None
    mapping = cast("dict[str, Any]", document) if isinstance(document, dict) else {}
    for name, kind in types.items():
        if type(mapping.get(name)) is not kind:
            raise DamagedError(f"has no valid {name!r}")
    return mapping


def may_resume(folder: Folder, asked: dict[str, Any], *, resume: bool) -> bool:
    """Whether there is a run of this study to resume; raises an error unless the directory is otherwise free."""
    files = folder.sizes()
    if files is None or not files.keys() - LEFTOVERS:
        return False
    study = study_of(folder)
    if study is None:
        fix = "name a new or an empty directory"
        raise InputError(folder.where, "has other files and no run", fix)
    if not resume:
        raise InputError(folder.where, "already has a run", "add --resume or name another directory")
    for path, old, new in _differences(study, asked):
        was = "none" if old is _ABSENT else quoted(old)
        now = "absent" if new is _ABSENT else quoted(new)
        at = f"{folder.where}: {path if len(path) <= 100 else f'{path[:97]}...'}"
        fix = "change it back, or name another directory"
        raise InputError(at, f"is {now}, but the study of the existing run had {was}", fix)
    return True


def study_of(folder: Folder) -> dict[str, Any] | None:
    """The study of the run in a directory; None if it has none."""
    content = folder.get(STUDY)
    if content is None:
        return None
    fix = "name another directory"
    try:
        document = fields(content, schema=int)
        if document["schema"] != SCHEMA_VERSION:
            what = f"has a run of schema {document['schema']}, but this version of dovetail reads {SCHEMA_VERSION}"
            raise InputError(folder.where, what, f"use the version that wrote it, or {fix}")
        return fields(content, study=dict)["study"]
    except DamagedError as damage:
        # not repaired: without it we do not know whose parts these are
        raise InputError(f"{folder.where}: {STUDY}", f"{damage}", fix) from None


def _differences(old: object, new: object, path: str = "") -> Iterator[tuple[str, object, object]]:
    """Dotted path and both values of every field that differs, in the order of the new study."""
    if type(old) is not type(new) or not isinstance(new, dict | list):
        # true is not 1, unlike in Python
        if old != new or isinstance(old, bool) != isinstance(new, bool):
            yield path, old, new
        return
    before, after = _items(old), _items(cast("object", new))
    for name in [*after, *(name for name in before if name not in after)]:
        inner = f"{path}.{name}" if path else name
        yield from _differences(before.get(name, _ABSENT), after.get(name, _ABSENT), inner)


def _items(value: object) -> dict[str, object]:
    if isinstance(value, list):
        return {str(place): item for place, item in enumerate(cast("list[object]", value))}
    return cast("dict[str, object]", value)
