"""The space of plans: what each field of a plan may be, for a framework, a job and a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, make_dataclass
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from pydantic import create_model

from dovetail.documents import Spec
from dovetail.frameworks import Framework
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.declaration import Declared, FieldScope, declared
from dovetail.plans.domains import BY_BLOCK, Choice, Partition, divisors, menu
from dovetail.plans.fields import PlanFields
from dovetail.plans.file_types import CurrentWords

__all__ = ["BY_BLOCK", "Choice", "Partition", "PlanSpaceSpec", "Space", "divisors", "listed", "menu"]


@cache
def listed() -> Mapping[str, Declared]:
    """The fields that a space lists values of, by the names it has for them."""
    return {each.space_name: each for each in declared(PlanFields).values() if each.about.domain is not None}


if TYPE_CHECKING:

    class _Listed:
        """Values by field: None, or a tuple of the field's values; a word for the partition."""

        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

        def __init__(self, **values: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...

    class PlanSpaceSpec(Spec):
        """What plans may be; a field that is left out is as free as the framework leaves it."""

else:
    _Listed = make_dataclass(
        "_Listed",
        [(name, Any, None) for name in listed()],
        frozen=True,
        slots=True,
        kw_only=True,
    )


def allowed_values(name: str, whole: tuple[Any, ...], scope: FieldScope) -> tuple[Any, ...]:
    """What a field may be narrowed to: blocks with policies of their own may also all have the same."""
    fixed_to = listed()[name].about.fixed_to
    if fixed_to is not None:
        return (*whole, *fixed_to(scope))
    if name == "recompute" and BY_BLOCK in whole:
        return (*whole, *(word for word in ("none", "full") if word in scope.framework.recompute))
    return whole


class Space(_Listed):
    """Values that fields of a plan may take; None leaves a field as free as framework, job and cluster do.

    A field has a tuple of values, the partition one word. `resolve` fills in what is None.
    """

    __slots__ = ()

    def resolve(self, job: Job, cluster: Cluster, framework: Framework) -> Space:
        """The space with all fields filled in: all that the framework runs, or of that what is given.

        What is given can only narrow: values that no plan of the framework has are left out. Degrees are divisors;
        whether they divide what they shard, nest, and suit each other is for the search to say.
        """
        scope = FieldScope(job, cluster, framework)
        values: dict[str, Any] = {}
        for name, each in listed().items():
            given = getattr(self, name)
            assert each.about.domain is not None
            whole = each.about.domain(scope)
            if given is None:
                values[name] = whole
            elif name == "partition":
                values[name] = min(given, whole, key=get_args(Partition).index)
            else:
                allowed = allowed_values(name, whole, scope)
                values[name] = tuple(value for value in given if value in allowed)
        return Space(**values)

    def product(self) -> Iterator[dict[str, Any]]:
        """Of a resolved space, all combinations of the fields that no step of the search knows by name."""
        names = [name for name, each in listed().items() if each.about.searched in ("product", "fixed")]
        for values in product(*(getattr(self, name) for name in names)):
            yield dict(zip(names, values, strict=True))


if not TYPE_CHECKING:
    PlanSpaceSpec = create_model(
        "PlanSpaceSpec",
        __base__=CurrentWords,
        __doc__="What plans may be; a field that is left out is as free as the framework leaves it.",
        **{name: (each.values.in_file | None, None) for name, each in listed().items()},
    )
