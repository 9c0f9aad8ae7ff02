"""A narrower space in words: `tensor_parallel=8`, `recompute=none,full`; checked against what there is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, cast, get_args

from dovetail.errors import InputError, one_of, quoted
from dovetail.frameworks import Framework
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.declaration import TOGETHER, FieldScope, declared
from dovetail.plans.fields import PlanFields
from dovetail.plans.file_types import refuse_renamed
from dovetail.plans.overlaps import offload_obstacles
from dovetail.plans.space import Choice, Partition, Space, allowed_values, listed

#: Where messages say a wrong value is, and fields with a flag of their own.
WHERE = "--fix"
OWN_FLAGS = {"offload": "--offload"}


def narrowed(texts: Iterable[str]) -> Space:
    """The space that texts such as `tensor_parallel=4,8` leave."""
    names = tuple(listed())
    by_field: dict[str, Any] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise InputError(WHERE, f"{quoted(text)} has no value", "write it as tensor_parallel=8")
        refuse_renamed(name, f"{WHERE} {name}")
        if name not in names:
            raise _unknown(name, names)
        if name in by_field:
            raise InputError(f"{WHERE} {name}", "is given twice", "put its values in one, with commas between them")
        by_field[name] = _values(name, values)
    return Space(**by_field)


def narrowing_texts(stated: Mapping[str, Any]) -> list[str]:
    """The texts that narrow as a space did that is stated as data."""
    names = [name for name in stated.get("narrowed_by_user", ()) if isinstance(stated.get(name), str | list | tuple)]
    return [f"{name}={_words(stated[name])}" for name in names]


def _words(values: str | Sequence[Any]) -> str:
    return values if isinstance(values, str) else ",".join(_word(value) for value in values)


def _word(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return TOGETHER.join(cast("Sequence[str]", value))
    return str(value).replace(" ", "_")


def _unknown(name: str, names: tuple[str, ...]) -> InputError:
    if name in declared(PlanFields):
        return InputError(WHERE, f"{quoted(name)} follows from other fields of a plan", one_of(names, most=len(names)))
    begun = [field for field in names if len(name) > 2 and field.startswith(name)]
    short = {each.about.short.lower(): field for field, each in listed().items() if each.about.short}
    likely = short.get(name) or (begun[0] if begun else name)
    return InputError(WHERE, f"{quoted(name)} is no field of a plan", one_of(names, likely, len(names)))


def _values(name: str, text: str) -> Any:
    words = [word.strip() for word in text.split(",")]
    values = listed()[name].values
    if values.single:
        if len(words) > 1 or words[0] not in get_args(values.in_file):
            raise InputError(f"{WHERE} {name}", f"is {quoted(text)}", one_of(get_args(values.in_file), text))
        return words[0]
    try:
        return tuple(dict.fromkeys(values.read(name, word) for word in words))
    except InputError as error:
        raise InputError(f"{WHERE} {name}", error.what, error.fix) from None


def within(
    space: Space, job: Job, cluster: Cluster, framework: Framework, *, leave_out: bool = False, where: str = WHERE
) -> Space:
    """The space as it was written for this job, cluster and framework; it can only narrow what these leave open.

    Values that none of their plans has are refused. With `leave_out` they are dropped as long as one value remains: a
    space for clusters of several sizes. A module by its name alone means just that module.
    """
    whole = Space().resolve(job, cluster, framework)
    settled: dict[str, Any] = {}
    for name in listed():
        values: Any = getattr(space, name)
        allowed: Any = getattr(whole, name)
        if values is None:
            continue
        if name == "partition":
            _check_partition(values, allowed, framework, where)
            settled[name] = values
            continue
        allowed = allowed_values(name, allowed, FieldScope(job, cluster, framework))
        if name == "recompute":
            values = tuple(_settled_choice(value, allowed, framework) for value in values)
        if listed()[name].alike and len(values) > 1:
            raise InputError(f"{where} {name}", f"has {len(values)} values", "give one, for all plans alike")
        if not values:
            raise InputError(f"{where} {name}", "has no value", "give one or more, or leave it out")
        remaining = tuple(value for value in values if value in allowed)
        values = remaining if leave_out and remaining else values
        _check_values(_place(where, name), values, allowed, framework)
        settled[name] = values
    _check_offload(replace(whole, **settled), job, framework, _place(where, "offload"))
    return Space(**settled)


def _place(where: str, name: str) -> str:
    return OWN_FLAGS[name] if where == WHERE and name in OWN_FLAGS else f"{where} {name}"


def _check_offload(space: Space, job: Job, framework: Framework, where: str) -> None:
    """Refuses what hosts hold in no plan of the space."""
    for offload in space.offload:
        cases = product(space.zero_stage, {stages > 1 for stages in space.pipeline_parallel})
        obstacles = [list(offload_obstacles(offload, zero, staged, job, framework)) for zero, staged in cases]
        if all(obstacles):
            _, what, fix = obstacles[0][0]
            raise InputError(where, f"{what}, which {framework.name} does not run", fix)


def _settled_choice(value: Choice, allowed: tuple[Choice, ...], framework: Framework) -> Choice:
    if value == framework.selective and "selective" in allowed:
        return "selective"
    modules = (value,) if isinstance(value, str) else value
    same = [choice for choice in allowed if isinstance(choice, tuple) and set(choice) == set(modules)]
    return same[0] if same and value not in allowed else value


def _check_values(where: str, values: tuple[Any, ...], allowed: tuple[Any, ...], framework: Framework) -> None:
    for value in values:
        if value not in allowed:
            what = f"{_in_words(value)} is in no plan of {framework.name} for this job and cluster"
            raise InputError(where, what, _likely(value, allowed))


def _likely(value: Any, allowed: tuple[Any, ...]) -> str:
    allowed = tuple(choice for choice in allowed if choice not in (None, ()))
    if not allowed:
        return "leave it out"
    if all(isinstance(choice, int | float) for choice in allowed):
        shown = ", ".join(_in_words(choice) for choice in allowed[:12])
        many = "be" if len(allowed) == 1 else "be one of"
        return f"it should {many} {shown}" + (f" and {len(allowed) - 12} more" if len(allowed) > 12 else "")
    return one_of(map(_in_words, allowed), _in_words(value))


def _check_partition(partition: str, widest: str, framework: Framework, where: str) -> None:
    kinds: tuple[str, ...] = get_args(Partition)
    if kinds.index(partition) > kinds.index(widest):
        narrower = kinds[: kinds.index(widest) + 1]
        raise InputError(f"{where} partition", f"{partition} is not run by {framework.name}", one_of(narrower))


def _in_words(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return TOGETHER.join(value) if isinstance(value, tuple) else str(value)  # pyright: ignore[reportUnknownArgumentType]
