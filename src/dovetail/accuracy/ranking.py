"""Whether the model orders plans as measurements do: regret of its first choice, and Kendall's tau.

Plans are compared within groups of equal family, architecture, chip, number of chips, sequence length, global batch,
precision and framework. A plan measured several times counts once, with the medians of its measured and predicted
times. Plans are ordered by predicted time alone, whether or not the model says that they fit.

Errors that plans of a group share cancel in the ratio of two of them: `ratio_errors` says what is left, which is how
close two predictions must be to be a tie.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import fmean, median

from dovetail.accuracy.predict import Prediction
from dovetail.frozen import frozen
from dovetail.plans.plan import Plan

#: Fewer plans than this say little about a choice.
FEWEST_PLANS = 3
#: Measured times closer than this are equal: identical configurations differ by 5 % (median) between measurements.
INDISTINCT = 0.03


@frozen
class RankedPlan:
    """One plan of a group."""

    measured_s: float
    predicted_s: float


@frozen
class Ranking:
    """Figures over groups of plans measured under equal conditions; None if there is nothing to rank."""

    groups: int
    plans: int
    mean_regret: float | None
    """over groups: how much slower the plan ranked first is than the best"""
    max_regret: float | None
    pairs: int
    """of measured times that differ by more than 3 %"""
    kendall_tau: float | None
    """over the pairs of all groups: (concordant − discordant) / all"""
    group_kendall_tau: float | None
    """mean over the groups that have such pairs"""


@frozen
class RatioErrors:
    """How far predicted ratios of two plans' step times are off; a group counts once, however many pairs it has."""

    groups: int
    """with two distinct plans or more"""
    pairs: int
    median_ape: float
    """of the pairs of a group, then of the groups"""
    left_out_median_ape: float
    """the same with every family predicted by a fit to the others"""


def ratio_errors(
    predictions: Sequence[Prediction], left_out: Mapping[str, Prediction] | None = None
) -> RatioErrors | None:
    """The figures over every group with a pair of plans; None without any.

    `left_out` has by run id what was predicted without the run's family; a run that is not there was not fitted on.
    """
    seen = [_ratio_errors(group) for group in plan_groups(predictions, 2)]
    if not seen:
        return None
    others = left_out or {}
    without = [replace(each, step_time_s=others.get(each.run.id, each).step_time_s) for each in predictions]
    unseen = [_ratio_errors(group) for group in plan_groups(without, 2)]
    return RatioErrors(len(seen), sum(map(len, seen)), median(map(median, seen)), median(map(median, unseen)))


def _ratio_errors(group: Sequence[RankedPlan]) -> list[float]:
    """Of every pair: |predicted ratio / measured ratio − 1|, the slower plan over the faster."""
    pairs = combinations(sorted(group, key=lambda plan: plan.measured_s), 2)
    return [
        abs((slow.predicted_s / fast.predicted_s) / (slow.measured_s / fast.measured_s) - 1) for fast, slow in pairs
    ]


def rank(predictions: Iterable[Prediction]) -> Ranking:
    """The figures over every group with enough distinct plans."""
    groups = plan_groups(predictions)
    regrets = [regret(group) for group in groups]
    orders = [order for group in groups if (order := pair_orders(group))]
    pooled = [sign for order in orders for sign in order]
    return Ranking(
        groups=len(groups),
        plans=sum(map(len, groups)),
        mean_regret=fmean(regrets) if regrets else None,
        max_regret=max(regrets, default=None),
        pairs=len(pooled),
        kendall_tau=fmean(pooled) if pooled else None,
        group_kendall_tau=fmean(map(fmean, orders)) if orders else None,
    )


def plan_groups(predictions: Iterable[Prediction], fewest: int = FEWEST_PLANS) -> tuple[tuple[RankedPlan, ...], ...]:
    """The distinct plans of every group that has enough of them."""
    groups: defaultdict[Hashable, defaultdict[Plan, list[Prediction]]] = defaultdict(lambda: defaultdict(list))
    for prediction in predictions:
        groups[_conditions(prediction)][prediction.run.task.plan].append(prediction)
    return tuple(tuple(map(_once, plans.values())) for plans in groups.values() if len(plans) >= fewest)


def regret(group: Sequence[RankedPlan]) -> float:
    """How much slower than the best the model's first choice is; the mean over ties."""
    predicted_best = min(plan.predicted_s for plan in group)
    measured_s = fmean(plan.measured_s for plan in group if plan.predicted_s == predicted_best)
    return measured_s / min(plan.measured_s for plan in group) - 1.0


def pair_orders(group: Sequence[RankedPlan]) -> list[int]:
    """For every pair with distinct measurements: 1 concordant, -1 discordant, 0 predicted equal."""
    orders: list[int] = []
    for pair in combinations(group, 2):
        fast, slow = sorted(pair, key=lambda plan: plan.measured_s)
        if slow.measured_s > (1 + INDISTINCT) * fast.measured_s:
            orders.append((slow.predicted_s > fast.predicted_s) - (slow.predicted_s < fast.predicted_s))
    return orders


def _conditions(prediction: Prediction) -> Hashable:
    run, task = prediction.run, prediction.run.task
    job, cluster = task.job, task.cluster
    setting = (cluster.chip.name, cluster.chips, job.seq_len, job.global_batch, job.precision)
    return (run.family, run.architecture, *setting, run.framework)


def _once(measurements: Sequence[Prediction]) -> RankedPlan:
    return RankedPlan(
        measured_s=median(m.run.step_time_s for m in measurements),
        predicted_s=median(m.step_time_s for m in measurements),
    )
