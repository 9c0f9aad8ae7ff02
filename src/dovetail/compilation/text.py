"""What a function says: its code and what it names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

from dovetail.frozen import frozen


@frozen
class KernelText:
    """What decides what a kernel computes: a function, and options of the compiler."""

    function: FunctionType
    options: Mapping[str, Any]


def globals_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function names beyond its own, and what that is."""
    for name in dict.fromkeys(name for code in codes(function.__code__) for name in code.co_names):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def codes(code: CodeType) -> Iterator[CodeType]:
    """A code and those within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def copy_of(function: FunctionType) -> FunctionType:
    """A copy that names nothing yet."""
    names = {name: function.__globals__[name] for name in ("__name__", "__builtins__")}
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__annotations__ = function.__annotations__
    return copy
