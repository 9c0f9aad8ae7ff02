"""Frozen dataclasses that cost little where they are defined.

`dataclass(frozen=True, slots=True)` writes six methods as source and compiles them, a millisecond a class, at every
start of a command that calls few of them. Here a method is compiled when it is first called, once a class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from reprlib import recursive_repr
from typing import Any, Final, TypeVar, dataclass_transform, overload

_ClassT = TypeVar("_ClassT")

#: The default of a parameter whose field has a factory.
_UNSET: Final = object()


@overload
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[_ClassT], /) -> type[_ClassT]: ...
@overload
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(*, kw_only: bool) -> Callable[[type[_ClassT]], type[_ClassT]]: ...
def frozen(cls: Any = None, /, *, kw_only: bool = False) -> Any:
    """A class as `dataclass(frozen=True, slots=True)` makes it: `fields`, `replace`, `asdict` and `pickle` know it."""

    def define(cls: type[Any]) -> type[Any]:
        return _defined(cls, kw_only)

    return define if cls is None else define(cls)


def _defined(cls: type[Any], kw_only: bool) -> type[Any]:
    own = dict(vars(cls))
    if own.get("__eq__") is not None and own.get("__hash__") is None:
        del own["__hash__"]  # Python sets it where a class has only `__eq__`
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # or `dataclass` looks for the signature
    made = dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)(cls)
    for name, method in _SHARED.items():
        if name not in own:
            setattr(made, name, method)
    for name, write in _WRITTEN.items():
        if name not in own:
            setattr(made, name, _written_when_called(made, name, write))
    return made


def _written_when_called(cls: type[Any], name: str, write: Callable[[type[Any]], Callable[..., Any]]) -> Any:
    def first_call(self: Any, *values: Any, **named: Any) -> Any:
        method = write(cls)
        setattr(cls, name, method)
        return method(self, *values, **named)

    return first_call


def _init(cls: type[Any]) -> Callable[..., Any]:
    """`__init__`, which sets fields by their slots: half the time of `object.__setattr__`."""
    about = fields(cls)
    lines = [f"_set_{each.name}(self, {_value(each)})" for each in about if each.init or _default(each) is not MISSING]
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    positional = [_parameter(each) for each in about if each.init and not each.kw_only]
    by_name = [_parameter(each) for each in about if each.init and each.kw_only]
    parameters = [*positional, *(["*", *by_name] if by_name else [])]
    names = {f"_set_{each.name}": getattr(cls, each.name).__set__ for each in about}
    names |= {f"_default_{each.name}": _default(each) for each in about}
    return _method(cls, "__init__", parameters, lines or ["pass"], names | {"_UNSET": _UNSET})


def _default(about: Field[Any]) -> Any:
    """A field's default or factory."""
    return about.default if about.default_factory is MISSING else about.default_factory


def _parameter(about: Field[Any]) -> str:
    if _default(about) is MISSING:
        return about.name
    return f"{about.name}={f'_default_{about.name}' if about.default_factory is MISSING else '_UNSET'}"


def _value(about: Field[Any]) -> str:
    """What `__init__` sets a field to."""
    default = f"_default_{about.name}{'' if about.default_factory is MISSING else '()'}"
    if not about.init:
        return default
    return about.name if about.default_factory is MISSING else f"{default} if {about.name} is _UNSET else {about.name}"


def _eq(cls: type[Any]) -> Callable[..., Any]:
    names = [each.name for each in fields(cls) if each.compare]
    same = f"{_tuple('self', names)} == {_tuple('other', names)}"
    lines = [f"return {same} if other.__class__ is self.__class__ else NotImplemented"]
    return _method(cls, "__eq__", ["other"], lines, {})


def _hash(cls: type[Any]) -> Callable[..., Any]:
    names = [each.name for each in fields(cls) if (each.compare if each.hash is None else each.hash)]
    return _method(cls, "__hash__", [], [f"return hash({_tuple('self', names)})"], {})


def _tuple(owner: str, names: Sequence[str]) -> str:
    return f"({''.join(f'{owner}.{name},' for name in names)})"


def _method(
    cls: type[Any], name: str, parameters: Sequence[str], lines: Sequence[str], names: dict[str, Any]
) -> Callable[..., Any]:
    """A method from its source; `names` are what it reads besides its parameters."""
    namespace: dict[str, Any] = {**names, "__name__": cls.__module__}
    body = "".join(f"    {line}\n" for line in lines)
    exec(f"def {name}({', '.join(['self', *parameters])}):\n{body}", namespace)  # noqa: S102  (names of our fields)
    method = namespace[name]
    method.__qualname__ = f"{cls.__qualname__}.{name}"
    return method


@recursive_repr()
def _repr(self: Any) -> str:
    shown = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({shown})"


def _refuse_set(_self: Any, name: str, _value: Any) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(_self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in fields(self)]


def _restore(self: Any, state: Sequence[Any]) -> None:
    for each, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)


_SHARED: Final = {
    "__repr__": _repr,
    "__setattr__": _refuse_set,
    "__delattr__": _refuse_delete,
    "__getstate__": _state,
    "__setstate__": _restore,
}
_WRITTEN: Final = {"__init__": _init, "__eq__": _eq, "__hash__": _hash}
