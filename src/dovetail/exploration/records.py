"""The JSON files of a run directory: whether a file is intact, and whether a run belongs to a study."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from dovetail.errors import InputError, quoted
from dovetail.exploration.folder import LEFTOVERS, Folder

SCHEMA_VERSION = 1
STUDY, RESULT, TIMING, PROGRESS = "study.json", "result.json", "timing.json", "progress.json"
#: The result so far of a run that was stopped; a run that goes on has none.
STOPPED = "stopped.json"
PARTS, INDEX = "parts", "index"
#: Folders of plan files, and what the files of each folder of a run end in.
BEST, SIMULATED = "best", "simulated"
#: The same of every point of a front, in folders with numbers.
FRONT = "front"
#: Why the result is what it is, if that was asked for.
REASONS = "reasons.json"
_ENDINGS = {INDEX: ".json", PARTS: ".parquet", BEST: ".yaml", SIMULATED: ".yaml"}
#: The part of a study that says what its names and paths referred to, as digests.
CONTENT = "content"

_LEVEL = re.compile(r"[a-z][a-z0-9_]*")
_ENTRY = re.compile(r"([a-z][a-z0-9_]*)-(\d{6,})\.json")
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


def stem_of(level: str, number: int) -> str:
    """The name of a batch's files without their ending."""
    assert _LEVEL.fullmatch(level), level
    assert number >= 0, number
    return f"{level}-{number:06d}"


def finished_batches(folder: Folder) -> dict[str, set[int]]:
    """The numbers of the batches that have index entries, by level."""
    found: dict[str, set[int]] = {}
    for name in folder.sizes(INDEX) or {}:
        match = _ENTRY.fullmatch(name)
        if match and name == f"{stem_of(match[1], int(match[2]))}.json":
            found.setdefault(match[1], set()).add(int(match[2]))
    return found


def checked_entry(content: bytes | None) -> dict[str, Any]:
    """An index entry, if it is whole."""
    try:
        return fields(content or b"", rows=int, bytes=int, sha256=str, facts=dict)
    except DamagedError as damage:
        raise DamagedError(f"index entry {damage}") from None


def checked_content(content: bytes | None, entry: dict[str, Any]) -> bytes:
    """The content of a part, if it is what its index entry gives."""
    if content is None:
        raise DamagedError("part is missing")
    if len(content) != entry["bytes"]:
        raise DamagedError(f"part has {len(content)} bytes instead of {entry['bytes']}")
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise DamagedError("part does not have the digest that the index gives")
    return content


def discard(folder: Folder) -> None:
    """Removes what was computed, top-down: what is left by a kill does not count as finished."""
    for name in (RESULT, REASONS, STOPPED, TIMING, PROGRESS):
        folder.remove(name)
    for inner, ending in _ENDINGS.items():
        for name in folder.sizes(inner) or {}:
            if name.endswith(ending):
                folder.remove(f"{inner}/{name}")


def recomputed_because(
    folder: Folder, asked: dict[str, Any], provenance: Mapping[str, Any], *, resume: bool, recompute: bool
) -> str | None:
    """Why a run of this study must be recomputed: what else computed it; empty: go on with it; None: there is no run.

    Raises an error if the directory has anything else, or if there is a reason and `recompute` does not allow it.
    """
    files = folder.sizes()
    if files is None or not files.keys() - LEFTOVERS:
        return None
    document = _study_file(folder)
    if document is None:
        fix = "name a new or an empty directory"
        raise InputError(folder.where, "has other files and no run", fix)
    if not resume:
        raise InputError(folder.where, "already has a run", "add --resume or name another directory")
    study = cast("dict[str, Any]", document["study"])
    for path, old, new in _differences(_question(study), _question(asked)):
        was = "none" if old is _ABSENT else quoted(old)
        now = "absent" if new is _ABSENT else quoted(new)
        at = f"{folder.where}: {path if len(path) <= 100 else f'{path[:97]}...'}"
        fix = "change it back, or name another directory"
        raise InputError(at, f"is {now}, but the study of the existing run had {was}", fix)
    reason = _computed_by(document.get("provenance"), provenance) or _changed_content(study, asked)
    if reason and not recompute:
        fix = "change it back, add --recompute to discard what was computed, or name another directory"
        raise InputError(folder.where, reason, fix)
    return reason


def _question(study: dict[str, Any]) -> dict[str, Any]:
    """A study without what its names stood for; runs without provenance had the version in it."""
    return {name: value for name, value in study.items() if name not in (CONTENT, "version")}


def _computed_by(was: object, now: Mapping[str, Any]) -> str:
    """In what the provenance of a run differs from this one; empty: in nothing."""
    if not isinstance(was, dict):
        return "does not say which code, calibration, data and versions computed it"
    changes = {path: (old, new) for path, old, new in _differences(cast("object", was), dict(now))}
    if any(path.startswith("versions.") for path in changes):  # then the digest of all says nothing more
        changes.pop("digests.versions", None)
    names = {path: "dovetail" if path == "version" else path.rpartition(".")[2] for path in changes}
    changed = [f"{names[path]} {_shown(old)} → {_shown(new)}" for path, (old, new) in changes.items()]
    return f"was computed by something else ({', '.join(changed)})" if changed else ""


def _changed_content(was: dict[str, Any], now: dict[str, Any]) -> str:
    """What the names and paths of a study stand for now that they did not before; empty: the same."""
    for path, old, new in _differences(was.get(CONTENT, {}), now.get(CONTENT, {})):
        return f"was computed with other content of {path} ({_shown(old)} → {_shown(new)})"
    return ""


def _shown(value: object) -> str:
    return "none" if value is _ABSENT else quoted(value).strip("'")


def study_of(folder: Folder) -> dict[str, Any] | None:
    """The study of the run in a directory; None if it has none."""
    document = _study_file(folder)
    return None if document is None else document["study"]


def _study_file(folder: Folder) -> dict[str, Any] | None:
    content = folder.get(STUDY)
    if content is None:
        return None
    fix = "name another directory"
    try:
        document = fields(content, schema=int)
        if document["schema"] != SCHEMA_VERSION:
            what = f"has a run of schema {document['schema']}, but this version of dovetail reads {SCHEMA_VERSION}"
            raise InputError(folder.where, what, f"use the version that wrote it, or {fix}")
        return fields(content, study=dict)
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
