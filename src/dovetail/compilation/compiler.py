"""Kernels given to numba: the one module that imports it, when the first kernel runs compiled."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, get_type_hints

from numba import njit
from numba.core import event

from dovetail.compilation.cache import stored
from dovetail.compilation.inner_code import InnerCompiler, for_all_values
from dovetail.compilation.progress import PROGRESS
from dovetail.compilation.references import pass_by_reference
from dovetail.compilation.text import KernelText

#: No kernel is handed over as a C function.
_ALWAYS: dict[str, Any] = {"no_cfunc_wrapper": True}


def entry(copy: FunctionType, kernels: Sequence[KernelText]) -> Callable[..., Any]:
    """The first kernel as Python calls it, compiled for each combination of types; kept for the next process."""
    first = kernels[0]
    for annotation in get_type_hints(first.function).values():
        pass_by_reference(annotation)
    copy.__dict__["kernels"] = len(kernels)
    return stored(njit(**_ALWAYS, **first.options)(copy), kernels)


def inner(copy: FunctionType, kernel: KernelText) -> Callable[..., Any]:
    """A kernel that is compiled into what calls it."""
    copy.__dict__["kernels"] = 1
    options: dict[str, Any] = {**_ALWAYS, "no_cpython_wrapper": True, "pipeline_class": InnerCompiler, **kernel.options}
    return for_all_values(njit(**options)(copy))


class _Listener(event.Listener):
    """Tells of what numba compiles: kernels, and functions of its own."""

    def on_start(self, event: event.Event) -> None:
        function = _function_of(event)
        PROGRESS.begin(function.__name__, function.__dict__.get("kernels", 1))

    def on_end(self, event: event.Event) -> None:
        PROGRESS.end(counts="kernels" in _function_of(event).__dict__)


def _function_of(event: event.Event) -> FunctionType:
    about: Any = event.data
    return about["dispatcher"].py_func


event.register("numba:compile", _Listener())
