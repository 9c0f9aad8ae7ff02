"""The answer of a search: the best plan, a certificate, and what else was close."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, Literal

from dovetail.frameworks import Framework
from dovetail.frozen import frozen
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.plan import Plan
from dovetail.plans.space import Space
from dovetail.step.capacity import memory_limit, usable_for
from dovetail.step.evaluation import Evaluation


@frozen
class Certificate:
    """What is proven of an answer, and over which space.

    We count each plan once, with its best stage partition (and its best policy of every block, where blocks choose).
    """

    status: Literal["optimal", "feasible", "infeasible"]
    #: no plan of the space takes less; None where none fits. Known without a plan where time ran out
    lower_bound_s: float | None
    gap: float | None
    #: the space as data (`plans.stated_space`), and as a sentence
    space: Mapping[str, Any]
    space_text: str
    counted: int
    #: never evaluated: their bound is not below the answer
    pruned: int
    #: proven not to fit
    infeasible: int
    evaluated: int
    #: neither of these when the search ended
    open: int = 0
    #: whose seconds these are
    time: Literal["modelled", "simulated"] = "modelled"
    #: bytes of a chip that plans of the space may take; None where the search has no such number
    memory_limit_bytes: float | None = None
    #: nothing that the framework runs takes less, whatever the partition of its stages; None where it was not asked for
    lower_bound_framework_s: float | None = None


@frozen
class Alternative:
    """The best plan with other degrees, and what it loses as a part of the best.

    One with the same degrees may lose less: we do not evaluate what cannot win.
    """

    plan: Plan
    step_time_s: float
    loss: float


@frozen
class SimulatedPlan:
    """A plan as it was replayed."""

    plan: Plan
    #: no simulation of it takes less (L1⁻)
    least_s: float
    model_s: float
    step_time_s: float


@frozen
class Answer:
    """The best plan of a space; nothing but the certificate where no plan fits."""

    job: Job
    cluster: Cluster
    framework: Framework
    #: as it was narrowed
    space: Space
    #: of the fastest plan
    evaluation: Evaluation | None
    certificate: Certificate
    alternatives: tuple[Alternative, ...]
    #: seconds the search took; no part of the answer
    timing: Mapping[str, float]
    #: where leading plans were replayed: all of them, the fastest first
    simulated: tuple[SimulatedPlan, ...] = ()
    #: bytes of a chip that plans were allowed to take; None: as `memory_limit` has it
    memory_limit_bytes: float | None = None
    #: of the simplest plan within the tie margin, where that is not the fastest itself
    recommended: Evaluation | None = None
    #: the search, where its tables are kept (`SearchRequest.keep_tables`); no part of the answer
    search: object = field(default=None, repr=False, compare=False)

    @property
    def limit_bytes(self) -> float:
        """Bytes of a chip that plans were allowed to take."""
        return memory_limit(self.cluster.chip, self.framework, self.memory_limit_bytes)

    def limit_on(self, cluster: Cluster) -> float | None:
        """The limit that was asked for, as the same part of other chips; None where none was."""
        if self.memory_limit_bytes is None:
            return None
        usable = cluster.chip.usable_bytes
        return min(self.memory_limit_bytes * (usable / self.cluster.chip.usable_bytes), usable)

    def memory_factor(self, peak_bytes: float) -> float:
        """How many times their memory chips need for plans that take so many bytes."""
        if self.memory_limit_bytes is not None:
            return peak_bytes / self.memory_limit_bytes
        return usable_for(peak_bytes, self.framework) / self.cluster.chip.usable_bytes

    @property
    def fastest(self) -> Evaluation:
        """What the fastest plan takes: the one that the certificate is about."""
        assert self.evaluation is not None, "no plan fits: see the certificate"
        return self.evaluation

    @property
    def best(self) -> Evaluation:
        """What the recommended plan takes: the simplest within the tie margin of the fastest."""
        return self.recommended or self.fastest

    @property
    def recommended_loss(self) -> float:
        """How much longer the recommended plan takes than the fastest, as a part of it."""
        return self.best.step_time_s / self.fastest.step_time_s - 1

    def of_fastest(self) -> Answer:
        """The answer with the fastest plan recommended."""
        return replace(self, recommended=None)

    @property
    def plan(self) -> Plan:
        """The recommended plan."""
        return self.best.plan

    @property
    def step_time_s(self) -> float:
        """Seconds of a step."""
        return self.best.step_time_s

    @property
    def mfu(self) -> float:
        """Useful FLOPs over the chips' peak."""
        return self.best.mfu
