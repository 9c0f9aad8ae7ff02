"""The space of plans: what each field of a plan may be, for a framework, a job and a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, make_dataclass
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from pydantic import create_model

from dovetail.documents import Spec
from dovetail.errors import InputError, one_of, quoted
from dovetail.frameworks import Framework
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.declaration import Declared, FieldScope, declared
from dovetail.plans.domains import BY_BLOCK, Choice, Partition, chooses_by_block, divisors, menu
from dovetail.plans.fields import PlanFields
from dovetail.plans.file_types import CurrentWords

__all__ = ["BY_BLOCK", "Choice", "Partition", "PlanSpaceSpec", "Space", "check_space", "divisors", "listed", "menu"]


@cache
def listed() -> Mapping[str, Declared]:
    """The fields that a space lists values of, by the names it has for them."""
    return {each.space_name: each for each in declared(PlanFields).values() if each.about.domain is not None}


def _check_values(space: Any) -> None:
    for name in listed():
        values = getattr(space, name)
        if values is not None and not values:
            raise InputError(f"space: {name}", "has no value", "give one or more, or leave it out")


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
        namespace={"__post_init__": _check_values},
        frozen=True,
        slots=True,
        kw_only=True,
    )


class Space(_Listed):
    """Values that fields of a plan may take; None leaves a field as free as framework, job and cluster do.

    A field has a tuple of values, the partition one word. `resolve` fills in what is None.
    """

    __slots__ = ()

    def resolve(self, job: Job, cluster: Cluster, framework: Framework) -> Space:
        """The space with all fields filled in: what is given, or all that the framework runs.

        Degrees are divisors; whether they divide what they shard, nest, and suit each other is for the search to say.
        The expert-tensor degree alone stays None where it is open: 1, or the tensor degree.
        """
        scope = FieldScope(job, cluster, framework)
        values: dict[str, Any] = {}
        for name, each in listed().items():
            given = getattr(self, name)
            assert each.about.domain is not None
            values[name] = each.about.domain(scope) if given is None else given
        if self.partition is not None and framework.uneven_stages in ("never", "ends"):
            widest = listed()["partition"].about.domain
            assert widest is not None
            values["partition"] = min(self.partition, widest(scope), key=get_args(Partition).index)
        return Space(**values)

    def product(self) -> Iterator[dict[str, Any]]:
        """Of a resolved space, all combinations of the fields that no step of the search knows by name."""
        names = [name for name, each in listed().items() if each.about.searched in ("product", "fixed")]
        for values in product(*(getattr(self, name) for name in names)):
            yield dict(zip(names, values, strict=True))


def check_space(space: Space, framework: Framework) -> None:
    """Refuses values that no plan of the framework has."""
    for name, each in listed().items():
        smallest = each.smallest
        for value in getattr(space, name) or () if smallest is not None else ():
            if value < smallest:
                raise InputError(f"space: {name}", f"has {value}", f"it should be {smallest:g} or more")
    for name, each in listed().items():
        values = getattr(space, name) or ()
        if each.alike and len(values) > 1:
            raise InputError(f"space: {name}", f"has {len(values)} values", "give one, for all plans alike")
    for kind in space.context_kind or ():
        if framework.context_parallel and kind not in framework.context_parallel:
            _refuse("context_kind", kind, framework, one_of(framework.context_parallel, kind))
    for share in space.recompute_share or ():
        if not 0 < share <= 1 or (share < 1 and not framework.recompute_some_layers):
            most = "above 0 and at most 1" if framework.recompute_some_layers else "1"
            _refuse("recompute_share", share, framework, f"it should be {most}")
    for choice in space.recompute or ():
        if choice == BY_BLOCK:
            if not chooses_by_block(framework):
                _refuse("recompute", choice, framework, "name choices of its menu")
        elif isinstance(choice, str) and choice not in framework.recompute:
            _refuse("recompute", choice, framework, one_of(framework.recompute, choice))


def _refuse(field: str, value: object, framework: Framework, fix: str) -> None:
    raise InputError(f"space: {field}", f"has {quoted(value)}, which {framework.name} does not run", fix)


if not TYPE_CHECKING:
    PlanSpaceSpec = create_model(
        "PlanSpaceSpec",
        __base__=CurrentWords,
        __doc__="What plans may be; a field that is left out is as free as the framework leaves it.",
        **{name: (each.values.in_file | None, None) for name, each in listed().items()},
    )
