"""The declaration that the overlaps of a plan share."""

from typing import Any

from dovetail.plans import domains
from dovetail.plans.declaration import SWITCH, PlanField

#: What frameworks call the overlaps.
_AVAILABLE = {
    "overlap_tensor_parallel": "tensor_parallel",
    "overlap_expert_parallel": "expert_parallel",
    "overlap_gradients": "gradient_reduction",
    "overlap_parameters": "weight_gather",
}


def overlap_field(doc: str, words: str, field: str, **flags: str) -> PlanField:
    """An overlap of communication with computation: the framework's own where a plan does not say."""

    def said(plan: Any) -> str:
        value = getattr(plan, field)
        return "" if value is None else f"{words} overlap {'on' if value else 'off'}"

    return PlanField(
        f"{doc}; where left out, whether the framework can for this plan",
        domain=domains.left_open,
        fixed_to=domains.switched(_AVAILABLE[field]),
        values=SWITCH,
        searched="fixed",
        behind=True,
        order=10,
        words=said,
        flags=flags,
    )
