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


def offload_words(plan: Any) -> str:
    """What hosts hold."""
    return f"{' and '.join(plan.offload)} on the host" if plan.offload else ""


def wafer_words(plan: Any) -> str:
    """What a store holds, how much memory is lent, and how much is dead; where stages are is for pictures."""
    part = plan.wafer
    if part is None:
        return ""
    dies, links = (sum(len(getattr(each, name)) for each in part.defects) for name in ("dead_dies", "dead_links"))
    said = [
        f"{' and '.join(part.store)} in the store" if part.store else "",
        f"{len(part.loans)} stages borrow memory" if part.loans else "",
        f"around {dies} dead dies and {links} dead links" if dies or links else "",
    ]
    return ", ".join(filter(None, said))
