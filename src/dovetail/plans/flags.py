"""Flags of frameworks that have just the value of a field, as the fields are declared with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dovetail.errors import InputError
from dovetail.plans.declaration import Declared, declared
from dovetail.plans.fields import PlanFields
from dovetail.plans.plan import Plan


def flags_of(target: str) -> Mapping[str, str]:
    """The flags of a launch format by the names of the fields."""
    fields = declared(PlanFields).items()
    return {name: each.about.flags[target] for name, each in fields if target in each.about.flags}


def further_flags(target: str, plan: Plan) -> Iterator[tuple[str, str]]:
    """Flags of fields that no exporter knows by name, where they are not at their defaults."""
    for each in _further(target):
        value = getattr(plan, each.name)
        if value != each.default:
            yield each.about.flags[target], str(value)


def read_further(target: str, where: str, text_of: Callable[[str], str | None]) -> dict[str, Any]:
    """Those fields from the texts of their flags."""
    values: dict[str, Any] = {}
    for each in _further(target):
        flag = each.about.flags[target]
        text = text_of(flag)
        if text is not None:
            try:
                values[each.name] = each.values.read(each.name, text)
            except InputError as error:
                raise InputError(f"{where}: {flag}", error.what, error.fix) from None
    return values


def _further(target: str) -> list[Declared]:
    fields = declared(PlanFields).values()
    return [f for f in fields if target in f.about.flags and f.about.searched == "product" and f.about.written]
