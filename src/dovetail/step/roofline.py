"""Where the operators of a step are under the roofs of its chip: what binds each, and how near it comes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from dovetail.arrays import Floats, summed
from dovetail.cost.calibration import calibration
from dovetail.cost.roofline import OperatorRoofs, operator_roofs
from dovetail.frameworks import Framework
from dovetail.frozen import frozen
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.arrange import arrange
from dovetail.plans.plan import Plan
from dovetail.profile import layer_works, sizes_of_layers
from dovetail.step.arrangements import Arrangements
from dovetail.step.evaluate import EvaluatedStep, evaluated_step, units_of
from dovetail.step.profiles import placed_layer
from dovetail.step.stages import Stage, class_of, layer_counts, runs_per_chunk

Unit = Literal["matrix units", "vector lanes", "memory", "kernel launches"]
UNITS: tuple[Unit, ...] = ("matrix units", "vector lanes", "memory", "kernel launches")


@frozen
class OperatorPoint:
    """An operator of a layer, in all micro-batches of a step on the busiest stage."""

    name: str
    seconds: float
    flops: float
    moved_bytes: float
    #: the unit it waits for most
    bound_by: Unit
    #: the part of its seconds that this unit alone would take
    roof_share: float

    @property
    def flops_per_byte(self) -> float | None:
        """None if it moves nothing: it runs inside the kernel of another."""
        return self.flops / self.moved_bytes if self.moved_bytes else None


@frozen
class Roofline:
    """A step on its busiest stage."""

    evaluated: EvaluatedStep
    #: forward and backward of all layers
    operators: tuple[OperatorPoint, ...]
    #: FLOPs for each byte from which the matrix units are the slower of the two, as both are sustained
    ridge_flops_per_byte: float

    @property
    def by_unit(self) -> dict[Unit, float]:
        """The part of the operators' seconds that each unit binds."""
        whole = sum(each.seconds for each in self.operators) or 1.0
        return {unit: sum(e.seconds for e in self.operators if e.bound_by == unit) / whole for unit in UNITS}


def roofline(plan: Plan, job: Job, cluster: Cluster, framework: Framework) -> Roofline:
    """That of a plan."""
    evaluated = evaluated_step(plan, job, cluster, framework, energy=False)
    step, facts = evaluated.step, evaluated.facts
    chip = units_of(job, cluster, facts, calibration(cluster.chip, job.precision).efficiencies)
    arrangement = arrange(plan, job.graph(), cluster, facts.tensor_rule)
    arranged = Arrangements.of([arrangement], [plan.micro_batch * plan.data_parallel])
    widths, graph = job.element_bytes(), step.profiles.graph
    at = sizes_of_layers(graph.layers, arranged.axis_sizes, widths, batch=arranged.batch, seq=job.seq_len)
    roofs: dict[str, dict[str, OperatorRoofs]] = {}
    for name, layer in graph.layers.items():
        works = layer_works(layer, placed_layer(layer, arranged.strategy), at[name])
        roofs[name] = {n: each for work in works.values() for n, each in operator_roofs(work, chip).items()}
    stage = max(step.stages, key=lambda each: _busy_s(evaluated, each))
    counts = {name: count * runs_per_chunk(step.pipeline) for name, count in layer_counts(stage).items()}
    ridge = chip.half.peak_flops * chip.half.sustained / chip.vector.memory_bytes_per_s
    return Roofline(evaluated, _points(evaluated, counts, roofs), _number(ridge))


def _busy_s(evaluated: EvaluatedStep, stage: Stage) -> float:
    """Seconds a stage computes for one micro-batch."""
    step = evaluated.step
    return _number(
        summed(
            count * (p.forward_s + p.input_gradient_s + p.weight_gradient_s + step.recompute[name].added_s)
            for name, count in layer_counts(stage).items()
            for p in (step.profiles.layers[name],)
        )
    )


def _points(
    evaluated: EvaluatedStep, counts: Mapping[str, float], roofs: Mapping[str, Mapping[str, OperatorRoofs]]
) -> tuple[OperatorPoint, ...]:
    """Operators by name, those of several layer classes together, the longest first."""
    totals: dict[str, np.ndarray] = {}
    for layer, times in counts.items():
        seconds = evaluated.step.profiles.layers[layer].operator_s
        for name, roof in roofs[class_of(layer)].items():
            limits = (roof.matrix_s, roof.vector_s, roof.memory_s, roof.launch_s)
            row = np.array([_number(each) for each in (seconds[name], roof.flops, roof.moved_bytes, *limits)])
            totals[name] = totals.get(name, np.zeros(len(row))) + times * row
    points = [_point(name, row) for name, row in totals.items()]
    return tuple(sorted(points, key=lambda point: -point.seconds))


def _point(name: str, row: np.ndarray) -> OperatorPoint:
    seconds, flops, moved, *limits = row.tolist()
    most = int(np.argmax(limits))
    # operators that share a chip's cores take a part of the seconds they would take alone
    share = min(limits[most] / seconds, 1.0) if seconds else 0.0
    return OperatorPoint(name, seconds, flops, moved, UNITS[most], share)


def _number(value: Floats) -> float:
    return float(np.ravel(value)[0])
