"""A kernel: compiled on its first call, with all that it calls, or run as plain Python where that takes less."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, TypeVar, cast, overload

from dovetail.compilation.text import KernelText, copy_of, globals_of

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Steps of some ten microseconds that a kernel takes as plain Python before it is compiled: a second would be compiled,
#: or what is compiled loaded, for less.
PLAIN_STEPS = 20_000


class CompiledFunction:
    """A function that is compiled when it is first called; only then the compiler is loaded.

    A call finds one of three copies of the function, in whose text other kernels are copies of the same sort: one that
    Python calls, one that compiled code calls (without the way from Python into it, which is half the work of
    compiling), and one that is not compiled.
    """

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = cast("FunctionType", function)
        self.options = dict(options)
        self._entry: Callable[..., Any] | None = None
        self._inner: Callable[..., Any] | None = None
        self._plain: Callable[..., Any] | None = None
        self._plain_steps = 0

    def __call__(self, *values: Any) -> Any:
        """Runs compiled."""
        return (self._entry or self.entry())(*values)

    def __reduce__(self) -> str:
        """A kernel is sent to another process by its name."""
        return self.function.__qualname__

    def entry(self) -> Callable[..., Any]:
        """The function as Python calls it."""
        from dovetail.compilation.compiler import entry

        if self._entry is None:
            copy = copy_of(self.function)
            _bind(copy, self.function, CompiledFunction.inner)
            texts = [KernelText(kernel.function, kernel.options) for kernel in reached(self)]
            self._entry = entry(copy, texts)
        return self._entry

    def inner(self) -> Callable[..., Any]:
        """The function as compiled code calls it."""
        from dovetail.compilation.compiler import inner

        if self._inner is None:
            copy = copy_of(self.function)
            self._inner = inner(copy, KernelText(self.function, self.options))
            _bind(copy, self.function, CompiledFunction.inner)
        return self._inner

    def plain(self) -> Callable[..., Any]:
        """The function as Python runs it by itself."""
        if self._plain is None:
            self._plain = copy = copy_of(self.function)
            _bind(copy, self.function, CompiledFunction.plain)
        return self._plain

    def runs_plain(self, steps: int) -> bool:
        """Whether so many more steps are few enough; they are taken note of."""
        if self._entry is not None or self._plain_steps + steps > PLAIN_STEPS:
            return False
        self._plain_steps += steps
        return True


@overload
def compiled(function: _Function, /) -> _Function: ...
@overload
def compiled(**options: Any) -> Callable[[_Function], _Function]: ...
def compiled(function: Any = None, /, **options: Any) -> Any:
    """Makes a function a kernel; `options` are the compiler's."""
    if function is None:
        return functools.partial(_kernel_of, options=options)
    return _kernel_of(function, {})


def _kernel_of(function: Callable[..., Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    uncompiled = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
    return function if uncompiled else CompiledFunction(function, options)


def compilable(function: Callable[..., Any], within_kernels: Callable[..., Any] | None = None) -> None:
    """Lets kernels call a function of plain Python, or there another one in its place."""
    function.__dict__["kernel"] = CompiledFunction(within_kernels or function, {})


def worth_compiling(function: _Function, steps: int) -> _Function:
    """A kernel, or its plain function while all its steps in this process take less than compiling or loading it.

    Both give equal answers.
    """
    kernel: object = function
    if isinstance(kernel, CompiledFunction) and kernel.runs_plain(steps):
        return cast("_Function", kernel.plain())
    return function


def reached(kernel: CompiledFunction) -> tuple[CompiledFunction, ...]:
    """A kernel and those it calls, directly or through others."""
    all_kernels, ahead = {kernel: None}, [kernel]
    while ahead:
        for _, value in globals_of(ahead.pop().function):
            if (other := _kernel(value)) is not None and other not in all_kernels:
                all_kernels[other] = None
                ahead.append(other)
    return tuple(all_kernels)


def _bind(copy: FunctionType, function: FunctionType, sort: Callable[[CompiledFunction], Callable[..., Any]]) -> None:
    """Gives a copy what the function names, kernels as copies of one sort."""
    for name, value in globals_of(function):
        kernel = _kernel(value)
        plain = kernel is None or (sort is CompiledFunction.plain and not isinstance(value, CompiledFunction))
        copy.__globals__[name] = value if plain else sort(cast("CompiledFunction", kernel))


def _kernel(value: object) -> CompiledFunction | None:
    """What is called in compiled code where this is named."""
    if isinstance(value, CompiledFunction):
        return value
    return value.__dict__.get("kernel") if isinstance(value, FunctionType) else None
