"""A plan in a line: t tensor, c context, p pipeline, v chunks, d data, e expert parallel, b micro-batch, z ZeRO."""

from __future__ import annotations

from dovetail.placement.plan import Plan


def plan_words(plan: Plan) -> str:
    """Degrees, micro-batch, sharding and what is computed again; degrees of 1 are left out but t, p and d."""
    degrees = {"t": plan.tensor_parallel, "c": plan.context_parallel, "p": plan.pipeline_parallel}
    degrees |= {"v": plan.virtual_stages, "d": plan.data_parallel, "e": plan.expert_parallel}
    if plan.expert_parallel > 1:
        degrees["x"] = plan.expert_tensor_parallel
    if plan.layouts is not None:
        degrees = {"p": plan.pipeline_parallel, "v": plan.virtual_stages}
    parts = [f"{name}{degree}" for name, degree in degrees.items() if degree > 1 or name in "tpd"]
    parts.append(f"b{plan.micro_batch}")
    if plan.layouts is not None:
        parts.insert(0, f"free {plan.layouts.rows}×{plan.layouts.cols}")
    if plan.zero_stage:
        whole = plan.zero_group == plan.data_parallel * plan.context_parallel
        parts.append(f"z{plan.zero_stage}" if whole else f"z{plan.zero_stage}/{plan.zero_group}")
    more = [plan.context_kind] if plan.context_parallel > 1 else []
    more += ["sp"] if plan.sequence_parallel else []
    more += [plan.pipeline_schedule] if plan.pipeline_schedule not in ("1f1b", "interleaved") else []
    more += ["stages inside"] if plan.stages_inside else []
    again = _recompute_words(plan)
    more += [again] if again else []
    return ", ".join([" ".join(parts), *more])


def _recompute_words(plan: Plan) -> str:
    """What is computed again; empty where nothing is."""
    if plan.recompute_by_block is not None:
        blocks = sum(count for count, choice in plan.recompute_by_block if choice not in ("none", ()))
        return f"recompute in {blocks} blocks" if blocks else ""
    if plan.recompute in ("none", ()):
        return ""
    again = plan.recompute if isinstance(plan.recompute, str) else " + ".join(plan.recompute)
    return f"recompute {again}" + (f" of {plan.recompute_share:.3g}" if plan.recompute_share < 1 else "")
