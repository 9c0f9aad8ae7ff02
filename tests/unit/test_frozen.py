"""`frozen` makes the classes that `dataclass(frozen=True, slots=True)` makes."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from typing import Any

import pytest

from dovetail.frozen import frozen


class Plain:
    """Fields of all kinds, without a decorator."""

    first: int
    second: str = "two"
    many: list[int] = field(default_factory=list[int])
    silent: float = field(default=0.5, repr=False)
    apart: int = field(default=7, compare=False)
    counted: int = field(default=0, compare=False, hash=True)
    derived: int = field(init=False)
    constant: int = field(default=11, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "derived", 2 * self.first)


class Named:
    """Fields given by name."""

    needed: int
    optional: tuple[int, ...] = ()


class Told:
    """A class with methods of its own."""

    number: int

    def __repr__(self) -> str:
        return "told"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.number % 10 == other.number % 10

    def __hash__(self) -> int:
        return self.number % 10


class Compared:
    """A class with a comparison of its own, whose hash is that of its fields."""

    number: int

    def __eq__(self, other: object) -> bool:
        return self is other


class Empty:
    """No fields."""


def both(cls: type[Any], **options: bool) -> tuple[Any, Any]:
    """The class made by `frozen`, and by `dataclass`."""
    body = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
    ours, plain = type(cls.__name__, (), dict(body)), type(cls.__name__, (), dict(body))
    return frozen(**options)(ours) if options else frozen(ours), dataclass(frozen=True, slots=True, **options)(plain)


def refuse_alike(one: Any, other: Any) -> None:
    for name in [each.name for each in fields(one)]:
        with pytest.raises(FrozenInstanceError) as ours_error:
            setattr(one, name, 1)
        with pytest.raises(FrozenInstanceError) as plain_error:
            setattr(other, name, 1)
        assert str(ours_error.value) == str(plain_error.value)
        with pytest.raises(FrozenInstanceError) as ours_error:
            delattr(one, name)
        with pytest.raises(FrozenInstanceError) as plain_error:
            delattr(other, name)
        assert str(ours_error.value) == str(plain_error.value)
    with pytest.raises(FrozenInstanceError):
        one.missing = 1


@pytest.mark.parametrize(
    ("cls", "values", "named"),
    [
        (Plain, (3,), {}),
        (Plain, (3, "x", [1], 0.25, 8, 9), {}),
        (Plain, (3,), {"counted": 4, "many": [2]}),
        (Told, (12,), {}),
        (Compared, (12,), {}),
        (Empty, (), {}),
    ],
)
def test_objects_are_those_of_dataclass(cls: type[Any], values: tuple[Any, ...], named: dict[str, Any]):
    ours, plain = both(cls)
    one, other = ours(*values, **named), plain(*values, **named)
    assert repr(one) == repr(other)
    assert asdict(one) == asdict(other)
    about = [[(f.name, f.compare, f.kw_only) for f in fields(made)] for made in (ours, plain)]
    assert about[0] == about[1]
    assert (ours.__match_args__, ours.__slots__) == (plain.__match_args__, plain.__slots__)
    assert (one == ours(*values, **named)) == (other == plain(*values, **named))
    assert one != other
    assert type(copy.deepcopy(one)) is ours
    refuse_alike(one, other)
    if cls is not Plain:
        assert hash(one) == hash(other)


def test_what_is_compared_and_hashed():
    ours, plain = both(Plain)
    for cls in (ours, plain):
        assert cls(1, many=()) == cls(1, many=(), apart=9, counted=9)
        assert cls(1, many=()) != cls(1, many=(), silent=9.0)
    for more in ({"many": ()}, {"many": (), "apart": 1}, {"many": (), "counted": 1}, {"many": (), "second": 1}):
        assert hash(ours(1, **more)) == hash(plain(1, **more))


def test_wrong_arguments_are_refused():
    ours, plain = both(Plain)
    by_name, plainly = both(Named, kw_only=True)
    assert repr(by_name(needed=1)) == repr(plainly(needed=1))
    assert replace(by_name(needed=1), optional=(2,)) == by_name(optional=(2,), needed=1)
    for one, other, values, named in (
        (ours, plain, (), {}),
        (ours, plain, (1,), {"missing": 1}),
        (ours, plain, (1,), {"derived": 1}),
        (by_name, plainly, (1,), {}),
        (by_name, plainly, (), {}),
    ):
        with pytest.raises(TypeError) as ours_error:
            one(*values, **named)
        with pytest.raises(TypeError) as plain_error:
            other(*values, **named)
        assert str(ours_error.value) == str(plain_error.value)


@frozen
class Base:
    """A part that others extend."""

    number: int


@frozen
class Extended(Base):
    """More fields behind those of the base."""

    more: str = "more"


class Derived(Base):
    """Inherits what is written when it is called."""

    __slots__ = ()


def test_classes_inherit_fields_and_methods():
    assert Derived(3).number == 3  # before a `Base` was made
    assert repr(Extended(1)) == "Extended(number=1, more='more')"
    assert Extended(1) == Extended(1, "more") != Extended(1, "less")
    assert Extended(1) != Base(1)
    assert hash(Derived(3)) == hash(Base(3))
    copied = pickle.loads(pickle.dumps(Extended(4, "x")))  # noqa: S301  (our own)
    assert copied == Extended(4, "x")


def test_methods_are_written_when_they_are_called():
    @frozen
    class Fresh:
        number: int

    assert vars(Fresh)["__init__"].__name__ == "first_call"
    Fresh(1)
    assert vars(Fresh)["__init__"].__name__ == "__init__"
    assert vars(Fresh)["__hash__"].__name__ == "first_call"
