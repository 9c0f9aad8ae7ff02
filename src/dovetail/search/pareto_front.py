"""The Pareto front over chip counts: the best plan of each, what a training run takes, and which to choose."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Literal

from dovetail.errors import InputError, quoted
from dovetail.frameworks import Framework
from dovetail.frozen import frozen
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.narrowed_space import within
from dovetail.plans.space import Space
from dovetail.search.answer import Answer
from dovetail.search.plan import plan
from dovetail.step.evaluation import Evaluation

Objective = Literal["time", "cost", "energy"]

SECONDS_PER_HOUR = 3600.0


@frozen
class Training:
    """What it takes to train a number of tokens, step after step, without pauses."""

    tokens: float
    steps: int
    train_s: float
    chip_hours: float
    #: None where no price is known
    cost_usd: float | None
    #: None where no energy is known
    energy_j: float | None


@frozen
class FrontPoint:
    """One number of chips."""

    chips: int
    #: None where cluster or batch cannot be divided so
    answer: Answer | None
    #: None where no plan fits
    training: Training | None
    #: why there is no plan; empty where there is one
    reason: str = ""
    #: no other number of chips is as small and as fast
    on_front: bool = False
    #: no other number of chips is as cheap and as fast
    on_cost_front: bool = False

    @property
    def proven(self) -> bool:
        """Whether it is proven which plan is the best, or that there is none."""
        return self.answer is None or self.answer.certificate.status != "feasible"


def pareto_front(
    job: Job,
    cluster_of: Callable[[int], Cluster],
    framework: Framework | str,
    counts: Iterable[int],
    tokens: float,
    *,
    space: Space | None = None,
    price_per_chip_hour: float | None = None,
    search: Callable[..., Answer] = plan,
) -> tuple[FrontPoint, ...]:
    """The best plan for every number of chips, the global batch being the same.

    `search` is `plan`, or that with a time limit or a listener for each number.

    Numbers of chips that the cluster, the batch or the space does not allow stay in it, with the reason.
    """
    check_tokens(tokens)
    points: list[FrontPoint] = []
    for chips in counts:
        try:
            cluster = cluster_of(chips)
            answer = _answer(job, cluster, framework, space, search)
        except InputError as error:
            points.append(FrontPoint(chips, None, None, str(error)))
            continue
        if answer.evaluation is None:
            points.append(FrontPoint(chips, answer, None, shortage(answer)))
            continue
        training = training_of(answer.evaluation, job, tokens, price(cluster, price_per_chip_hour))
        points.append(FrontPoint(chips, answer, training))
    return _marked(points)


def _answer(
    job: Job, cluster: Cluster, framework: Framework | str, space: Space | None, search: Callable[..., Answer]
) -> Answer:
    from dovetail import frameworks

    framework = frameworks.load(framework) if isinstance(framework, str) else framework
    narrow = within(space or Space(), job, cluster, framework, leave_out=True)
    return search(job, cluster, framework, space=narrow)


def check_tokens(tokens: float) -> None:
    """Refuses a number of tokens that no run has."""
    if not (math.isfinite(tokens) and tokens >= 1):
        raise InputError("tokens", f"is {quoted(tokens)}", "it should be a number of 1 or more")


def training_of(evaluation: Evaluation, job: Job, tokens: float, price_per_chip_hour: float | None) -> Training:
    """A whole training run at the step time of a plan; a last step that is not full counts as one."""
    steps = math.ceil(tokens / job.tokens_per_step)
    train_s = steps * evaluation.step_time_s
    chip_hours = train_s * evaluation.plan.chips / SECONDS_PER_HOUR
    return Training(
        tokens=tokens,
        steps=steps,
        train_s=train_s,
        chip_hours=chip_hours,
        cost_usd=None if price_per_chip_hour is None else chip_hours * price_per_chip_hour,
        energy_j=None if evaluation.energy_j is None else steps * evaluation.energy_j,
    )


def price(cluster: Cluster, given: float | None) -> float | None:
    """Dollars of a chip and hour: those given, or those the chip is let for."""
    return cluster.chip.rent_usd_per_h if given is None else given


def shortage(answer: Answer) -> str:
    """Why an answer has no plan, in words."""
    certificate = answer.certificate
    if certificate.status != "infeasible":
        return "no plan that fits was found in the time given"
    if certificate.counted == 0:
        return "no degrees divide the chips, the batch and the model at once"
    return f"none of {certificate.counted:,} plans fits the chips' memory"


def best_of(points: Sequence[FrontPoint], objective: Objective) -> FrontPoint | None:
    """The point with the least of the objective; of equal ones that with the fewest chips."""
    figures = [(figure, point.chips, point) for point in points if (figure := _figure(point, objective)) is not None]
    return min(figures, key=lambda entry: entry[:2])[2] if figures else None


def _figure(point: FrontPoint, objective: Objective) -> float | None:
    if point.training is None:
        return None
    match objective:
        case "time":
            return point.training.train_s
        case "cost":
            return point.training.cost_usd
        case "energy":
            return point.training.energy_j


def _marked(points: Sequence[FrontPoint]) -> tuple[FrontPoint, ...]:
    """The same points, those on a Pareto front marked; cost is chip-hours, whatever an hour costs."""
    by_chips = [(point.chips, point.training.train_s) for point in points if point.training]
    by_cost = [(point.training.chip_hours, point.training.train_s) for point in points if point.training]
    return tuple(
        replace(
            point,
            on_front=not _beaten((point.chips, point.training.train_s), by_chips),
            on_cost_front=not _beaten((point.training.chip_hours, point.training.train_s), by_cost),
        )
        if point.training
        else point
        for point in points
    )


def _beaten(pair: tuple[float, float], others: Sequence[tuple[float, float]]) -> bool:
    """Whether another is no worse in both and better in one."""
    return any(other != pair and other[0] <= pair[0] and other[1] <= pair[1] for other in others)
