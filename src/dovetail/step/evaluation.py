"""What a plan takes: seconds, bytes and joules of one training step, and how likely it fits."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.frozen import frozen
from dovetail.models.traced import Approximation
from dovetail.plans.plan import Plan
from dovetail.step.capacity import fit_probability
from dovetail.step.power import Ranged, StepPower, step_power


@frozen
class Evaluation:
    """What a plan takes."""

    plan: Plan
    fits: bool
    step_time_s: float
    #: 3 × forward matrix FLOPs, attention in full, over the dense peak of the job's precision
    mfu: float
    tokens_per_s_per_chip: float
    breakdown: Mapping[str, float]
    #: of each stage's chips at their fullest moment, by part
    memory_by_stage: tuple[Mapping[str, float], ...]
    #: the same at every moment of the step that can be the fullest
    memory_by_phase: tuple[Mapping[str, Mapping[str, float]], ...]
    #: what programs get of a chip's memory
    usable_bytes: float
    #: joules into the boards of all chips; None where neither energies of its technology nor a power are known
    energy: Ranged | None
    provenance: Mapping[str, str]
    #: what the fullest store off a wafer holds
    stored_bytes: float = 0.0
    #: scale of the error of what a run takes, as a part of what is predicted without context
    memory_error: float = 0.0
    #: whether stores off wafers and hosts have enough for what they hold
    stores: bool = True
    #: what a host holds for each of its chips, and could hold
    host_bytes: float = 0.0
    host_limit_bytes: float = 0.0
    #: operators of a traced model that stand for something else, and the part of operator seconds they take
    approximated: tuple[Approximation, ...] = ()
    approximated_share: float = 0.0
    #: what was traced of the model and is not in its graph
    left_out: tuple[str, ...] = ()

    @property
    def energy_j(self) -> float | None:
        """Joules of all chips."""
        return None if self.energy is None else self.energy.value

    @property
    def power(self) -> StepPower | None:
        """Watts for each chip, also with hosts, network and cooling."""
        if self.energy is None:
            return None
        return step_power(self.energy, self.step_time_s * self.plan.chips, hosted=self.plan.wafer is None)

    @property
    def peak_bytes(self) -> float:
        """Memory of the fullest stage's chips."""
        return max(sum(parts.values()) for parts in self.memory_by_stage)

    @property
    def fullest_stage(self) -> int:
        """The stage whose chips need most memory."""
        return max(range(len(self.memory_by_stage)), key=lambda i: sum(self.memory_by_stage[i].values()))

    @property
    def fullest_phases(self) -> tuple[str, ...]:
        """When in the step each stage's chips need most memory."""
        return tuple(max(of, key=lambda when: sum(of[when].values())) for of in self.memory_by_phase)

    @property
    def headroom_bytes(self) -> float:
        """Usable memory that the fullest stage's chips leave free; less than 0 where the plan does not fit."""
        return self.usable_bytes - self.peak_bytes

    @property
    def outside_bytes(self) -> float:
        """What a chip holds besides tensors of the model and what the allocator holds for them."""
        parts = self.memory_by_stage[self.fullest_stage]
        return parts["context"] + parts["workspaces"]

    @property
    def fit_probability(self) -> float:
        """How likely a run has enough memory, by the errors of predicted memory on runs and outcomes."""
        outside = self.outside_bytes
        return self.stores * fit_probability(self.peak_bytes, outside, self.usable_bytes, self.memory_error)

    @property
    def missing_bytes(self) -> float:
        """Beyond what the fullest stage's chips have; 0 where the plan fits."""
        return max(-self.headroom_bytes, 0.0)
