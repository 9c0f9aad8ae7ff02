"""Where compiled kernels are kept: where numba keeps them, or in a private directory where nothing else is writable."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile
from numba.core.runtime.nrt import rtsys

from dovetail.compilation.text import KernelText, codes, globals_of


def stored(dispatcher: Any, kernels: Iterable[KernelText]) -> Any:
    """Reads and stores what a dispatcher compiles, as long as the text of its kernels stays the same."""
    with contextlib.suppress(RuntimeError):  # no place is writable: each process compiles its own
        dispatcher._cache = _KernelCache(dispatcher.py_func, kernels)
    return dispatcher


class PrivateDirectory:
    """A directory below that for temporary files, which none but its owner reads or writes."""

    def __init__(self, path: Path, function: FunctionType, file: str) -> None:
        self._path = path / hashlib.sha256(file.encode()).hexdigest()[:16]
        self._line = function.__code__.co_firstlineno

    @staticmethod
    def from_function(function: FunctionType, file: str) -> PrivateDirectory | None:
        """The place of a function's file, or None where somebody else has a hand in it."""
        path = private_directory(Path(tempfile.gettempdir()))
        return None if path is None else PrivateDirectory(path, function, file)

    def get_cache_path(self) -> str:
        """The directory."""
        return str(self._path)

    def ensure_cache_path(self) -> None:
        """Makes the directory."""
        self._path.mkdir(mode=0o700, exist_ok=True)

    def get_source_stamp(self) -> str:
        """Nothing: the cache knows what its kernels say."""
        return ""

    def get_disambiguator(self) -> str:
        """Tells functions of one name apart."""
        return str(self._line)


def private_directory(parent: Path) -> Path | None:
    """The user's own directory there, made if need be; None where it cannot be trusted or written."""
    path = parent / f"dovetail-{os.getuid() if hasattr(os, 'getuid') else 'kernels'}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError:
        return None
    ours = not hasattr(os, "getuid") or (found.st_uid == os.getuid() and not found.st_mode & 0o077)
    return path if ours and stat.S_ISDIR(found.st_mode) and os.access(path, os.W_OK) else None


class _Places(CompileResultCacheImpl):
    """Where numba looks for a place to write, and after that a private one."""

    _locator_classes = [*CompileResultCacheImpl._locator_classes, PrivateDirectory]  # noqa: RUF012


class _KernelCache(FunctionCache):
    """What is compiled of a kernel, as long as it and those it calls say the same."""

    _impl_class = _Places

    def __init__(self, function: FunctionType, kernels: Iterable[KernelText]) -> None:
        super().__init__(function)
        self._cache_file = IndexDataCacheFile(self._cache_path, self._impl.filename_base, content_digest(kernels))

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Reads what is kept without loading all that numba can compile, which it loads by itself before it does."""
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)


def content_digest(kernels: Iterable[KernelText]) -> str:
    """A digest of all that decides what kernels compute: their code, their options, and the constants they name."""
    text = hashlib.sha256()
    for kernel in kernels:
        function: Any = kernel.function
        text.update(repr((function.__qualname__, sorted(kernel.options.items()))).encode())
        for code in codes(function.__code__):
            text.update(code.co_code)
            text.update(repr([_plain(constant) for constant in code.co_consts]).encode())
            text.update(repr(code.co_names).encode())
        text.update(repr([(name, _plain(value)) for name, value in globals_of(function)]).encode())
    return text.hexdigest()


def _plain(value: object) -> object:
    """A constant as text that is the same in every process."""
    match value:
        case bool() | int() | float() | complex() | str() | bytes() | None:
            return value
        case tuple() | list():
            return [_plain(part) for part in value]  # pyright: ignore[reportUnknownVariableType]
        case set() | frozenset():
            return sorted(repr(_plain(part)) for part in value)  # pyright: ignore[reportUnknownVariableType]
        case np.ndarray() | np.generic():
            return (str(value.dtype), value.shape, value.tobytes())
        case ModuleType():
            return value.__name__
        case type():
            return (value.__qualname__, getattr(value, "_fields", ()))
        case _:
            return type(value).__qualname__
