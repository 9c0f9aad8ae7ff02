"""Which layers of a list are equal: those that hold the same settings and are called alike."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportMissingTypeArgument=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false, reportDeprecated=false
from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any

from dovetail.models.tracing.pytorch import nn, torch

#: Settings of `transformers` that only say where a layer stands; a module of somebody else may do what they say.
_POSITIONS = frozenset({"layer_idx", "layer_id", "layer_index", "layer_number", "idx", "index"})
#: What PyTorch itself keeps in every module, but for hooks, which run.
_OWN = frozenset(vars(nn.Module())) - {"_forward_hooks", "_forward_pre_hooks"}
#: Modules that hold others in order.
_LISTS = frozenset({"ModuleList", "Sequential"})


def kind_of(module: Any) -> tuple[object, ...]:
    """What two layers of a list share when they compute the same."""
    return tuple(_facts(module))


def _facts(module: Any) -> Iterator[object]:
    for prefix, each in module.named_modules():
        yield prefix, type(each).__qualname__
        for table in (each._parameters, each._buffers):
            yield tuple(
                (name, tuple(t.shape), str(t.dtype), t.requires_grad) for name, t in table.items() if t is not None
            )
        passed_over = _OWN | _POSITIONS if type(each).__module__.startswith("transformers.") else _OWN
        # while modules are named their forward is not their own
        yield tuple(
            (name, setting(value, each)) for name, value in sorted(vars(each).items())
            if name not in passed_over and name != "forward"
        )  # fmt: skip


class _Itself:
    """An object that is equal to itself alone, kept so that no later one is taken for it."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other._value is self._value

    def __hash__(self) -> int:
        return id(self._value)


def setting(value: Any, owner: Any = None, inside: frozenset[int] = frozenset()) -> object:
    """What can be compared of a setting or argument: equal ones do the same; `inside` are those that hold it."""
    if id(value) in inside:
        return "what holds it"

    def parts(*values: Any) -> tuple[object, ...]:
        return tuple(setting(each, owner, inside | {id(value)}) for each in values)

    match value:
        case bool() | int() | float() | str() | bytes() | None | torch.dtype() | torch.device():
            return type(value).__name__, value
        case tuple() | list():
            return type(value).__name__, *parts(*value)
        case Mapping():
            return parts(*value.keys()), parts(*value.values())
        case functools.partial():
            return parts(value.func, value.args, value.keywords)
        case MethodType() if value.__self__ is owner:
            return value.__func__
        case FunctionType():
            cells = inspect.getclosurevars(value).nonlocals
            return value.__code__, *parts(cells, value.__defaults__, value.__kwdefaults__)
        case _:
            return "owner" if value is owner else _Itself(value)


def units_of(module: Any) -> Iterator[tuple[str, Any]]:
    """The children of lists of modules that are not inside another such list."""
    found: list[str] = []
    for name, each in module.named_modules():
        if any(name.startswith(f"{outer}.") for outer in found):
            continue
        if type(each).__name__ in _LISTS and len(each) and _has_layers(each):
            found.append(name)
            for key, child in each.named_children():
                yield f"{name}.{key}".lstrip("."), child


def shared_by_units(module: Any) -> frozenset[int]:
    """The parameters, by identity, that several layers hold, each as its own."""
    owners: dict[int, set[str]] = {}
    for name, unit in units_of(module):
        for parameter in unit.parameters():
            owners.setdefault(id(parameter), set()).add(name)
    return frozenset(parameter for parameter, names in owners.items() if len(names) > 1)


def _has_layers(modules: Any) -> bool:
    """Whether a list holds layers, and not single operators of one."""
    return all(any(True for _ in child.children()) for child in modules.children())
