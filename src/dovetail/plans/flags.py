"""Options of frameworks that have just the value of a field, as the fields are declared with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dovetail.plans.declaration import declared
from dovetail.plans.fields import PlanFields
from dovetail.plans.plan import Plan


def flags_of(target: str) -> Mapping[str, str]:
    """The options of a launch format by the names of the fields."""
    fields = declared(PlanFields).items()
    return {name: each.about.flags[target] for name, each in fields if target in each.about.flags}


def further_flags(target: str, plan: Plan) -> Iterator[tuple[str, str]]:
    """Options of fields that no exporter knows by name, where they are not at their defaults."""
    for name, each in declared(PlanFields).items():
        if target in each.about.flags and each.about.searched == "product" and each.about.written:
            value = getattr(plan, name)
            if value != each.default:
                yield each.about.flags[target], str(value)
