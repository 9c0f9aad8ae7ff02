"""What the declaration of a plan field says, and how declarations are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import Field
from pydantic.fields import FieldInfo

from dovetail.errors import InputError, quoted
from dovetail.frameworks import Framework
from dovetail.frozen import frozen
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.derive import Given

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

#: Joins the modules of one recompute policy on the command line.
TOGETHER = "+"


@frozen
class FieldScope:
    """What the values of a field depend on."""

    job: Job
    cluster: Cluster
    framework: Framework


@frozen
class Values:
    """How values of a field are listed in files, and read from the text of `--fix`; errors name no place yet."""

    in_file: Any
    read: Callable[[str, str], object]
    #: one value instead of a list of them
    single: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class PlanField:
    """All that is declared of a plan field besides its name, type and default.

    The annotation has the type and its limits (`Degree`). A field with a default has it in plan files too; one without
    is what `resolve` derives where a file leaves it out.
    """

    #: how messages and docs describe it
    doc: str = ""
    #: its type in plan files where that is another one
    in_file: Any = None
    #: False: it always follows from others, and no file has it
    written: bool = True
    #: what the plan has for what a file says, which is None where it may leave the field out; None: just that
    resolve: Callable[[Given], Any] | None = None
    #: how a file writes it, where not as it is
    write: Callable[[Any], Any] | None = None

    #: values it may take; None: no space lists it
    domain: Callable[[FieldScope], Any] | None = None
    #: what it may be fixed to, where a search leaves it to the framework
    fixed_to: Callable[[FieldScope], tuple[Any, ...]] | None = None
    #: how a space lists it; None: by the type of the field
    values: Values | None = None
    #: what a space calls it, where its values are not those of the field
    listed_as: str = ""
    #: who enumerates its values: a step of the search that knows what they do to the cost, or the plain product of
    #: all values with whatever else varies, which is right for any field; or nobody, where all plans of a space have
    #: the one value it is fixed to
    searched: Literal["product", "degrees", "pipeline", "sharding", "recompute", "partition", "fixed"] = "product"
    #: whether it means something in a plan; a space need not list values that mean nothing
    matters: Callable[[Any], bool] | None = None

    #: abbreviation: TP in TP8
    short: str = ""
    #: its position in the short form; equal ones are in the order of declaration
    order: int = 100
    #: its part of the short form, empty where there is nothing to say; None: the abbreviation and the value
    words: Callable[[Any], str] | None = None
    #: whether that part is among the degrees, or behind them after a comma
    behind: bool = False
    #: whether 1 is worth a word
    always: bool = False

    #: framework or launch format → the flag that has just this value
    flags: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@frozen
class Declared:
    """A declared field with what its name, annotation and default say."""

    name: str
    annotation: Any
    about: PlanField
    #: `MISSING` where it is derived
    default: Any

    @property
    def base(self) -> Any:
        """Its type without limits; `str` where it is one of some words."""
        plain: Any = get_args(self.annotation)[0] if get_origin(self.annotation) is Annotated else self.annotation
        return str if get_origin(plain) is Literal else plain

    @property
    def derived(self) -> bool:
        """Whether a file may leave it out to have it derived."""
        return self.default is MISSING

    @property
    def file_type(self) -> Any:
        """Its type in plan files."""
        kind = self.about.in_file or self.annotation
        return kind | None if self.derived or self.default is None else kind

    @property
    def space_name(self) -> str:
        """What spaces call it."""
        return self.about.listed_as or self.name

    @property
    def values(self) -> Values:
        """How a space lists it."""
        return self.about.values or _VALUES[self.base]

    @property
    def alike(self) -> bool:
        """Whether all plans of a space have one value of it."""
        return self.about.searched == "fixed"

    @property
    def smallest(self) -> float | None:
        """The smallest value its type allows."""
        for part in _metadata(self.annotation):
            if isinstance(part, FieldInfo):
                return next((limit.ge for limit in part.metadata if hasattr(limit, "ge")), None)
        return None


@cache
def declared(table: type[DataclassInstance]) -> Mapping[str, Declared]:
    """The fields of a table by their names, in its order."""
    hints = get_type_hints(table, include_extras=True)
    by_name: dict[str, Declared] = {}
    for each in fields(table):
        about = next((part for part in _metadata(hints[each.name]) if isinstance(part, PlanField)), None)
        assert about is not None, f"{each.name} is declared with a PlanField"
        by_name[each.name] = Declared(each.name, hints[each.name], about, each.default)
    return MappingProxyType(by_name)


def _metadata(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()


def number(name: str, word: str) -> int:
    """A whole number of the command line."""
    if not (word.isascii() and word.isdecimal() and len(word) < 10):
        raise InputError(name, f"{quoted(word)} is no whole number", f"write it as {name}=1,2")
    return int(word)


def share(name: str, word: str) -> float:
    """A part of a whole."""
    try:
        value = float(word)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise InputError(name, f"is {quoted(word)}", "it should be above 0 and at most 1")
    return value


def truth(name: str, word: str) -> bool:
    """Whether a word says yes."""
    choices = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    if word.lower() not in choices:
        raise InputError(name, f"is {quoted(word)}", "it should be true or false")
    return choices[word.lower()]


def _list_of(item: Any, most: int = 100) -> Any:
    return Annotated[tuple[item, ...], Field(strict=False, min_length=1, max_length=most)]


Text = Annotated[str, Field(min_length=1, max_length=1000)]
Words = _list_of(Text)

_VALUES: Mapping[type, Values] = {
    int: Values(_list_of(Annotated[int, Field(ge=0, le=2**20)]), number),
    float: Values(_list_of(Annotated[float, Field(gt=0, le=1e18)]), share),
    bool: Values(_list_of(bool, 2), truth),
    str: Values(Words, lambda _, word: word),
}


SWITCH = _VALUES[bool]
WORD = _VALUES[str]


#: What hosts hold, each choice a list; joined on the command line.
OFFLOADS = Values(_list_of(Words, 1), lambda _, word: tuple(sorted(word.split(TOGETHER), reverse=True)))


def recompute_values(by_block: str) -> Values:
    """How recompute policies are listed: a word, or modules together; `by_block` is written with an underscore."""

    def read(_: str, word: str) -> str | tuple[str, ...]:
        if word == by_block.replace(" ", "_"):
            return by_block
        return tuple(word.split(TOGETHER)) if TOGETHER in word else word

    return Values(_list_of(Text | Words, 200), read)
