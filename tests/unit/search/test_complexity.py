"""Simpler, in this order: fewer degrees, no uneven chunks, no virtual stages, less recompute, more headroom."""

from __future__ import annotations

from dataclasses import replace

from dovetail.plans.plan import PlanSpec, resolve_plan
from dovetail.search.recommended import GIB, complexity

PLAIN = resolve_plan(PlanSpec(), chips=16, global_batch=64, num_layers=32)


def test_the_order_of_plans_within_the_tie_margin():
    piped = replace(PLAIN, pipeline_parallel=4, data_parallel=4, layers_per_stage=(8, 8, 8, 8))
    virtual = replace(piped, virtual_stages=2, layers_per_stage=(4,) * 8)
    ordered = [
        (PLAIN, 9 * GIB),
        (PLAIN, 2.5 * GIB),
        (replace(PLAIN, recompute="full"), 50 * GIB),
        (replace(PLAIN, recompute="selective"), 60 * GIB),
        (replace(PLAIN, recompute="full", recompute_share=0.5), 60 * GIB),
        (piped, 70 * GIB),
        (virtual, 70 * GIB),
        (replace(piped, layers_per_stage=(7, 9, 9, 7)), 70 * GIB),
        (replace(piped, tensor_parallel=2, data_parallel=2), 70 * GIB),
    ]
    keys = [complexity(plan, headroom) for plan, headroom in ordered]
    assert keys == sorted(keys)
    assert len(set(map(str, keys))) == len(keys)


def test_headroom_counts_in_whole_gibibytes():
    assert complexity(PLAIN, 2.1 * GIB) == complexity(PLAIN, 2.9 * GIB)
