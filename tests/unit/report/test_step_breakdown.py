"""Where a simulated step's time goes: parts that add up, and links by what they carried."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.report.step_breakdown import busiest_stage, link_shares, stage_breakdowns
from dovetail.report.step_items import busy_shares, item_name, stage_names
from dovetail.simulation.layer_steps import StepKind
from simulated_steps import PLANS, simulated


@pytest.fixture(scope="module", params=[*PLANS, "1f1b exact"])
def step(request, tmp_path_factory):
    name, _, exact = request.param.partition(" ")
    return simulated(name, tmp_path_factory.mktemp("plans"), exact=bool(exact), rates=False)


def test_parts_add_up_to_the_step(step):
    parts = stage_breakdowns(step)
    assert len(parts) == step.plan.pipeline_parallel
    for stage in parts:
        assert sum(stage.values()) == pytest.approx(step.step_time_s, rel=1e-9)
        assert min(stage.values()) >= 0


def test_kernels_are_those_of_the_chip(step):
    labels, chips = step.tasks.labels, step.tasks.begin.shape[1]
    seconds = step.timeline.end_s - step.timeline.start_s
    for stage, parts in enumerate(stage_breakdowns(step)):
        for kind, name in ((StepKind.FORWARD, "forward"), (StepKind.WEIGHT_GRADIENT, "weight gradients")):
            mine = (labels.chip == stage * chips) & (labels.kind == kind)
            assert parts[name] == pytest.approx(seconds[mine].sum())
            assert parts[name] > 0


def test_waiting_is_time_in_items_without_kernels(step):
    labels, timeline = step.tasks.labels, step.timeline
    chips = step.tasks.begin.shape[1]
    moments = np.linspace(0, step.step_time_s, 20_001)[:-1]

    def running(starts, ends):
        begun, ended = np.sort(starts), np.sort(ends)
        return np.searchsorted(begun, moments, "right") > np.searchsorted(ended, moments, "right")

    for stage, parts in enumerate(stage_breakdowns(step)):
        items = slice(step.tasks.order.starts[stage], step.tasks.order.starts[stage + 1])
        inside = running(timeline.start_s[step.tasks.begin[items, 0]], timeline.end_s[step.tasks.end[items, 0]])
        mine = (labels.chip == stage * chips) & (labels.stream == labels.streams.index("kernels"))
        kernels = running(timeline.start_s[mine], timeline.end_s[mine])
        waiting = (inside & ~kernels).mean() * step.step_time_s
        assert parts["waiting for messages"] == pytest.approx(waiting, abs=0.01 * step.step_time_s)
        updates = timeline.start_s[mine & (labels.kind == StepKind.OPTIMIZER)].min()
        last = timeline.end_s[step.tasks.end[items, 0]].max()
        assert parts["until all gradients are reduced"] == pytest.approx(updates - last, abs=1e-9)
        idle = (~inside & (moments < last)).mean() * step.step_time_s
        assert parts["idle in the pipeline"] == pytest.approx(idle, abs=0.01 * step.step_time_s)


def test_the_busiest_stage_has_the_longest_kernels(step):
    shares = busy_shares(step)
    assert ((shares > 0) & (shares < 1)).all()
    assert shares[busiest_stage(step)] == shares.max()


def test_links_carry_what_was_sent(step):
    found = link_shares(step)
    graph = step.tasks.graph
    assert [link.busiest_share for link in found] == sorted((link.busiest_share for link in found), reverse=True)
    total = 0.0
    for task in np.nonzero(graph.route >= 0)[0].tolist():
        route = graph.route[task]
        entries = slice(graph.network.starts[route], graph.network.starts[route + 1])
        links = graph.network.link[entries]
        total += (graph.bytes[task] * graph.network.part[entries] / graph.network.bytes_per_s[links]).sum()
    names = step.tasks.link_names
    mean = sum(link.mean_share * names.count(link.name) for link in found)
    assert mean * step.step_time_s == pytest.approx(total)
    assert all(0 < link.mean_share <= link.busiest_share <= 1 for link in found)
    assert all(0 <= link.busiest_stage < step.plan.pipeline_parallel for link in found)


def test_names_are_short(step):
    assert item_name(step.tasks.order, 0) == "F0"
    assert stage_names(step)[0] in ("stage 0", "stage 0 chip 0")
    assert len(stage_names(step)) == step.plan.pipeline_parallel * step.tasks.begin.shape[1]
