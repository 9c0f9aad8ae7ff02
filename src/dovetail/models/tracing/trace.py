"""What a traced module did, without PyTorch: values, the operators that made them, and the layers they belong to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from dovetail.frozen import frozen

Shape: TypeAlias = "tuple[int, ...]"


@frozen
class Value:
    """A tensor of the trace."""

    id: int
    shape: Shape
    dtype: str
    #: a parameter's or buffer's name in the module, or an input's
    name: str = ""
    kind: str = "computed"


@dataclass(eq=False)
class Node:
    """One recorded operator; `args` and `options` hold values, numbers and nested lists of them."""

    target: str
    args: tuple[Any, ...]
    options: Mapping[str, Any]
    results: tuple[Value, ...]
    #: qualified names of the modules it ran in, outermost first
    path: tuple[str, ...] = ()
    #: position of the unit (repeated layer) call it ran in; -1 outside of all
    unit: int = -1
    #: how many calls of units had begun before
    after: int = 0
    #: no gradient passes to what it reads
    stops: bool = False
    #: arguments and the values found in them
    _seen: tuple[object, object, tuple[Value, ...]] = field(default=(None, None, ()), repr=False)

    @property
    def result(self) -> Value:
        """The first result."""
        return self.results[0]

    def inputs(self) -> tuple[Value, ...]:
        """Every value it reads, in order."""
        args, options, found = self._seen
        if args is not self.args or options is not self.options:
            found = tuple(values_in((self.args, self.options)))
            self._seen = (self.args, self.options, found)
        return found

    def arg(self, position: int, name: str, default: Any = None) -> Any:
        """An argument given by position or by name."""
        return self.args[position] if len(self.args) > position else self.options.get(name, default)


@frozen
class UnitCall:
    """One call of a repeated layer: where it is in the module, and which call was really recorded for its kind."""

    path: str
    #: index of the recorded call it equals: its own where it was recorded
    like: int
    #: the stream it was given and the one it handed on; None where its result has another shape
    taken: Value | None = None
    handed: Value | None = None


@dataclass
class Trace:
    """A forward pass."""

    nodes: list[Node]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    parameters: Mapping[int, Value]
    #: names of parameters that are not trained
    frozen: frozenset[str]
    #: parameters that several layers hold, by name
    shared: frozenset[str] = frozenset()
    #: layers that run more than once and stand for others of their kind
    repeated: frozenset[str] = frozenset()
    #: how many parameters the module has, each counted once
    num_parameters: int = 0
    units: tuple[UnitCall, ...] = ()
    batch: int = 1
    seq: int | None = None
    notes: list[str] = field(default_factory=list[str])


def values_in(argument: Any) -> Iterator[Value]:
    """The values of a nested argument."""
    if isinstance(argument, Value):
        yield argument
    elif isinstance(argument, Mapping):
        for each in argument.values():  # pyright: ignore[reportUnknownVariableType]
            yield from values_in(each)
    elif isinstance(argument, list | tuple):
        for each in argument:  # pyright: ignore[reportUnknownVariableType]
            yield from values_in(each)


def replaced(argument: Any, new: Mapping[int, Value]) -> Any:
    """A nested argument with some values replaced."""
    if isinstance(argument, Value):
        return new.get(argument.id, argument)
    if isinstance(argument, Mapping):
        return {k: replaced(v, new) for k, v in argument.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(argument, list | tuple):
        return tuple(replaced(each, new) for each in argument)  # pyright: ignore[reportUnknownVariableType]
    return argument
