"""What computed an answer, as short digests: the package's code, calibration and data, and the versions below it."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Any, cast

from dovetail import __version__

#: Characters of a digest: 64 bits, enough to notice a change.
LENGTH = 16
#: Packages whose versions change numbers.
PACKAGES = ("numpy", "numba", "llvmlite")
#: And those whose versions change which designs a study looks at, or the bytes of a run's files.
STUDY_PACKAGES = (*PACKAGES, "optuna", "pyarrow")

_CALIBRATION = "cost/data/calibration.yaml"
_CODE = (".py", ".pyc")
_FILES = (*_CODE, ".yaml", ".csv")


def digest(value: object) -> str:
    """The digest of a value by its content: specs, data classes, arrays and what JSON has, in any order of names."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


@lru_cache(maxsize=1)
def package_digests() -> Mapping[str, str]:
    """Digests of this package's code, shipped calibration and data, and of the versions it runs with."""
    contents: dict[str, list[tuple[str, bytes]]] = {"code": [], "calibration": [], "data": []}
    for name, file in _package_files(_root()):
        kind = "calibration" if name == _CALIBRATION else "code" if name.endswith(_CODE) else "data"
        contents[kind].append((name, file.read_bytes()))
    digests = {kind: _digest_of_files(found) for kind, found in contents.items()}
    return MappingProxyType({**digests, "versions": digest(package_versions())})


@lru_cache(maxsize=1)
def calibration_digest() -> str:
    """The digest of the shipped calibration, without those of all else."""
    return _digest_of_files([(_CALIBRATION, (_root() / _CALIBRATION).read_bytes())])


@lru_cache(maxsize=2)
def package_versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """The versions that change numbers: of Python, of packages, and the kind of processor."""
    return {"python": platform.python_version(), **{n: _version(n) for n in packages}, "machine": platform.machine()}


def package_provenance(packages: tuple[str, ...] = PACKAGES) -> dict[str, Any]:
    """What computes answers here, for their `provenance`; studies need more packages than other questions."""
    versions = package_versions(packages)
    digests = {**package_digests(), "versions": digest(versions)}
    return {"version": __version__, "versions": dict(versions), "digests": digests}


def _root() -> Traversable:
    return files("dovetail")


def _package_files(folder: Traversable, path: str = "") -> Iterator[tuple[str, Traversable]]:
    """The files of the package by their path in it, in a fixed order."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.startswith((".", "__pycache__")):
            continue
        name = f"{path}{entry.name}"
        # most are known to be files by their names, which is quicker
        if not name.endswith(_FILES) and entry.is_dir():
            yield from _package_files(entry, f"{name}/")
        else:
            yield name, entry


def _digest_of_files(found: Iterable[tuple[str, bytes]]) -> str:
    whole = hashlib.sha256()
    for name, content in found:
        whole.update(f"{name} {len(content)}\n".encode() + content)
    return whole.hexdigest()[:LENGTH]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _plain(value: object) -> object:
    """A value as JSON has it."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, object]", value))
    for convert in ("tolist", "model_dump"):  # arrays, specs
        if hasattr(value, convert):
            return getattr(value, convert)()
    raise TypeError(f"{type(value).__name__} has no digest")
