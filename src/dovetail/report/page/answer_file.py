"""The JSON answers a page is made of: what `plan`, `estimate` and `validate` print with --json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict

from dovetail.documents import Spec
from dovetail.plans.plan import PlanSpec
from dovetail.plans.plan_file import Task, task_of


class AnswerPart(Spec):
    """A part of an answer: other versions may say more."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=False, allow_inf_nan=False)


class CertificatePart(AnswerPart):
    """What is proven."""

    status: Literal["optimal", "feasible", "infeasible"]
    lower_bound_s: float | None
    gap: float | None
    space: dict[str, Any]
    space_text: str
    counted: int
    pruned: int
    infeasible: int
    evaluated: int
    open: int = 0
    time: Literal["modelled", "simulated"] = "modelled"
    lower_bound_framework_s: float | None = None
    memory_limit_bytes: float | None = None


class OtherPlan(AnswerPart):
    """Another plan and its step time."""

    step_time_s: float
    words: str
    loss: float | None = None


class NeighbourPart(AnswerPart):
    """The best plan with one choice made differently."""

    field: str
    value: str
    step_time_s: float | None
    loss: float | None
    proven: bool
    words: str | None


class MarginalPart(AnswerPart):
    """What more of one thing is worth."""

    what: str
    change: str
    gain: float | None
    same_plan_gain: float | None
    step_time_s: float | None
    proven: bool
    words: str | None


class ExplanationPart(AnswerPart):
    """Why the fastest plan is the fastest."""

    bottleneck: str
    neighbours: tuple[NeighbourPart, ...]
    marginal: tuple[MarginalPart, ...]
    doubts: tuple[str, ...]


class MemoryPart(AnswerPart):
    """Bytes of a chip."""

    peak: float
    usable: float
    by_stage: tuple[dict[str, float], ...]


class TrainingPart(AnswerPart):
    """The whole training run."""

    tokens: float
    steps: int
    train_s: float
    chip_hours: float
    cost_usd: float | None = None


class ApproximatedPart(AnswerPart):
    """An operator of a traced model that stands for something else."""

    layer: str
    operator: str
    words: str


class AnswerFile(AnswerPart):
    """The answer of `plan` or `estimate` with a plan."""

    fits: bool
    step_time_s: float
    mfu: float
    tokens_per_s_per_chip: float
    breakdown: dict[str, float]
    memory_bytes: MemoryPart
    energy_j: float | None
    provenance: dict[str, Any]
    job: dict[str, Any]
    cluster: dict[str, Any]
    plan: dict[str, Any]
    words: str
    interval_s: tuple[float, float]
    fastest: OtherPlan | None = None
    recommended_loss: float | None = None
    certificate: CertificatePart | None = None
    alternatives: tuple[OtherPlan, ...] = ()
    explanation: ExplanationPart | None = None
    training: TrainingPart | None = None
    approximated: tuple[ApproximatedPart, ...] = ()
    approximated_share: float = 0.0
    left_out: tuple[str, ...] = ()

    def task(self, where: str, folder: Path) -> Task:
        """The plan with its job and cluster, as the plan file would have them."""
        known = {name: value for name, value in self.plan.items() if name in PlanSpec.model_fields}
        chosen = {name: value for name, value in known.items() if value is not None}
        return task_of({"job": self.job, "cluster": self.cluster, "plan": chosen}, where, folder)


class CountPart(AnswerPart):
    """The best plan for one number of chips, where there is one."""

    chips: int
    step_time_s: float | None
    mfu: float | None
    tokens: float | None
    train_s: float | None
    chip_hours: float | None
    cost_usd: float | None
    energy_j: float | None
    on_front: bool
    on_cost_front: bool
    reason: str | None
    words: str | None
    certificate: CertificatePart | None


class FrontFile(AnswerPart):
    """The answer of `plan` for several numbers of chips."""

    objective: Literal["time", "cost", "energy"]
    best_chips: int | None
    job: dict[str, Any]
    cluster: dict[str, Any]
    front: tuple[CountPart, ...]
    provenance: dict[str, Any]

    @property
    def with_plans(self) -> tuple[CountPart, ...]:
        """Numbers of chips that have a plan."""
        return tuple(point for point in self.front if point.train_s is not None and point.certificate)


class ErrorsPart(AnswerPart):
    """How far predictions are off."""

    rows: int
    mape: float
    median_ape: float
    p90_ape: float
    bias: float


class RankingPart(AnswerPart):
    """How good the plans ranked first are."""

    groups: int
    mean_regret: float | None
    max_regret: float | None
    kendall_tau: float | None


class SlicePart(AnswerPart):
    """The score of some of the runs."""

    rows: int
    step_time: ErrorsPart
    left_out: ErrorsPart | None = None


class LeftOutPart(AnswerPart):
    """The score of runs whose family the calibration has not seen."""

    step_time: ErrorsPart
    macro: ErrorsPart


class RowsPart(AnswerPart):
    """How many runs were read, and what of them was used."""

    read: int
    used: int


class WorstPart(AnswerPart):
    """A group of runs that is predicted badly."""

    family: str
    chip: str
    model: str
    step_time: ErrorsPart


class ScoreboardFile(AnswerPart):
    """The answer of `validate`."""

    rows: RowsPart
    step_time: ErrorsPart
    macro: ErrorsPart
    memory: dict[str, ErrorsPart]
    ranking: RankingPart
    grouped_by: str
    by: dict[str, SlicePart]
    worst: tuple[WorstPart, ...] = ()
    left_one_family_out: LeftOutPart | None = None


def is_answer(document: Mapping[str, Any]) -> bool:
    """Whether this is what `plan` or `estimate` printed."""
    return {"breakdown", "memory_bytes", "provenance"} <= document.keys()


def is_front(document: Mapping[str, Any]) -> bool:
    """Whether this is what `plan` printed for several numbers of chips."""
    return {"best_chips", "front"} <= document.keys()


def is_scoreboard(document: Mapping[str, Any]) -> bool:
    """Whether this is what `validate` printed."""
    return {"macro", "ranking", "by"} <= document.keys()
