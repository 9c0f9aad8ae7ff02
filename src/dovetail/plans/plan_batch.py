"""Many plans as columns: an array for each field whose values are numbers or words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field, make_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dovetail.plans.declaration import declared
from dovetail.plans.fields import PlanFields
from dovetail.plans.plan import Plan

#: Numbers are floats, since what is computed of them are seconds and shares.
_ELEMENTS: Mapping[Any, type[np.generic]] = {int: np.float64, float: np.float64, bool: np.bool_, str: np.str_}


@cache
def columns() -> Mapping[str, type[np.generic]]:
    """The fields that are columns, and the type of their elements."""
    return {each.name: _ELEMENTS[each.base] for each in declared(PlanFields).values() if each.base in _ELEMENTS}


def _as_arrays(batch: Any) -> None:
    for name, element in columns().items():
        values = getattr(batch, name)
        if values is not None:
            object.__setattr__(batch, name, np.asarray(values, element))


if TYPE_CHECKING:

    class _Columns:
        """Arrays by field; None where nobody asks for the field."""

        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

        def __init__(self, **values: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...

else:
    _Columns = make_dataclass(
        "_Columns",
        [(name, Any, None) for name in columns()],
        namespace={"__post_init__": _as_arrays},
        frozen=True,
        slots=True,
        kw_only=True,
        eq=False,
    )


class PlanBatch(_Columns):
    """Plans side by side: columns that broadcast. A field that nothing is computed of may be left out."""

    __slots__ = ()

    @classmethod
    def of(cls, plans: Sequence[Plan]) -> PlanBatch:
        """All columns of some plans."""
        return cls(**{name: [getattr(plan, name) for plan in plans] for name in columns()})

    def columns(self) -> dict[str, Any]:
        """The columns that are given, by the fields' names."""
        values = {name: getattr(self, name) for name in columns()}
        return {name: column for name, column in values.items() if column is not None}
