"""One collective alone takes what its formula says; several on the same ports take what fair shares leave them."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from kernel_steps import chips_of, kernel, layer_of, links_of, plan_of
from real_collectives import real_collectives

from dovetail.cost.collective import Transport, tiered_seconds, tiered_time
from dovetail.layout import CollectiveKind
from dovetail.pipeline import Pipeline, PipelineSchedule, work_order
from dovetail.simulation.chips import Chips
from dovetail.simulation.layer_steps import LayerStep, LayerSteps, Message, StepKind
from dovetail.simulation.network import Routes
from dovetail.simulation.step_tasks import StepParts, step_tasks
from dovetail.simulation.task_graph import TaskGraph, run

CASES = {
    "tensor and sharded": ("llama-3.1-8b", "hgx-h100", 64, 2048, "megatron", {"tensor_parallel": 8, "zero_stage": 1}),
    "short sequences": ("bert-large", "hgx-h100", 64, 32, "megatron", {"tensor_parallel": 16, "zero_stage": 0}),
    "no switches that add up": (
        "gpt3-13b", "dgx-a100-80gb", 128, 256, "megatron", {"tensor_parallel": 8, "zero_stage": 0},
    ),
    "experts over nodes": (
        "qwen3-30b-a3b", "hgx-h100", 64, 4096, "megatron",
        {"tensor_parallel": 2, "expert_parallel": 32, "expert_tensor_parallel": 1},
    ),
    "rings of contexts": (
        "llama-3.1-8b", "dgx-a100-80gb", 64, 8192, "torchtitan",
        {"context_parallel": 16, "context_kind": "ring", "zero_stage": 3},
    ),
    "heads exchanged": (
        "llama-3.1-8b", "gb200-nvl72", 144, 8192, "deepspeed",
        {"context_parallel": 8, "context_kind": "ulysses", "zero_stage": 2},
    ),
    "switches that add up": (
        "gpt3-13b", "hgx-h100", 64, 2048, "megatron", {"tensor_parallel": 8, "micro_batch": 4, "zero_stage": 0},
    ),
    "copies on two nodes": ("llama-3.1-8b", "hgx-h100", 16, 2048, "megatron", {"zero_stage": 0}),
    "a torus": ("llama-3.1-8b", "tpu-v5p-pod", 64, 4096, "maxtext", {"tensor_parallel": 4, "zero_stage": 3}),
}  # fmt: skip

#: Seconds of the kernels beside the collective.
FORWARD_S, BACKWARD_S = 0.003, 0.005
ROLES = (
    "forward", "backward", "forward_gather", "backward_gather", "microbatch_reduction", "step_reduction",
    "updated_gather",
)  # fmt: skip


@cache
def collectives_of(case: str, exact: bool = False):
    *where, spec = CASES[case]
    return real_collectives(*where, exact=exact, **spec)  # type: ignore[arg-type]


def seconds_of(chips: Chips, layer: LayerSteps) -> float:
    """A step of one layer and one microbatch."""
    order = work_order(Pipeline(PipelineSchedule.ONE_F_ONE_B, 1, 1))
    chips.routes = Routes()
    parts = StepParts(order, [{"layer": 1}], {"layer": layer}, 0.0, False, (), [0.0], 0.0)
    return run(step_tasks(parts, chips).graph).seconds


def step_with(collective: LayerStep, role: str) -> LayerSteps:
    forward, backward = [kernel(StepKind.FORWARD, FORWARD_S)], [kernel(StepKind.INPUT_GRADIENT, BACKWARD_S)]
    match role:
        case "forward":
            return layer_of([collective, *forward], backward)
        case "backward":
            return layer_of(forward, [collective, *backward])
        case _:
            return layer_of(forward, backward, **{role: [collective]})


def collective_step(message: Message, hidden: float = 0.0, group: str = "some") -> LayerStep:
    return LayerStep("collective", StepKind.COLLECTIVE, message=message, group=group, overlapped=hidden)


@pytest.mark.parametrize("case", CASES)
def test_a_collective_alone_takes_what_its_formula_says(case):
    chips, found = collectives_of(case)
    assert len(found) > 5
    for number, real in enumerate(found):
        layer = step_with(collective_step(real.message), ROLES[number % len(ROLES)])
        expected = FORWARD_S + BACKWARD_S + real.seconds
        assert seconds_of(chips, layer) == pytest.approx(expected, rel=1e-9), real
        # without kernels, so that none hides a difference
        assert seconds_of(chips, layer_of([collective_step(real.message)])) == pytest.approx(real.seconds, rel=1e-9)


def test_the_cases_have_collectives_of_every_kind():
    every = [real for case in CASES for real in collectives_of(case)[1]]
    found = {(real.kind, real.algorithm, real.tiers) for real in every}
    reduce, gather, scatter = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
    rings = {(kind, "ring", tiers) for kind in (reduce, gather, scatter) for tiers in (1, 2)}
    trees = {(reduce, "tree", 1), (reduce, "tree", 2), (reduce, "switches", 1), (reduce, "switches", 2)}
    exchanges = {(CollectiveKind.ALL_TO_ALL, "exchange", tiers) for tiers in (1, 2)}
    missing = rings | trees | exchanges | {(CollectiveKind.PERMUTE, "permute", 2)}
    assert missing - found == set()


@pytest.mark.parametrize("role", ROLES)
def test_a_hidden_collective_alone_runs_beside_what_does_not_need_it(role):
    chips, found = collectives_of("tensor and sharded")
    for real in sorted(found, key=lambda real: real.seconds)[:: len(found) // 6]:
        expected = FORWARD_S + BACKWARD_S + real.seconds
        if role == "forward":
            expected = max(FORWARD_S, real.seconds) + BACKWARD_S
        if role == "backward":
            expected = FORWARD_S + max(BACKWARD_S, real.seconds)
        layer = step_with(collective_step(real.message, hidden=1.0), role)
        assert seconds_of(chips, layer) == pytest.approx(expected, rel=1e-9), real


@pytest.mark.parametrize("case", ["tensor and sharded", "experts over nodes", "rings of contexts"])
def test_the_same_collective_of_all_groups_at_once_takes_as_long(case):
    chips, found = collectives_of(case, exact=True)
    assert chips.simulated == 64
    for real in found[::4]:
        assert seconds_of(chips, layer_of([collective_step(real.message)])) == pytest.approx(real.seconds, rel=1e-9)


def test_tied_gradients_take_what_their_message_says():
    order = work_order(Pipeline(PipelineSchedule.ONE_F_ONE_B, 2, 1))
    chips = chips_of(plan_of(2, tensor=2), [(2, links_of(7.0)), (4, links_of(3.0))])
    layer = layer_of([kernel(StepKind.FORWARD, 1.0)], [kernel(StepKind.INPUT_GRADIENT, 2.0)])
    tied = [((0, 1), Message(0.5, ((1, 6.0),), ()))]
    parts = StepParts(order, [{"layer": 1}] * 2, {"layer": layer}, 0.0, False, tied, [0.25, 0.75], 0.125)
    assert run(step_tasks(parts, chips).graph).seconds == pytest.approx(2 * 3.0 + 0.5 + 6.0 / 3.0 + 0.75 + 0.125)


# -- one message against many


def ring_of_messages(chips: int, share_bytes: float, bytes_per_s: float, rounds: int, hop_s: float = 0.0) -> float:
    """Every chip hands a share to its neighbour, then the one that it was handed, and so on."""
    routes = Routes()
    ways = [routes.add({2 * chip: 1.0, 2 * ((chip + 1) % chips) + 1: 1.0}) for chip in range(chips)]
    count = chips * rounds
    needs = [(r * chips + c, (r + 1) * chips + c) for r in range(rounds - 1) for c in range(chips)]
    needs += [(r * chips + (c - 1) % chips, (r + 1) * chips + c) for r in range(rounds - 1) for c in range(chips)]
    before, after = np.array(needs, np.int64).reshape(-1, 2).T.copy()
    network = routes.network([bytes_per_s] * (2 * chips))
    sizes, route = np.full(count, share_bytes), np.tile(ways, rounds).astype(np.int64)
    return run(TaskGraph(np.full(count, hop_s), sizes, route, before, after, network)).seconds


@pytest.mark.parametrize("chips", [2, 3, 4, 8, 13, 64])
@pytest.mark.parametrize("kind", [CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE])
def test_a_ring_message_by_message_takes_the_bandwidth_of_one_message(chips, kind):
    size, bytes_per_s = 3e8, 7e10
    rounds = (chips - 1) * (2 if kind is CollectiveKind.ALL_REDUCE else 1)
    found = ring_of_messages(chips, size / chips, bytes_per_s, rounds)
    assert found == pytest.approx(rounds / chips * size / bytes_per_s, rel=1e-9)
    tier = links_of(bytes_per_s)
    # a chip's own share is not copied here, and links without latency or launch cost nothing but bytes
    groups, nothing = [(np.asarray(float(chips)), tier)], Transport(copy=0.0)
    spent = tiered_time(kind, groups, np.asarray(size), nothing)
    assert found == pytest.approx(float(spent.busy_s[0]), rel=1e-9)
    assert found == pytest.approx(float(spent.seconds), rel=1e-9)
    # and as the simulator has it: one message over the ports of all
    for exact in (False, True):
        whole = chips_of(plan_of(1, tensor=chips), [(chips, tier)], exact=exact)
        message = Message(0.0, ((0, float(spent.busy_s[0]) * bytes_per_s),), tuple(whole.arrangement.axes.sizes))
        assert seconds_of(whole, layer_of([collective_step(message)])) == pytest.approx(found, rel=1e-9)


def test_the_latency_of_a_ring_message_by_message_is_that_of_its_formula():
    tier = links_of(7e10, wait_s=3e-6)
    seconds = tiered_seconds(CollectiveKind.ALL_GATHER, [(np.asarray(8.0), tier)], np.asarray(3e8), Transport(copy=0.0))
    assert ring_of_messages(8, 3e8 / 8, 7e10, 7, hop_s=3e-6) == pytest.approx(float(seconds), rel=1e-9)


# -- several at once


def together(chips: Chips, *messages: Message) -> list[float]:
    """When collectives that begin at the same moment, each of a group of its own, end."""
    order = work_order(Pipeline(PipelineSchedule.ONE_F_ONE_B, 1, 1))
    chips.routes = Routes()
    steps = [collective_step(message, 1.0, str(number)) for number, message in enumerate(messages)]
    layers = {"layer": layer_of(steps)}
    tasks = step_tasks(StepParts(order, [{"layer": 1}], layers, 0.0, False, (), [0.0], 0.0), chips)
    timeline, streams = run(tasks.graph), tasks.labels.streams
    ends = []
    for number in range(len(messages)):
        (own,) = np.nonzero(tasks.labels.stream == streams.index(str(number)))
        found = timeline.end_s[own]
        assert len(own) > 0
        assert found == pytest.approx(found[0], rel=1e-9)
        ends.append(float(found[0]))
    assert timeline.seconds == pytest.approx(max(ends), rel=1e-9)
    return ends


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(("one", "other"), [(3e8, 3e8), (1e8, 5e8), (9e8, 2e8)])
def test_two_collectives_on_the_same_ports_share_them(one, other, exact):
    rate = 2e11
    chips = chips_of(plan_of(1, tensor=4, data=2), [(8, links_of(rate))], exact=exact)
    along, across = (tuple(group) for group in (chips.arrangement.axes.mesh.tensor, chips.arrangement.axes.mesh.data))
    found = together(chips, Message(0.0, ((0, one),), along), Message(0.0, ((0, other),), across))
    # half the ports each until the smaller is through; then the other has them to itself
    small, large = min(one, other), max(one, other)
    assert sorted(found) == pytest.approx([2 * small / rate, (small + large) / rate], rel=1e-9)
    # the one that waits longer than the other takes does not meet it
    found = together(chips, Message(0.0, ((0, one),), along), Message(one / rate, ((0, other),), across))
    assert found == pytest.approx([one / rate, (one + other) / rate], rel=1e-9)


@pytest.mark.parametrize("exact", [False, True])
def test_collectives_over_two_tiers_share_the_one_that_is_short(exact):
    # inside nodes 10 bytes a second, between them 1
    tiers = [(4, links_of(10.0)), (8, links_of(1.0))]
    chips = chips_of(plan_of(1, tensor=4, data=2), tiers, exact=exact)
    inside, every, between = (
        chips.arrangement.axes.mesh.tensor,
        (*chips.arrangement.axes.mesh.tensor, *chips.arrangement.axes.mesh.data),
        chips.arrangement.axes.mesh.data,
    )
    # alone: the outer tier takes 2 s of the second, the inner one 0.8 s of it
    both = Message(0.0, ((0, 8.0), (1, 2.0)), tuple(every))
    assert together(chips, both) == pytest.approx([2.0])
    # a third inside nodes takes what is left there: the second has 4 of the 10, so 6 a second
    assert together(chips, both, Message(0.0, ((0, 6.0),), tuple(inside))) == pytest.approx([2.0, 1.0])
    # fair shares of bytes: the outer tier carries x/4 + x = 1 of two at rate x; 0.8 each. The one between nodes is
    # through after 1 s with its 0.8; the other has sent 0.8 of 8, its 7.2 left go at 4
    assert together(chips, both, Message(0.0, ((1, 0.8),), tuple(between))) == pytest.approx([1.0 + 7.2 / 4, 1.0])


def test_messages_of_different_tiers_do_not_meet():
    chips = chips_of(plan_of(1, tensor=4, data=2), [(4, links_of(10.0)), (8, links_of(1.0))])
    one, other = (
        Message(0.0, ((0, 8.0),), chips.arrangement.axes.mesh.tensor),
        Message(0.0, ((1, 2.0),), chips.arrangement.axes.mesh.data),
    )
    assert together(chips, one, other) == pytest.approx([0.8, 2.0])
