"""Full recompute that stops at the last tensor the backward needs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dovetail.cost.calibration import calibration
from dovetail.graph import LayerGraph
from dovetail.plans.plan_file import task_of
from dovetail.profile import LayerProfile, Recompute, Saving, recompute
from dovetail.step.evaluate import evaluate, step_of
from dovetail.step.facts import facts_of
from valid_plans import EXPERTS, Document, model, with_changes

ALONE: Document = {
    "job": {"model": model(4), "seq_len": 2048, "global_batch": 8},
    "cluster": {"name": "hgx-h100", "chips": 8, "framework": "ideal"},
    "plan": {"tensor_parallel": 8, "micro_batch": 1},
}


def block_of(document: Document) -> tuple[LayerGraph, LayerProfile]:
    task = task_of(document, "case.yaml")
    known = calibration(task.cluster.chip, "bf16").efficiencies
    profiles = step_of(task.plan, task.job, task.cluster, facts_of(task.framework, task.job), known).profiles
    return profiles.graph.layers["block"], profiles.layers["block"]


@pytest.fixture(scope="module")
def block() -> tuple[LayerGraph, LayerProfile]:
    return block_of(ALONE)


def chosen(block: tuple[LayerGraph, LayerProfile], choice: object, *, early: bool) -> Recompute:
    graph, profile = block
    return recompute(graph, profile, choice, Saving(stops_early=early))  # type: ignore[arg-type]


def test_the_last_product_and_the_sum_behind_it_are_left_out(block):
    full, early = (chosen(block, "full", early=e) for e in (False, True))
    last = ("mlp.down", "feed_forward_residual")
    assert float(early.added_s) < float(full.added_s)
    left_out = sum(float(block[1].operator_s[name]) for name in last)
    assert float(full.added_s - early.added_s) == pytest.approx(left_out)
    assert float(full.added_kernels - early.added_kernels) >= sum(float(block[1].kernels[name]) for name in last) == 1


def test_everything_the_backward_reads_is_computed_again(block):
    graph, profile = block
    makers = {o.tensor: operator.name for operator in graph.operators for o in operator.outputs}
    needed: set[str] = set()
    wanted = [name for operator in graph.operators for name in operator.saves]
    while wanted:
        maker = makers.get(wanted.pop())
        if maker is not None and maker not in needed:
            needed.add(maker)
            wanted += [o.tensor for operator in graph.operators if operator.name == maker for o in operator.inputs]
    assert needed == {o.name for o in graph.operators} - {"mlp.down", "feed_forward_residual"}
    assert float(chosen(block, "full", early=True).added_s) == pytest.approx(
        sum(float(profile.operator_s[name]) for name in needed)
    )


def test_what_is_kept_is_the_same_and_the_last_reduction_is_left_out(block):
    full, early = (chosen(block, "full", early=e) for e in (False, True))
    assert (early.saved_bytes, early.workspace_bytes) == (full.saved_bytes, full.workspace_bytes)
    # attention's and the feed-forward's sum are completed in the forward, only the first is needed again
    assert float(full.added_collective_s["tensor-parallel"]) == pytest.approx(
        2 * float(early.added_collective_s["tensor-parallel"])
    )


def test_a_list_of_all_operators_runs_what_stopping_early_runs(block):
    every = [operator.name for operator in block[0].operators]
    listed, early = chosen(block, every, early=False), chosen(block, "full", early=True)
    assert float(listed.added_s) == pytest.approx(float(early.added_s))
    assert float(listed.added_kernels) == float(early.added_kernels)


@pytest.mark.parametrize("choice", ["none", "selective", ("mixer_norm", "mlp.activation"), ("attention",)])
def test_other_choices_stop_nowhere(block, choice):
    early, late = (chosen(block, choice, early=e) for e in (True, False))
    assert (early.added_s, early.saved_bytes, early.added_kernels) == (
        late.added_s, late.saved_bytes, late.added_kernels,
    )  # fmt: skip


def test_of_a_mixture_combining_is_left_out():
    mixture = block_of(with_changes(ALONE, job={"model": model(4, feed_forward=EXPERTS | {"shared_size": None})}))
    full, early = (chosen(mixture, "full", early=e) for e in (False, True))
    left_out = full.added_s - early.added_s
    last = sum(float(mixture[1].operator_s[name]) for name in ("combine", "feed_forward_residual"))
    assert float(left_out) >= last * (1 - 1e-9)
    assert float(left_out) < 0.5 * float(full.added_s)


def test_a_framework_that_stops_early_spends_less_on_recompute():
    task = task_of(with_changes(ALONE, plan={"recompute": "full"}), "case.yaml")
    assert task.framework.recompute_stops_early
    late = replace(task.framework, recompute_stops_early=False)
    early, full = (evaluate(task.plan, task.job, task.cluster, f).breakdown for f in (task.framework, late))
    graph, profile = block_of(ALONE)
    last = sum(float(profile.operator_s[name]) for name in ("mlp.down", "feed_forward_residual"))
    assert graph.operators[-1].name == "feed_forward_residual"
    # four layers, eight microbatches
    assert full["recompute"] - early["recompute"] == pytest.approx(4 * 8 * last)
