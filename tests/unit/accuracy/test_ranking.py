"""Regret and Kendall's tau equal what their definitions give when followed by brute force."""

from __future__ import annotations

from dataclasses import astuple, replace
from itertools import permutations
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import run

from dovetail.accuracy import MeasuredRun, Prediction, Ranking, rank
from dovetail.accuracy.ranking import RankedPlan, pair_orders, ratio_errors, regret
from dovetail.hardware import Cluster


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> MeasuredRun:
    return run(tmp_path_factory.mktemp("runs"))


class TableRow(NamedTuple):
    """A measured run, of which only what matters here varies."""

    family: str
    chips: int
    framework: str
    plan: int
    measured: float
    predicted: float


def with_chips(cluster: Cluster, chips: int) -> Cluster:
    return replace(cluster, chips=chips, tiers=(*cluster.tiers[:-1], replace(cluster.tiers[-1], size=chips)))


def prediction(plain: MeasuredRun, row: TableRow) -> Prediction:
    task = plain.task
    task = replace(
        task,
        cluster=with_chips(task.cluster, row.chips),
        plan=replace(task.plan, micro_batch=row.plan),
    )
    measured = replace(plain, family=row.family, framework=row.framework, task=task, step_time_s=row.measured)
    return Prediction(measured, row.predicted, None, True, 0.0, {})


def middle(values: list[float]) -> float:
    values = sorted(values)
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2


def by_brute_force(rows: list[TableRow]) -> tuple[list[float], list[list[int]]]:
    """Regrets, and the order of each pair, of every group: the definition, word by word."""
    regrets: list[float] = []
    orders: list[list[int]] = []
    for conditions in {(r.family, r.chips, r.framework) for r in rows}:
        inside = [r for r in rows if (r.family, r.chips, r.framework) == conditions]
        plans = sorted({r.plan for r in inside})
        if len(plans) < 3:
            continue
        measured = [middle([r.measured for r in inside if r.plan == plan]) for plan in plans]
        predicted = [middle([r.predicted for r in inside if r.plan == plan]) for plan in plans]
        first = [i for i in range(len(plans)) if all(predicted[i] <= other for other in predicted)]
        regrets.append(sum(measured[i] for i in first) / len(first) / min(measured) - 1)
        signs: list[int] = []
        for i in range(len(plans)):
            for j in range(i):
                if 100 * max(measured[i], measured[j]) > 103 * min(measured[i], measured[j]):
                    product = (measured[i] - measured[j]) * (predicted[i] - predicted[j])
                    signs.append(1 if product > 0 else -1 if product < 0 else 0)
        orders.append(signs)
    return regrets, orders


#: Times of which some are within 3 % of each other, none at the very limit.
TIMES = st.sampled_from((90.0, 91.0, 92.0, 94.0, 97.0, 100.0, 110.0, 150.0))
ROWS = st.builds(
    TableRow,
    family=st.sampled_from(("ours", "theirs")),
    chips=st.sampled_from((16, 32)),
    framework=st.sampled_from(("Megatron-LM", "NeMo")),
    plan=st.integers(1, 5),
    measured=TIMES,
    predicted=TIMES,
)


@given(st.lists(ROWS, max_size=40))
def test_figures_are_those_of_the_definition(plain, rows):
    found = rank([prediction(plain, row) for row in rows])
    regrets, orders = by_brute_force(rows)
    pooled = [sign for signs in orders for sign in signs]
    per_group = [sum(signs) / len(signs) for signs in orders if signs]
    assert found.groups == len(regrets)
    assert found.pairs == len(pooled)
    if not regrets:
        assert found == Ranking(0, 0, None, None, 0, None, None)
        return
    assert found.mean_regret == pytest.approx(sum(regrets) / len(regrets))
    assert found.max_regret == pytest.approx(max(regrets))
    if pooled:
        assert found.kendall_tau == pytest.approx(sum(pooled) / len(pooled))
        assert found.group_kendall_tau == pytest.approx(sum(per_group) / len(per_group))
    else:
        assert found.kendall_tau is None
        assert found.group_kendall_tau is None


def swaps(order: tuple[int, ...]) -> int:
    """Exchanges of neighbours until sorted, which is what Kendall's tau counts."""
    items, count = list(order), 0
    for end in range(len(items), 0, -1):
        for i in range(end - 1):
            if items[i] > items[i + 1]:
                items[i], items[i + 1] = items[i + 1], items[i]
                count += 1
    return count


def test_tau_of_every_order_of_five_plans():
    pairs = 5 * 4 / 2
    for order in permutations(range(5)):
        group = [RankedPlan(measured_s=2.0**i, predicted_s=2.0**place) for i, place in enumerate(order)]
        signs = pair_orders(group)
        assert sum(signs) / len(signs) == pytest.approx(1 - 2 * swaps(order) / pairs)


def test_a_pair_exactly_three_percent_apart_does_not_count():
    assert pair_orders([RankedPlan(100.0, 1.0), RankedPlan(103.0, 2.0)]) == []
    assert pair_orders([RankedPlan(100.0, 1.0), RankedPlan(103.1, 2.0)]) == [1]
    assert pair_orders([RankedPlan(103.1, 1.0), RankedPlan(100.0, 2.0)]) == [-1]


def test_of_plans_ranked_first_alike_any_may_be_chosen():
    assert regret([RankedPlan(10.0, 1.0), RankedPlan(14.0, 1.0), RankedPlan(30.0, 2.0)]) == pytest.approx(0.2)


def test_a_plan_measured_often_counts_once(plain):
    often = [TableRow("ours", 16, "NeMo", 1, measured, 10.0) for measured in (20.0, 21.0, 90.0)]
    others = [TableRow("ours", 16, "NeMo", plan, 14.0, 20.0) for plan in (2, 3)]
    assert rank([prediction(plain, row) for row in (*often, others[0])]).groups == 0
    found = rank([prediction(plain, row) for row in (*often, *others)])
    assert (found.groups, found.plans, found.mean_regret) == (1, 3, pytest.approx(0.5))


@pytest.mark.parametrize(
    "field", ["family", "architecture", "chip", "chips", "seq_len", "batch", "precision", "framework"]
)
def test_every_condition_parts_plans(plain, field):
    rows = [prediction(plain, TableRow("ours", 16, "NeMo", plan, 10.0, 10.0)) for plan in (1, 2, 3)]
    assert rank(rows).groups == 1
    last = rows[2].run
    task = last.task
    chip = replace(task.cluster.chip, name="another")
    changed = {
        "family": replace(last, family="theirs"),
        "architecture": replace(last, architecture="another"),
        "chip": replace(last, task=replace(task, cluster=replace(task.cluster, chip=chip))),
        "chips": replace(last, task=replace(task, cluster=with_chips(task.cluster, 32))),
        "seq_len": replace(last, task=replace(task, job=replace(task.job, seq_len=512))),
        "batch": replace(last, task=replace(task, job=replace(task.job, global_batch=128))),
        "precision": replace(last, task=replace(task, job=replace(task.job, precision="bf16"))),
        "framework": replace(last, framework="Megatron-LM"),
    }[field]
    assert rank([*rows[:2], replace(rows[2], run=changed)]).groups == 0


def test_ratio_errors_are_medians_of_pairs_then_of_groups(plain):
    rows = [
        # predicted ratios 1.1, 1.21 and 1.1 where 1 were measured
        TableRow("a", 16, "megatron", 1, 1.0, 1.0),
        TableRow("a", 16, "megatron", 2, 1.0, 1.1),
        TableRow("a", 16, "megatron", 4, 1.0, 1.21),
        # an error both plans share cancels
        TableRow("b", 16, "megatron", 1, 1.0, 3.0),
        TableRow("b", 16, "megatron", 2, 2.0, 6.0),
        # one plan alone has no ratio
        TableRow("c", 16, "megatron", 1, 1.0, 9.0),
    ]
    predictions = [prediction(plain, row) for row in rows]
    found = ratio_errors(predictions)
    assert found is not None
    assert astuple(found) == pytest.approx((2, 4, 0.05, 0.05))  # medians 0.1 and 0 of the two groups
    named = [replace(each, run=replace(each.run, id=str(number))) for number, each in enumerate(predictions)]
    other = {"4": replace(named[4], step_time_s=9.0)}  # ratio 3 where 2 was measured
    found = ratio_errors(named, other)
    assert found is not None
    assert astuple(found) == pytest.approx((2, 4, 0.05, (0.1 + 0.5) / 2))
    assert ratio_errors(predictions[-1:]) is None
