"""Problems of real layers: many cases equal single ones, costs are those of operators, needs those of the graph."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import dovetail as dt
from dovetail import frameworks
from dovetail.cost.operators import PlacedWork, operator_seconds
from dovetail.cost.units import chip_units
from dovetail.models import Job
from dovetail.plans.plan import PlanSpec, resolve_plan
from dovetail.schedule.layer import BANDWIDTH, layer_problems
from dovetail.schedule.model_layer import Direction, commonest_layer, model_layer_work
from dovetail.schedule.problem import faults
from dovetail.schedule.quick import quick
from dovetail.schedule.side_by_side import side_by_side_share
from dovetail.step.evaluate import evaluate

JOB = Job(dt.models.load("llama-2-7b"), 2048, 64)
SPACE = dt.hardware.space("phaze-grid")
INDICES = [1000, 37091, 75000]


def work(direction: Direction = "forward", tensor_parallel: int = 1, micro_batch: int = 1) -> PlacedWork:
    return model_layer_work(JOB, commonest_layer(JOB), direction, tensor_parallel, micro_batch)


def units(index):
    return chip_units(SPACE.chip(index), "bf16")


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_many_chips_equal_one_by_one(direction):
    together = layer_problems(work(direction), [units(index) for index in INDICES])
    for case, index in enumerate(INDICES):
        alone = layer_problems(work(direction), [units(index)])
        assert alone.problem(0) == together.problem(case)
        assert alone.serial[0] == together.serial[case]


def test_operators_on_all_cores_take_what_they_cost():
    chip, layer = units(INDICES[1]), work()
    problem = layer_problems(layer, [chip]).problem(0)
    seconds = operator_seconds(layer, chip)
    for task in problem.tasks:
        shortest = min(mode.cycles for mode in task.modes)
        assert shortest == pytest.approx(float(seconds[task.name]) * chip.cores.clock_hz, abs=1.01)


def test_cores_and_bandwidth_stay_within_what_there_is():
    for index in INDICES:
        chip = units(index)
        problem = layer_problems(work("backward"), [chip]).problem(0)
        assert problem.capacities == (chip.cores.tensor_cores, chip.cores.vector_cores, BANDWIDTH)
        for task in problem.tasks:
            for mode in task.modes:
                for phase in mode.phases:
                    assert all(used <= most for used, most in zip(phase.uses, problem.capacities, strict=True))
                    assert phase.tensor_cores or phase.vector_cores


def test_attention_is_fused_or_apart():
    chip = chip_units(dt.hardware.chip("tpu-v4"), "bf16")
    problem = layer_problems(work(), [chip]).problem(0)
    attention = next(task for task in problem.tasks if any(len(mode.phases) == 2 for mode in task.modes))
    fused = [mode for mode in attention.modes if len(mode.phases) == 1]
    apart = [mode for mode in attention.modes if len(mode.phases) == 2]
    assert fused[0].phases[0].tensor_cores == 8
    assert fused[0].phases[0].vector_cores == 2
    assert [bool(phase.tensor_cores) for phase in apart[0].phases] == [True, False]
    assert fused[0].cycles <= apart[0].cycles


def test_needs_are_those_of_the_graph():
    layer = work("backward")
    problem = layer_problems(layer, [units(INDICES[0])]).problem(0)
    made = {o.tensor: n for n, placed in enumerate(layer.operators) for o in placed.operator.outputs}
    for number, placed in enumerate(layer.operators):
        expected = {made[o.tensor] for o in placed.operator.inputs if made.get(o.tensor, number) < number}
        assert set(problem.tasks[number].after) == expected


def test_sizes_of_one_chip_equal_one_by_one():
    chip = units(INDICES[1])
    layer = work(micro_batch=1)
    batches = np.array([1.0, 2.0, 4.0])
    graph = JOB.graph().layers[commonest_layer(JOB)]
    many = side_by_side_share(replace(layer, sizes=graph.resolve(batch=batches, seq=2048)), chip)
    for batch, share in zip(batches, many, strict=True):
        alone = side_by_side_share(work(micro_batch=int(batch)), chip)
        assert float(alone) == pytest.approx(float(share), rel=1e-12)
        assert 0 < share <= 1


def test_a_schedule_is_what_the_operators_side_by_side_take():
    layer, chip = work("backward"), units(INDICES[1])
    problems = layer_problems(layer, [chip])
    found = quick(problems.problem(0))
    assert not faults(problems.problem(0), found.schedule)
    share = float(side_by_side_share(layer, chip))
    assert share == pytest.approx(found.makespan / problems.serial[0], rel=1e-12)
    assert share < 1


def test_steps_are_shorter_where_cores_are_shared():
    chip = SPACE.chip(INDICES[1])
    plan = resolve_plan(PlanSpec(), chips=8, global_batch=64, num_layers=JOB.model.num_layers)
    shared, apart = (
        evaluate(plan, JOB, dt.hardware.cluster(replace(chip, shares_cores=shares), chips=8), frameworks.load("ideal"))
        for shares in (True, False)
    )
    assert chip.shares_cores
    assert shared.step_time_s < 0.99 * apart.step_time_s
