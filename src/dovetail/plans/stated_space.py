"""The space of an answer, stated: as data that anyone can enumerate, and as a sentence made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.frameworks import Framework
from dovetail.plans.declaration import TOGETHER
from dovetail.plans.model_limits import MODEL_RULES
from dovetail.plans.runs import rules_of
from dovetail.plans.space import BY_BLOCK, Space, divisors, listed
from dovetail.units import bytes_text

#: How blocks may be dealt to stages, in words.
_PARTITIONS = {
    "even": "blocks dealt evenly",
    "ends": "first and last stage shorter",
    "any": "any pipeline partition (virtual stages alike but the first and the last)",
}
#: Values that a sentence lists one by one.
_LISTED = 8


def stated_space(space: Space, given: Space, framework: Framework) -> dict[str, Any]:
    """A resolved space as data: values by field, the rules that couple fields, and what is left out.

    A plan is in the space if each field has one of its values and no rule says no. `given` is the space as the user
    narrowed it.
    """
    values: dict[str, Any] = {
        name: listed_values if isinstance(listed_values := getattr(space, name), str) else _plain(listed_values)
        for name in listed()
        if getattr(space, name) != ((),)
    }
    rules = [*MODEL_RULES, *(rule.id for rule in rules_of(framework))]
    narrowed = [name for name in listed() if getattr(given, name) is not None]
    return {**values, "coupled": rules, "excluded": list(framework.excluded), "narrowed_by_user": narrowed}


def stated(
    space: Space, given: Space, framework: Framework, limit_bytes: float | None = None
) -> tuple[dict[str, Any], str]:
    """A resolved space as data and as a sentence; a limit is what plans may take of a chip."""
    fields = stated_space(space, given, framework)
    return fields, space_text(fields, framework, limit_bytes)


def space_text(fields: Mapping[str, Any], framework: Framework, limit_bytes: float | None = None) -> str:
    """The sentence of a stated space."""
    kinds = f" ({', '.join(fields['context_kind'])})" if max(fields["context_parallel"], default=1) > 1 else ""
    staged = f" ({', '.join(fields['pipeline_schedule'])})" if max(fields["pipeline_parallel"], default=1) > 1 else ""
    parts = [
        f"plans {framework.name} ({framework.version}) runs",
        *(f"{' and '.join(held)} on the host" for held in fields.get("offload", ())),
        f"TP {set_text(fields['tensor_parallel'])}",
        f"CP {set_text(fields['context_parallel'])}{kinds}",
        f"PP {set_text(fields['pipeline_parallel'])}{staged}",
        f"VPP {set_text(fields['virtual_stages'])}",
        f"EP {set_text(fields['expert_parallel'])}",
        *(
            [f"ETP {set_text(fields['expert_tensor_parallel'])}"]
            if max(fields["expert_parallel"], default=1) > 1
            else []
        ),
        f"DP the rest, MBS {set_text(fields['micro_batch'])}",
        f"ZeRO {set_text(fields['zero_stage'])} over groups of {set_text(fields['zero_group'])}",
        f"SP {' or '.join('on' if value else 'off' for value in fields['sequence_parallel'])}",
        _recompute_text(fields),
        _PARTITIONS[fields["partition"]],
        f"rank order {' or '.join(fields['axis_order'])}",
        *_others(fields),
        *([] if limit_bytes is None else [f"at most {bytes_text(limit_bytes)} of a chip's memory"]),
    ]
    text = "; ".join(parts)
    if fields["excluded"]:
        text += f". Left out: {', '.join(fields['excluded'])}"
    if fields["narrowed_by_user"]:
        text += f". Narrowed by you: {', '.join(fields['narrowed_by_user'])}"
    return text


def _recompute_text(fields: Mapping[str, Any]) -> str:
    if BY_BLOCK in fields["recompute"]:
        return "any recompute of each block where the partition is free or there is one stage, none or full elsewhere"
    choices: list[str | list[str]] = fields["recompute"]
    names = [choice if isinstance(choice, str) else TOGETHER.join(choice) for choice in choices]
    count = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    some = " (full of any whole number of layers of equal stages)" if len(fields["recompute_share"]) > 1 else ""
    return f"recompute {', '.join(names[:_LISTED])}{count}{some}"


def _others(fields: Mapping[str, Any]) -> list[str]:
    """Fields that are searched as a plain product, where there is something to choose."""
    return [
        f"{each.about.short or name} {', '.join(map(str, fields[name]))}"
        for name, each in listed().items()
        if each.about.searched == "product" and len(fields[name]) > 1
    ]


def set_text(values: Sequence[int]) -> str:
    """Numbers as they are: few one by one, many as a range or as divisors where they are that, with their count."""
    if len(values) > 2 and list(values) == list(range(values[0], values[-1] + 1)):
        return f"{values[0]} to {values[-1]}"
    if len(values) <= _LISTED:
        return ", ".join(map(str, values)) or "nothing"
    if tuple(values) == divisors(values[-1]):
        return f"all divisors of {values[-1]}"
    return f"{', '.join(map(str, values[:4]))} … {values[-1]} ({len(values)} values)"


def _plain(values: Sequence[Any]) -> list[Any]:
    return [list(value) if isinstance(value, tuple) else value for value in values]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
