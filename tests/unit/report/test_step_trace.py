"""Traces of simulated steps: events of the format, slices that nest, arrows in pairs, links that carry all bytes."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest

from dovetail.report import step_trace as step_traces
from dovetail.report.link_use import averaged, link_use
from dovetail.report.step_breakdown import carried_bytes
from dovetail.report.step_trace import StepTrace, step_trace
from dovetail.simulation.layer_steps import StepKind
from dovetail.simulation.network import Network
from dovetail.simulation.task_graph import RateChanges, TaskGraph
from simulated_steps import PLANS, simulated
from timing import within

#: What events of each phase must have (Trace Event Format, "Event Descriptions").
FIELDS = {
    "M": {"ph", "name", "pid", "tid", "args"},
    "X": {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"},
    "s": {"ph", "name", "cat", "id", "pid", "tid", "ts"},
    "f": {"ph", "name", "cat", "id", "pid", "tid", "ts", "bp"},
    "C": {"ph", "name", "pid", "tid", "ts", "args"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("plans")


def events_of(trace: StepTrace) -> list[dict]:
    return json.loads("".join(trace.parts()))["traceEvents"]


def nanoseconds(value: float) -> int:
    return round(value * 1000)


@pytest.fixture(scope="module", params=[*PLANS, "1f1b exact"])
def case(request, folder):
    name, _, exact = request.param.partition(" ")
    step = simulated(name, folder, exact=bool(exact))
    trace = step_trace(step)
    return step, trace, events_of(trace)


def test_events_have_the_fields_of_their_phase(case):
    _, trace, events = case
    assert {frozenset(event) for event in events} <= {frozenset(fields) for fields in FIELDS.values()}
    for event in events:
        assert set(event) == FIELDS[event["ph"]]
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 1) > 0
    assert sum(event["ph"] != "M" for event in events) == trace.events


def test_every_task_that_takes_time_is_a_slice(case):
    step, _, events = case
    seconds = np.rint(step.timeline.end_s * 1e9) - np.rint(step.timeline.start_s * 1e9)
    kinds = Counter(event["cat"] for event in events if event["ph"] == "X")
    for kind, category in ((StepKind.FORWARD, "forward"), (StepKind.OPTIMIZER, "optimizer")):
        mine = (step.tasks.labels.kind == kind) & (seconds > 0)
        assert kinds[category] == mine.sum() > 0
        spent = sum(nanoseconds(e["dur"]) for e in events if e["ph"] == "X" and e["cat"] == category)
        assert spent == seconds[mine].sum()


def test_slices_of_a_thread_nest(case):
    _, _, events = case
    by_thread: dict[tuple[int, int], list[tuple[int, int, str]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start = nanoseconds(event["ts"])
            by_thread[event["pid"], event["tid"]].append((start, -start - nanoseconds(event["dur"]), event["cat"]))
    for slices in by_thread.values():
        open_until: list[tuple[int, str]] = []
        for start, end, category in sorted(slices):
            while open_until and open_until[-1][0] <= start:
                open_until.pop()
            if open_until:
                assert -end <= open_until[-1][0]
                assert open_until[-1][1] == "item"
            open_until.append((-end, category))


def test_arrows_come_in_pairs(case):
    step, _, events = case
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert set(starts) == set(ends)
    assert len(starts) == (step.tasks.labels.kind == StepKind.TRANSFER).sum()
    sent = {(e["pid"], e["tid"], e["ts"]): e for e in events if e["ph"] == "X" and e["cat"] == "transfer"}
    items = {(e["pid"], e["tid"], e["ts"]): e for e in events if e["ph"] == "X" and e["cat"] == "item"}
    for number, start in starts.items():
        transfer = sent[start["pid"], start["tid"], start["ts"]]
        end = ends[number]
        item = items[end["pid"], end["tid"], end["ts"]]
        assert end["bp"] == "e"
        assert end["pid"] != start["pid"]
        assert end["ts"] >= transfer["ts"] + transfer["dur"] - 1e-3
        assert str(transfer["args"]["microbatch"]) in [part[1:] for part in item["name"].split(" & ")]


def test_processes_and_threads_are_named_in_order(case):
    step, _, events = case
    named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    chips = step.tasks.begin.shape[1]
    assert len(named) == step.plan.pipeline_parallel * chips
    assert named[1] == ("stage 0" if chips == 1 else "stage 0 chip 0")
    threads = [(e["pid"], e["tid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"]
    assert {(pid, tid) for pid, tid, _ in threads} == {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"}
    assert len({tid for _, tid, _ in threads}) == len(threads)
    for pid in named:
        mine = [name for process, _, name in threads if process == pid]
        assert mine[0] == "kernels"
        assert "kernels 2" not in mine


def test_memory_is_the_simulated(case):
    step, _, events = case
    chips = step.tasks.begin.shape[1]
    for stage, memory in enumerate(step.memory):
        found = [e["args"]["GiB"] for e in events if e["name"] == "memory" and e["pid"] == stage * chips + 1]
        assert np.array(found) * 2**30 == pytest.approx(memory.bytes, rel=1e-6)


def test_the_same_step_is_the_same_bytes(folder):
    step = simulated("1f1b", folder)
    assert "".join(step_trace(step).parts()) == "".join(step_trace(replace(step)).parts())


def test_messages_of_a_group_are_seen_on_all_its_chips(folder):
    step = simulated("1f1b", folder, exact=True)
    events = [e for e in events_of(step_trace(step)) if e["ph"] == "X" and e["cat"] == "collective"]
    by_chip = Counter(e["pid"] for e in events if "microbatch" in e["args"])
    assert len(set(by_chip.values())) <= 3  # the first and the last stage have more than the others
    assert len(by_chip) == 16


def test_too_many_events_leave_out_changes_of_links_then_operators(folder, refusal, monkeypatch):
    monkeypatch.setattr(step_traces, "WINDOWS", 100)
    step = simulated("1f1b", folder)
    every = step_trace(step)
    averages = step_trace(step, most=every.events - 1)
    assert averages.operators
    assert len(averages.use) == 100 * len(every.use.link) < len(every.use)
    items = step_trace(step, most=averages.events - 1)
    assert not items.operators
    kinds = {event["cat"] for event in events_of(items) if event["ph"] == "X"}
    assert kinds >= {"item", "transfer", "optimizer", "collective"}
    assert "forward" not in kinds
    sentence = refusal(step_trace, step, most=items.events - 1)
    assert f"{items.events:,} events" in sentence
    assert "fewer microbatches" in sentence


def test_link_use_carries_all_bytes(case):
    step, trace, _ = case
    use, rate, carried = trace.use, step.tasks.graph.network.bytes_per_s, carried_bytes(step)
    assert set(use.link.tolist()) == set(np.nonzero(carried)[0].tolist())
    mean = averaged(use, step.step_time_s, 50)
    for number, link in enumerate(use.link.tolist()):
        part = slice(use.starts[number], use.starts[number + 1])
        found = (use.share[part][:-1] * np.diff(use.at_s[part])).sum() * rate[link]
        assert found == pytest.approx(carried[link], rel=1e-6)
        assert use.share[part][-1] == 0
        means = mean.share[mean.starts[number] : mean.starts[number + 1]]
        assert means.mean() * step.step_time_s * rate[link] == pytest.approx(carried[link], rel=1e-6)


def test_links_that_two_messages_share_are_as_full_as_both():
    # two routes: over both links, of which the second carries half of it, and over the second alone
    network = Network(np.array([10.0, 4.0]), np.array([0, 2, 3]), np.array([0, 1, 1]), np.array([1.0, 0.5, 1.0]))
    none = np.zeros(0, np.int64)
    graph = TaskGraph(np.zeros(3), np.array([1.0, 0.0, 1.0]), np.array([0, -1, 1]), none, none, network)
    at, task = np.array([0.0, 1.0, 2.0, 3.0]), np.array([0, 2, 0, 2])
    use = link_use(graph, RateChanges(at, task, np.array([4.0, 1.0, 0.0, 0.0])))
    assert use.link.tolist() == [0, 1]
    assert use.at_s.tolist() == [0, 2, 0, 1, 2, 3]
    assert use.share.tolist() == pytest.approx([0.4, 0, 0.5, 0.75, 0.25, 0])
    mean = averaged(use, 4.0, 2)
    assert mean.at_s.tolist() == [0, 2, 0, 2]
    assert mean.share.tolist() == pytest.approx([0.4, 0, 0.625, 0.125])


def test_two_hundred_thousand_events_are_written_in_two_seconds(folder):
    step = simulated("1f1b", folder, exact=True)
    trace = step_trace(step)
    with within(2 * max(trace.events / 200_000, 0.25)):
        size = sum(len(part) for part in trace.parts())
    assert size > 100 * trace.events
