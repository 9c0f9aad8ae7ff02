"""Plans and spaces for people, in the field's notation: TP8 CP2 PP16 VPP8 DP64 EP8 ETP1 MBS1 ZeRO-1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from string import ascii_uppercase

from dovetail.plans.declaration import Declared, declared
from dovetail.plans.fields import PlanFields
from dovetail.plans.plan import Plan

#: What the abbreviations stand for.
ABBREVIATIONS = (
    "TP tensor, CP context, PP pipeline, DP data, EP expert, ETP expert-tensor parallel; VPP virtual stages per rank, "
    "MBS micro-batch size"
)

_SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "interleaved 1F1B",
    "zb_h1": "ZB-H1",
    "dualpipe": "DualPipe",
}
_DEGREES = ("TP", "CP", "PP", "VPP", "DP", "EP")


def plan_words(plan: Plan) -> str:
    """A plan in a line: degrees, micro-batch and sharding, then what else is unusual of it.

    Degrees of 1 are left out but TP, PP and DP; where layouts say how operators are sharded, no degree of a stage is.
    """
    return ", ".join([degree_words(plan), *_parts(plan, behind=True)])


def degree_words(plan: Plan) -> str:
    """Degrees, micro-batch and sharding alone."""
    return " ".join(_parts(plan, behind=False))


def large_degrees(plan: Plan) -> str:
    """The degrees above 1 alone, for narrow tables."""
    words = (word for word in degree_words(plan).split() if word.startswith(_DEGREES))
    return " ".join(word for word in words if word.lstrip(ascii_uppercase) != "1")


def _parts(plan: Plan, *, behind: bool) -> Iterator[str]:
    fields = [each for each in declared(PlanFields).values() if each.about.behind is behind]
    for each in sorted(fields, key=lambda each: each.about.order):
        if plan.layouts is None or each.about.searched != "degrees":
            text = _part(each, plan)
            if text:
                yield text


def _part(each: Declared, plan: Plan) -> str:
    about, value = each.about, getattr(plan, each.name)
    if about.words is not None:
        return about.words(plan)
    if isinstance(value, bool):
        return about.short if value else ""
    if isinstance(value, int):
        return f"{about.short}{value}" if value != 1 or about.always else ""
    return f"{about.short} {value}" if value != each.default else ""


def plan_lines(plan: Plan) -> list[str]:
    """A plan in words, all choices it makes."""
    first = ", ".join([degree_words(plan), *(["SP"] if plan.sequence_parallel else []), *_context(plan)])
    lines = [first, f"{plan.num_microbatches} micro-batches a step, {_sharding(plan)}, recompute {_recompute(plan)}"]
    if plan.pipeline_parallel > 1:
        lines.append(_pipeline(plan))
    said = ", ".join(_said(plan))
    return [*lines, said] if said else lines


def _said(plan: Plan) -> Iterator[str]:
    """Overlaps and options that are not left to the framework."""
    for each in declared(PlanFields).values():
        if each.about.searched == "fixed" and getattr(plan, each.name) not in (None, ()):
            yield _part(each, plan)


def _context(plan: Plan) -> list[str]:
    return [f"context by {plan.context_kind.replace('_', '-')}"] if plan.context_parallel > 1 else []


def _sharding(plan: Plan) -> str:
    if not plan.zero_stage:
        return "state not sharded"
    return "state sharded " + ("over all replicas" if plan.layouts is not None else f"over {plan.zero_group} chips")


def _recompute(plan: Plan) -> str:
    if plan.recompute_by_block is not None:
        blocks = sum(count for count, choice in plan.recompute_by_block if choice not in ("none", ()))
        return f"by block ({blocks} of {sum(plan.layers_per_stage)})"
    words = plan.recompute if isinstance(plan.recompute, str) else ", ".join(plan.recompute)
    return words if plan.recompute_share == 1 else f"{words} in {plan.recompute_share:.4g} of the blocks"


def _pipeline(plan: Plan) -> str:
    virtual = f", {plan.virtual_stages} virtual stages per rank" if plan.virtual_stages > 1 else ""
    order = f"rank order {plan.axis_order.upper()}"
    return f"{_SCHEDULES[plan.pipeline_schedule]}{virtual} (layers: {layer_words(plan.layers_per_stage)}); {order}"


def layer_words(layers: Sequence[int]) -> str:
    """Layers of stage after stage, equal neighbours together: 2, then 10 × 3, then loss only."""
    runs = [(value, len(list(group))) for value, group in groupby(layers)]
    words = [f"{value}" if count == 1 else f"{count} × {value}" for value, count in runs]
    if runs[0] == (0, 1):
        words[0] = "embedding only"
    if len(runs) > 1 and runs[-1] == (0, 1):
        words[-1] = "loss only"
    return ", then ".join(words)
