"""The numbers that are fitted on measured runs, and how a set of them prices a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from dovetail.accuracy.rows import MeasuredRun
from dovetail.arrays import Floats
from dovetail.cost.calibration import PRECISION_ROWS, calibration, generation_followed
from dovetail.frozen import frozen
from dovetail.step.evaluate import ProfiledJob, Step, profiled_job, step_from
from dovetail.step.facts import FrameworkFacts, Overheads, overheads_of, plan_facts

#: Efficiencies of a chip generation that runs can tell apart; the other fields keep their part model's value.
FITTED_EFFICIENCIES = ("matrix", "matrix_half", "attention_forward", "attention_backward", "memory", "link")
#: Overheads of a framework that its runs can tell apart; with what its memory needs at most five numbers each.
FITTED_OVERHEADS: Mapping[str, tuple[str, ...]] = {
    "megatron": ("host_s", "traffic", "exposed", "microbatch_s"),
    "megatron-2022": ("host_s", "traffic", "microbatch_s"),
    "deepspeed": ("host_s", "traffic", "microbatch_s"),
    "torchtitan": ("host_s", "traffic", "exposed", "attention"),
    "fsdp": ("host_s", "traffic", "exposed", "attention"),
    "maxtext": ("traffic", "exposed"),
}


@dataclass(frozen=True, slots=True, order=True)
class Parameter:
    """One fitted number: its name, and its generation or framework."""

    name: str
    group: str


@frozen
class Prior:
    """The prior of a number: its value, and the spread of its logarithm."""

    value: float
    #: the spread shared by all groups, and that of one group around it
    shared_spread: float
    spread: float
    high: float
    source: str
    #: without products or runs of the group's own chips
    unmeasured: bool = False


def parameters_of(run: MeasuredRun) -> dict[str, Parameter]:
    """Field of the efficiencies or overheads → its fitted number in this run."""
    by_field: dict[str, Parameter] = {}
    group = generation_followed(run.task.cluster.chip)
    if group is not None:
        by_field = {name: Parameter(name, group) for name in FITTED_EFFICIENCIES}
        by_field["matrix"] = Parameter(f"matrix.{PRECISION_ROWS[run.task.job.precision]}", group)
        by_field["matrix_half"] = Parameter("matrix.half", group)
    framework = run.task.framework.name
    return by_field | {name: Parameter(name, framework) for name in FITTED_OVERHEADS.get(framework, ())}


def shipped_values(run: MeasuredRun) -> dict[str, float]:
    """Field → the number this version ships for it, for the fields that are fitted."""
    task = run.task
    efficiencies = calibration(task.cluster.chip, task.job.precision).efficiencies
    overheads = overheads_of(task.framework)
    return {
        name: float(getattr(overheads if hasattr(overheads, name) else efficiencies, name))
        for name in parameters_of(run)
    }


def priced(run: MeasuredRun, values: Mapping[str, Floats]) -> Floats:
    """Step seconds of a run at given numbers, by field; arrays of them give arrays of seconds."""
    step, _ = step_at(run, values)
    variants = np.broadcast_shapes(*(np.shape(v) for v in values.values()))
    return np.broadcast_to(step.seconds, variants)


def step_at(run: MeasuredRun, values: Mapping[str, Floats]) -> tuple[Step, FrameworkFacts]:
    """The step of a run at given numbers, the others as shipped, and its framework facts."""
    profiled = profiled_at(run, values)
    return step_from(run.task.plan, profiled), profiled.facts


def profiled_at(run: MeasuredRun, values: Mapping[str, Floats]) -> ProfiledJob:
    """The layers of a run at given numbers, the others as shipped."""
    task = run.task
    efficiencies = calibration(task.cluster.chip, task.job.precision).efficiencies
    efficiencies = replace(efficiencies, **{name: values[name] for name in FITTED_EFFICIENCIES if name in values})
    overheads = overheads_of(task.framework)
    overheads = replace(overheads, **{name: values[name] for name in Overheads.__match_args__ if name in values})
    facts = plan_facts(task.plan, task.framework, task.job, overheads)
    return profiled_job(task.plan, task.job, task.cluster, facts, efficiencies)
