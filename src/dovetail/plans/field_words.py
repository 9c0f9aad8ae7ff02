"""How parts of a plan are said in its short form."""

from __future__ import annotations

from typing import Any


def zero_words(plan: Any) -> str:
    """The ZeRO stage, and its group where that is not all chips."""
    if not plan.zero_stage:
        return ""
    everywhere = plan.layouts is not None or plan.zero_group == plan.data_parallel * plan.context_parallel
    return f"ZeRO-{plan.zero_stage}" + ("" if everywhere else f" over {plan.zero_group}")


def recompute_words(plan: Any) -> str:
    """What is recomputed; empty where nothing is."""
    if plan.recompute_by_block is not None:
        blocks = sum(count for count, choice in plan.recompute_by_block if choice not in ("none", ()))
        return f"recompute in {blocks} blocks" if blocks else ""
    if plan.recompute in ("none", ()):
        return ""
    names = plan.recompute if isinstance(plan.recompute, str) else " + ".join(plan.recompute)
    return f"recompute {names}" + (f" of {plan.recompute_share:.3g}" if plan.recompute_share < 1 else "")
