"""Seconds of layers and chunks: waits for the host, what hides behind what, transfers and reductions."""

from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.cost.calibration import calibration
from dovetail.cost.units import tier_arrays
from dovetail.pipeline.step_time import step_time
from dovetail.plans.pipeline_schedule import Pipeline, PipelineSchedule
from dovetail.plans.plan_file import Task, task_of
from dovetail.profile import LayerProfile, Recompute
from dovetail.profile.layer import UpdateWork
from dovetail.step.end_of_step import end_of_step
from dovetail.step.evaluate import Step, evaluate, step_of
from dovetail.step.facts import plan_facts
from dovetail.step.formulas import UpdateRates
from dovetail.step.stages import stage_contents
from dovetail.step.times import (
    LayerTimes,
    Overlaps,
    _wait,
    chunk_times,
    layer_times,
    transfer_seconds,
)
from valid_plans import Document, model, with_changes

SECONDS = st.floats(1e-7, 10)
ZERO = np.zeros(())
NOTHING = Recompute(ZERO, ZERO, ZERO, ZERO)

#: A model so small that its kernels are over before the next is launched.
TINY: Document = {
    "job": {"model": model(4), "seq_len": 128, "global_batch": 8},
    "cluster": {"name": "hgx-h100", "chips": 1, "framework": "megatron"},
    "plan": {"micro_batch": 1},
}


def task_for(document: Document, **parts: Document) -> Task:
    return task_of(with_changes(document, **parts), "case.yaml")


def step_for(task: Task) -> Step:
    plan = task.plan
    facts = plan_facts(plan, task.framework, task.job)
    return step_of(plan, task.job, task.cluster, facts, calibration(task.cluster.chip, task.job.precision).efficiencies)


def profile(**values: Any) -> LayerProfile:
    """A layer of which only these fields are known."""
    mappings = ("forward_collective_s", "backward_collective_s", "step_collective_s", "tied_parameters")
    known: dict[str, Any] = {field.name: {} if field.name in mappings else ZERO for field in fields(LayerProfile)}
    known["update"] = UpdateWork(ZERO, ZERO)
    known |= {name: value if isinstance(value, dict) else np.asarray(float(value)) for name, value in values.items()}
    return LayerProfile(**known)


def wait(busy: float, host: float) -> float:
    return float(_wait(np.asarray(busy), np.asarray(host)))


@given(busy=SECONDS)
def test_without_a_host_there_is_no_wait(busy):
    assert wait(busy, 0.0) == 0
    assert wait(0.0, 0.0) == 0
    assert wait(0.0, busy) == busy


@given(busy=SECONDS, host=SECONDS, more=st.floats(1.0, 10))
def test_waits_are_never_negative_and_grow_with_the_host(busy, host, more):
    assert wait(busy, host) >= max(0.0, host - busy)
    assert wait(busy, host * more) >= wait(busy, host)
    # more work hides more of the launches, and the whole does not get shorter
    assert wait(busy * more, host) <= wait(busy, host) + 1e-12
    assert busy * more + wait(busy * more, host) >= (busy + wait(busy, host)) * (1 - 1e-12)


def test_the_slower_of_chip_and_host_decides_where_they_are_far_apart():
    assert 1.0 + wait(1.0, 20.0) == pytest.approx(20.0, rel=1e-5)
    assert wait(20.0, 1.0) < 1e-4
    assert wait(1.0, 1.0) == pytest.approx(2**0.25 - 1)


def test_one_turns_into_the_other_without_a_kink():
    hosts = np.linspace(0.5, 2.0, 301)
    slopes = np.diff(_wait(np.ones(301), hosts)) / np.diff(hosts)
    assert np.all(np.diff(slopes) > 0)
    assert np.max(np.diff(slopes)) < 0.02
    assert slopes[0] < 0.15
    assert slopes[-1] > 0.9


def test_each_direction_waits_for_its_own_kernels():
    layer = profile(forward_kernels=10, backward_kernels=20)
    again = replace(NOTHING, added_kernels=7.0)
    times = layer_times(layer, again, Overlaps(), 1e-3)
    assert float(times.forward_s) == pytest.approx(10e-3)
    assert float(times.input_gradient_s) == pytest.approx(27e-3)
    assert float(times.parts["waiting for the host"]) == pytest.approx(37e-3)
    # a direction that works longer than its launches take does not wait, the other does
    busy = layer_times(replace(layer, forward_s=np.asarray(1.0)), again, Overlaps(), 1e-3)
    assert float(busy.parts["waiting for the host"]) == pytest.approx(27e-3, rel=1e-6)


def test_exposed_communication_gives_the_host_time():
    busy = {"tensor-parallel": np.asarray(1.0)}
    layer = profile(forward_kernels=10, forward_collective_s=busy)
    assert float(layer_times(layer, NOTHING, Overlaps(), 0.01).parts["waiting for the host"]) < 1e-4
    hidden = replace(layer, forward_s=np.asarray(1.0))
    assert float(layer_times(hidden, NOTHING, Overlaps(tensor_forward=1.0), 0.01).forward_s) < 1.0001


def test_a_tiny_model_waits_for_the_host_and_an_ideal_one_does_not():
    task = task_for(TINY)
    assert task.framework.host_s.value > 1e-5
    result = evaluate(task.plan, task.job, task.cluster, task.framework)
    waits = result.breakdown["waiting for the host"]
    assert waits > 0.5 * (result.step_time_s - result.breakdown["between micro-batches"])
    quick = replace(task.framework, host_s=replace(task.framework.host_s, value=0.0))
    without = evaluate(task.plan, task.job, task.cluster, quick).breakdown
    assert without["waiting for the host"] == 0
    others = {name: s for name, s in result.breakdown.items() if name != "waiting for the host"}
    assert {name: without[name] for name in others} == pytest.approx(others)
    ideal = task_for(TINY, cluster={"framework": "ideal"})
    assert evaluate(ideal.plan, ideal.job, ideal.cluster, ideal.framework).breakdown["waiting for the host"] == 0


def test_a_large_model_hardly_waits():
    task = task_for(TINY, job={"model": "llama-3-8b", "seq_len": 8192})
    result = evaluate(task.plan, task.job, task.cluster, task.framework)
    assert result.breakdown["waiting for the host"] < 0.02 * result.step_time_s


def test_a_part_of_the_backwards_tensor_parallel_collectives_is_hidden_and_none_of_the_forwards():
    sent = {"tensor-parallel": np.asarray(3.0)}
    layer = profile(
        forward_s=9, input_gradient_s=9, weight_gradient_s=9, forward_collective_s=sent, backward_collective_s=sent
    )
    times = layer_times(layer, NOTHING, Overlaps(tensor_backward=2 / 3))
    assert float(times.forward_s) == pytest.approx(9 + 3)
    assert float(times.input_gradient_s) == pytest.approx(9 + 1)
    assert float(times.parts["tensor-parallel"]) == pytest.approx(4)
    # behind no more than there is to compute
    idle = replace(layer, input_gradient_s=np.asarray(0.5), weight_gradient_s=np.asarray(0.5))
    assert float(layer_times(idle, NOTHING, Overlaps(tensor_backward=2 / 3)).input_gradient_s) == pytest.approx(0.5 + 2)


def listed(values: Any) -> list[float]:
    return np.asarray(values).tolist()


LAYERS = {"block": LayerTimes(np.asarray(1.0), np.asarray(1.5), np.asarray(0.5), {})}


def test_a_stage_that_waits_while_it_sends_spends_every_transfer_itself():
    contents = tuple({"block": n} for n in (1, 2, 2, 1))
    apart, sending = (chunk_times(LAYERS, contents, np.asarray(0.25), 3, sending=s) for s in (False, True))
    assert listed(apart.forward_s) == [1, 2, 2, 1]
    assert listed(apart.transfer_s) == [0.25] * 3
    # forward: all but the last place hand on; backward: all but the first
    assert listed(sending.forward_s) == [1.25, 2.25, 2.25, 1]
    assert listed(sending.input_gradient_s) == [1.5, 3.25, 3.25, 1.75]
    assert listed(sending.weight_gradient_s) == [0.5, 1, 1, 0.5]
    assert listed(sending.transfer_s) == [0] * 3


def test_waiting_while_sending_costs_every_microbatch():
    contents = ({"block": 1},) * 4
    pipeline = Pipeline(PipelineSchedule.ONE_F_ONE_B, 4, 32)
    times = chunk_times(LAYERS, contents, np.asarray(0.1), pipeline.num_links, sending=True)
    # a stage in the middle sends 32 results and 32 gradients, one at either end half as many
    assert 32 * 3.2 + 3 * 3.0 < float(step_time(pipeline, times)) < (32 + 3) * 3.2


def test_one_place_sends_nothing():
    alone = chunk_times(LAYERS, ({"block": 3},), np.asarray(0.25), 0, sending=True)
    assert (listed(alone.forward_s), listed(alone.input_gradient_s)) == ([3], [4.5])


SENT = 2048 * 1024 * 2  # tokens of a microbatch × hidden × bytes


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("tensor", [2, 4])
def test_chips_of_a_stage_each_send_their_part(tensor, sequence_parallel):
    plan = {"tensor_parallel": tensor, "pipeline_parallel": 4, "sequence_parallel": sequence_parallel, "micro_batch": 1}
    task = task_for(TINY, job={"seq_len": 2048, "global_batch": 64}, cluster={"chips": 64}, plan=plan)
    known = calibration(task.cluster.chip, "bf16").efficiencies
    network = tier_arrays(task.cluster.chip, task.cluster.tiers[1], known)
    expected = SENT / tensor / float(network.bytes_per_s * network.efficiency)
    expected += float(network.latency_s + network.launch_s)
    assert float(transfer_seconds(task.plan, step_for(task).profiles, task.cluster, known)) == pytest.approx(expected)


def test_stages_within_a_node_send_over_its_links():
    task = task_for(TINY, job={"seq_len": 2048}, cluster={"chips": 8}, plan={"pipeline_parallel": 4})
    known = calibration(task.cluster.chip, "bf16").efficiencies
    inside = tier_arrays(task.cluster.chip, task.cluster.tiers[0], known)
    expected = SENT / float(inside.bytes_per_s * inside.efficiency) + float(inside.latency_s + inside.launch_s)
    assert float(transfer_seconds(task.plan, step_for(task).profiles, task.cluster, known)) == pytest.approx(expected)
    alone = task_for(TINY)
    assert float(transfer_seconds(alone.plan, step_for(alone).profiles, alone.cluster, known)) == 0


def reduced(schedule: str, stages: int, microbatches: int, chunks: int, overlaps: Overlaps) -> tuple[float, float]:
    """Seconds a reduction of 100 and a gathering of 50 per layer add to stages of one block per chunk."""
    pipeline = Pipeline(PipelineSchedule(schedule), stages, microbatches, chunks)
    contents = tuple({"block": 1} for _ in range(pipeline.num_places))
    step = {"data-parallel": np.asarray(100.0), "updated weights": np.asarray(50.0)}
    profiles: Any = SimpleNamespace(layers={"block": profile(step_collective_s=step)})
    by_stage = stage_contents(contents, pipeline)
    none = np.zeros((stages, 3))
    reduction, gathering, update, offload = end_of_step(
        profiles, by_stage, LAYERS, overlaps, pipeline, none, UpdateRates(0.0)
    ).slowest()
    assert update == offload == 0
    return float(reduction), float(gathering)


@pytest.mark.parametrize(
    ("schedule", "stages", "microbatches", "chunks", "rooms"),
    [
        ("1f1b", 1, 8, 1, 1),
        ("1f1b", 8, 64, 1, 1),
        ("interleaved", 4, 8, 2, 1 + 3 * 1 / 2),
        ("interleaved", 4, 64, 2, 1 + 3 * 1 / 2),
        ("interleaved", 4, 8, 4, 1 + 3 * 3 / 4),
        ("interleaved", 4, 2, 2, 1 + 1 * 1 / 2),  # no more microbatches than two are on their way
        ("interleaved", 4, 1, 2, 1),
    ],
)
def test_a_stage_of_several_chunks_has_more_room_for_its_reductions(schedule, stages, microbatches, chunks, rooms):
    reduction, gathering = reduced(schedule, stages, microbatches, chunks, Overlaps())
    # backward of a block: 1.5 + 0.5; forward: 1
    assert reduction == pytest.approx(chunks * 100 - rooms * chunks * 2)
    assert gathering == pytest.approx(chunks * 50 - rooms * chunks * 1)


def test_what_a_framework_does_not_overlap_has_no_room():
    none = Overlaps(gradient_reduction=0.0, updated_weights=0.0)
    assert reduced("interleaved", 4, 8, 2, none) == (200, 100)
    half = Overlaps(gradient_reduction=0.01, updated_weights=0.02)
    assert reduced("interleaved", 4, 8, 2, half) == pytest.approx((198, 98))


@pytest.mark.parametrize("micro_batch", [1, 2, 4, 8])
def test_every_micro_batch_takes_its_seconds_outside_the_layers(micro_batch):
    task = task_for(TINY, plan={"micro_batch": micro_batch})
    known = replace(task.framework.microbatch_s, value=0.25)
    without, waits = (
        evaluate(task.plan, task.job, task.cluster, replace(task.framework, microbatch_s=replace(known, value=seconds)))
        for seconds in (0.0, 0.25)
    )
    between = 0.25 * 8 / micro_batch
    assert waits.breakdown["between micro-batches"] == pytest.approx(between)
    assert waits.step_time_s == pytest.approx(without.step_time_s + between)
