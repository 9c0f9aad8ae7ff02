"""A narrower space in words: `tensor_parallel=8`, `recompute=none,full`; checked against what there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any, get_args

from dovetail.errors import InputError, one_of, quoted
from dovetail.frameworks import Framework
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.placement.plan import Plan
from dovetail.search.space import BY_BLOCK, Choice, Cuts, Space, divisors, whole_space

#: Joins the modules of one recompute choice.
TOGETHER = "+"
#: What fields are called where there is little room.
_SHORT = {
    "tp": "tensor_parallel",
    "cp": "context_parallel",
    "pp": "pipeline_parallel",
    "vpp": "virtual_stages",
    "ep": "expert_parallel",
    "etp": "expert_tensor_parallel",
    "sp": "sequence_parallel",
    "mbs": "micro_batch",
}
#: Where a wrong value is said to stand.
WHERE = "--fix"


def narrowed(texts: Iterable[str]) -> Space:
    """The space that texts such as `tensor_parallel=4,8` leave."""
    known = tuple(field.name for field in fields(Space))
    chosen: dict[str, Any] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise InputError(WHERE, f"{quoted(text)} has no value", "write it as tensor_parallel=8")
        if name not in known:
            raise _unknown(name, known)
        if name in chosen:
            raise InputError(f"{WHERE} {name}", "is given twice", "put its values in one, with commas between them")
        chosen[name] = _values(name, values)
    return Space(**chosen)


def _unknown(name: str, known: tuple[str, ...]) -> InputError:
    if any(field.name == name for field in fields(Plan)):
        return InputError(WHERE, f"{quoted(name)} follows from other fields of a plan", one_of(known, most=len(known)))
    begun = [field for field in known if len(name) > 2 and field.startswith(name)]
    likely = _SHORT.get(name) or (begun[0] if begun else name)
    return InputError(WHERE, f"{quoted(name)} is no field of a plan", one_of(known, likely, len(known)))


def _values(name: str, text: str) -> Any:
    words = [word.strip() for word in text.split(",")]
    if name == "cuts":
        if len(words) > 1 or words[0] not in get_args(Cuts):
            raise InputError(f"{WHERE} {name}", f"is {quoted(text)}", one_of(get_args(Cuts), text))
        return words[0]
    return tuple(dict.fromkeys(_READERS.get(name, _number)(name, word) for word in words))


def _number(name: str, word: str) -> int:
    if not (word.isascii() and word.isdecimal() and len(word) < 10):
        raise InputError(f"{WHERE} {name}", f"{quoted(word)} is no whole number", f"write it as {name}=1,2")
    return int(word)


def _share(name: str, word: str) -> float:
    try:
        share = float(word)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise InputError(f"{WHERE} {name}", f"is {quoted(word)}", "it should be above 0 and at most 1")
    return share


def _truth(name: str, word: str) -> bool:
    choices = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    if word.lower() not in choices:
        raise InputError(f"{WHERE} {name}", f"is {quoted(word)}", "it should be true or false")
    return choices[word.lower()]


def _word(_: str, word: str) -> str:
    return word


def _choice(_: str, word: str) -> str | tuple[str, ...]:
    if word == BY_BLOCK.replace(" ", "_"):
        return BY_BLOCK
    return tuple(word.split(TOGETHER)) if TOGETHER in word else word


_READERS: dict[str, Callable[[str, str], object]] = {
    "sequence_parallel": _truth,
    "recompute_share": _share,
    "recompute": _choice,
    "context_kind": _word,
    "pipeline_schedule": _word,
    "axis_order": _word,
}


def within(space: Space, job: Job, cluster: Cluster, framework: Framework, *, some: bool = False) -> Space:
    """The space as it was written for this job, cluster and framework; values that none of their plans has are refused.

    With `some` they are left out as long as one value remains: a space for clusters of several sizes. A module by its
    name alone means just that module.
    """
    whole = whole_space(job, cluster, framework)
    settled: dict[str, Any] = {}
    for field in fields(space):
        values: Any = getattr(space, field.name)
        allowed: Any = getattr(whole, field.name)
        if values is None:
            continue
        if field.name == "cuts":
            _check_cuts(values, allowed, framework)
            settled[field.name] = values
            continue
        if allowed is None:
            allowed = divisors(cluster.chips)
        if field.name == "recompute":
            # blocks that choose by themselves may also all choose the same
            allowed = (*allowed, *(w for w in ("none", "full") if BY_BLOCK in allowed and w in framework.recompute))
            values = tuple(_settled_choice(value, allowed) for value in values)
        if field.name != "recompute_share" or allowed == (1.0,):
            kept = tuple(value for value in values if value in allowed)
            values = kept if some and kept else values
            _check_values(field.name, values, allowed, framework)
        settled[field.name] = values
    return Space(**settled)


def _settled_choice(value: Choice, allowed: tuple[Choice, ...]) -> Choice:
    if value == "core_attn":
        return "selective"
    modules = (value,) if isinstance(value, str) else value
    same = [choice for choice in allowed if isinstance(choice, tuple) and set(choice) == set(modules)]
    return same[0] if same and value not in allowed else value


def _check_values(name: str, values: tuple[Any, ...], allowed: tuple[Any, ...], framework: Framework) -> None:
    for value in values:
        if value not in allowed:
            what = f"{_in_words(value)} is in no plan of {framework.name} for this job and cluster"
            raise InputError(f"{WHERE} {name}", what, _likely(value, allowed))


def _likely(value: Any, allowed: tuple[Any, ...]) -> str:
    if all(isinstance(choice, int | float) for choice in allowed):
        shown = ", ".join(_in_words(choice) for choice in allowed[:12])
        many = "be" if len(allowed) == 1 else "be one of"
        return f"it should {many} {shown}" + (f" and {len(allowed) - 12} more" if len(allowed) > 12 else "")
    return one_of(map(_in_words, allowed), _in_words(value))


def _check_cuts(cuts: str, widest: str, framework: Framework) -> None:
    known: tuple[str, ...] = get_args(Cuts)
    if known.index(cuts) > known.index(widest):
        narrower = known[: known.index(widest) + 1]
        raise InputError(f"{WHERE} cuts", f"{cuts} is not run by {framework.name}", one_of(narrower))


def _in_words(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return TOGETHER.join(value) if isinstance(value, tuple) else str(value)  # pyright: ignore[reportUnknownArgumentType]
