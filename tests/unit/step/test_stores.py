"""Stores off the wafer: bytes and seconds counted from parameters, what dies no longer hold, and what does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dovetail import frameworks
from dovetail.cost.calibration import calibration
from dovetail.graph import count as graph_count
from dovetail.hardware import Store
from dovetail.plans.plan import Plan, PlanSpec, resolve_plan
from dovetail.plans.wafer_part import STORE_CHOICES, StageTile, Stored, WaferPart
from dovetail.profile.recompute import BLOCKS_ON_CHIP
from dovetail.step.evaluate import Step, evaluate, step_of
from dovetail.step.evaluation import Evaluation
from dovetail.step.facts import StreamedBytes, plan_facts
from dovetail.step.store import least_store_seconds, stage_wafers
from wafer_plans import job_of, tile_plan, wafers

JOB = job_of()
FRAMEWORK = frameworks.load("wafer")
PARAMETERS = float(JOB.graph().parameters())
RATE = 2e12
#: two wafers, two stages on each
HALVES = (StageTile(0, 0, 0, 2, 2), StageTile(0, 2, 0, 2, 2), StageTile(1, 0, 0, 2, 2), StageTile(1, 2, 0, 2, 2))


def cluster_of(number: int = 1, rate: float = RATE, held: float = 1e15):
    return wafers(4, 4, number, store=Store(held, rate))


def plan_of(store: tuple[Stored, ...] = (), number: int = 1, **fields: object) -> Plan:
    part = WaferPart(tiles=HALVES if number == 2 else (), store=store)
    return tile_plan(JOB, 2, 2, 4, tensor=2, zero_stage=3, wafer=part if part != WaferPart() else None, **fields)  # type: ignore[arg-type]


def step(plan: Plan, cluster) -> Step:
    return step_of(
        plan, JOB, cluster, plan_facts(plan, FRAMEWORK, JOB), calibration(cluster.chip, JOB.precision).efficiencies
    )


def evaluated(store: tuple[Stored, ...] = (), number: int = 1, rate: float = RATE, held: float = 1e15) -> Evaluation:
    return evaluate(plan_of(store, number), JOB, cluster_of(number, rate, held), FRAMEWORK)


@pytest.fixture(scope="module")
def by_stage() -> list[float]:
    """Parameters of every stage: those that its layers use, tied ones on each stage that has them."""
    graph = JOB.graph()
    order = [run.layer for run in graph.chain for _ in range(run.count)]
    own = [float(graph_count.parameters(graph.layers[name])) for name in order]
    # 24 blocks between the embedding and what is after them, six to a stage
    return [sum(own[:7]), sum(own[7:13]), sum(own[13:19]), sum(own[19:])]


def sizes() -> tuple[float, float, float]:
    """Bytes of a parameter's weight, gradient, and of the rest: master copy and two moments."""
    state = FRAMEWORK.state_bytes(JOB.precision)
    return state.weights, state.gradients, state.master + 2 * state.moment


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("store", STORE_CHOICES)
def test_streams_are_counted_by_hand(store: tuple[Stored, ...], number: int, by_stage: list[float]) -> None:
    plan, cluster = plan_of(store, number), cluster_of(number)
    found, (weight, gradient, optimizer) = step(plan, cluster), sizes()
    use = found.wafer.store
    microbatches = plan.num_microbatches
    saved = [float(x) for x in found.tables.saved_bytes(found.contents)]
    # 1F1B: stage k of p has p - k micro-batches in flight
    held = [each * min(4 - stage, microbatches) for stage, each in enumerate(saved)]
    on_wafer = [(0, 1), (2, 3)] if number == 2 else [(0, 1, 2, 3)]
    streamed, at_end, stored = [], [], []
    for stages in on_wafer:
        count = sum(by_stage[k] for k in stages)
        activations = 4 * sum(saved[k] for k in stages) if "activations" in store else 0.0
        each = 2 * activations
        if "weights" in store:
            # weights for the forward and again for the backward, gradients back
            each += count * (2 * weight + gradient)
        streamed.append(microbatches * each / RATE)
        at_end.append(count * (weight + gradient) / RATE if store and "weights" not in store else 0.0)
        stored.append(
            (count * optimizer if store else 0.0)
            + (count * (weight + gradient) if "weights" in store else 0.0)
            + (4 * sum(held[k] for k in stages) if "activations" in store else 0.0)
        )
    assert use.overlapped_s == pytest.approx(max(streamed))
    assert use.end_s == pytest.approx(max(at_end))
    assert use.stored_bytes == pytest.approx(max(stored))
    assert evaluated(store, number).stored_bytes == pytest.approx(max(stored))


@pytest.mark.parametrize("rate", [1e11, 1e12, 1e14])
@pytest.mark.parametrize("store", STORE_CHOICES[1:])
def test_a_step_takes_the_longer_of_pipeline_and_streams_and_then_the_end(
    store: tuple[Stored, ...], rate: float
) -> None:
    fast, slow = evaluated(store, rate=1e30), evaluated(store, rate=rate)
    use = step(plan_of(store), cluster_of(rate=rate)).wafer.store
    pipelined = sum(
        seconds
        for name, seconds in fast.breakdown.items()
        if name
        not in ("gradient reduction", "updated weights", "tied embeddings", "optimizer", "store", "between steps")
    )
    rest = fast.step_time_s - pipelined
    assert slow.step_time_s == pytest.approx(max(pipelined, use.overlapped_s) + use.end_s + rest)
    # the store updates the weights
    assert slow.breakdown["optimizer"] == 0.0
    assert evaluated().breakdown["optimizer"] > 0.0


def test_dies_hold_what_the_store_does_not() -> None:
    parts = {store: evaluated(store).memory_by_stage for store in STORE_CHOICES}
    for stage in range(4):
        nothing, optimizer, weights, activations, everything = (parts[store][stage] for store in STORE_CHOICES)
        assert min(nothing[name] for name in ("gradients", "optimizer", "activations")) > 0
        assert optimizer["optimizer"] == weights["optimizer"] == 0
        # weights are no longer cast of a master copy when they are gathered; they are as wide as gradients
        assert nothing["weights"] == 0
        assert optimizer["weights"] == optimizer["gradients"] == nothing["gradients"]
        assert optimizer["activations"] == weights["activations"] == nothing["activations"]
        assert weights["weights"] == weights["gradients"] == everything["weights"] == everything["gradients"] == 0
        # the layer at work is there all the same
        assert weights["gathered weights"] > 0
        assert weights["layer gradients"] > 0
        assert activations["activations"] == everything["activations"]
    found = step(plan_of(("optimizer", "activations")), cluster_of())
    block = next(name for name, n in found.contents[1].items() if n > 1)
    of_block = float(found.tables.saved_bytes([{block: 1}])[0])
    for stage in (1, 2):
        held = parts["optimizer", "activations"][stage]["activations"]
        assert held == pytest.approx(BLOCKS_ON_CHIP * of_block)
        assert held < parts[()][stage]["activations"]


def test_a_store_that_is_too_small_does_not_fit() -> None:
    for store in STORE_CHOICES[1:]:
        for number in (1, 2):
            wanted = evaluated(store, number).stored_bytes
            assert evaluated(store, number, held=wanted * (1 + 1e-9)).fits
            assert not evaluated(store, number, held=wanted * (1 - 1e-6)).fits
    assert evaluated((), held=0.0).fits
    # dies without room for the optimizer's state: the store makes the plan fit
    peak = {store: evaluated(store).peak_bytes for store in STORE_CHOICES[:2]}
    assert peak["optimizer",] < peak[()]
    cluster = cluster_of()
    share = (peak[()] + peak["optimizer",]) / 2 / cluster.chip.usable_bytes
    small = replace(cluster, chip=replace(cluster.chip, hbm_bytes=int(share * cluster.chip.hbm_bytes)))
    assert not evaluate(plan_of(), JOB, small, FRAMEWORK).fits
    assert evaluate(plan_of(("optimizer",)), JOB, small, FRAMEWORK).fits


def test_named_strategies_use_stores_too() -> None:
    spec = PlanSpec.model_validate(
        {"pipeline_parallel": 4, "tensor_parallel": 2, "zero_stage": 3, "wafer": {"store": ["optimizer", "weights"]}}
    )
    cluster = cluster_of()
    plan = resolve_plan(spec, chips=16, global_batch=16, num_layers=24)
    found = evaluate(plan, JOB, cluster, FRAMEWORK)
    weight, gradient, optimizer = sizes()
    use = step(plan, cluster).wafer.store
    assert stage_wafers(plan, JOB.graph(), cluster) == (frozenset({0}),) * 4
    total = sum(each.weights_in for each in use.by_stage) / weight
    assert total >= PARAMETERS
    assert use.overlapped_s == pytest.approx(plan.num_microbatches * total * (2 * weight + gradient) / RATE)
    assert found.stored_bytes == pytest.approx(total * (weight + gradient + optimizer))
    assert found.memory_by_stage[0]["weights"] == 0


@pytest.mark.parametrize("store", STORE_CHOICES)
def test_no_plan_streams_less_than_the_least(store: tuple[Stored, ...]) -> None:
    weight, gradient, optimizer = sizes()
    bytes_of = StreamedBytes(weight, gradient, optimizer)
    for number in (1, 2):
        use = step(plan_of(store, number), cluster_of(number)).wafer.store
        least = least_store_seconds(PARAMETERS, plan_of().num_microbatches, store, bytes_of, number, RATE)
        assert least <= (use.overlapped_s + use.end_s) * (1 + 1e-9)
        if "optimizer" in store:
            assert least > 0.3 * (use.overlapped_s if "weights" in store else use.end_s)
