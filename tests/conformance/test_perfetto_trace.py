"""Traces as Perfetto's trace processor reads them: what it finds by SQL is what was simulated."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from perfetto_processor import processor

from dovetail.report.step_breakdown import carried_bytes
from dovetail.report.step_trace import step_trace
from dovetail.simulation.layer_steps import StepKind
from simulated_steps import PLANS, simulated

#: Beginnings and ends are whole nanoseconds.
NANOSECOND = 1.0

#: Levels with their tracks and processes.
COUNTERS = (
    "counter join counter_track t on counter.track_id = t.id "
    "join process on process.upid = extract_arg(t.dimension_arg_set_id, 'upid')"
)

CASES = [*((name, False) for name in PLANS), ("1f1b", True)]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}{' exact' if case[1] else ''}")
def read(request, tmp_path_factory):
    """A simulation, its trace, and the trace as Perfetto has it."""
    name, exact = request.param
    step = simulated(name, tmp_path_factory.mktemp("plans"), exact=exact)
    trace = step_trace(step)
    with processor("".join(trace.parts()).encode()) as found:
        yield step, trace, found


def test_nothing_is_refused(read):
    _, _, perfetto = read
    wrong = perfetto.query("select name, value from stats where severity in ('error', 'data_loss') and value > 0")
    assert wrong == []


def test_every_slice_arrives(read):
    step, trace, perfetto = read
    ((count,),) = perfetto.query("select count(*) from slice")
    assert count == len(trace.threads.task) + trace.spans.begin_s.size
    found = dict(perfetto.query("select category, count(*) from slice group by category"))
    kinds = Counter(step.tasks.labels.kind[trace.threads.task].tolist())
    assert found["transfer"] == kinds[StepKind.TRANSFER] if StepKind.TRANSFER in kinds else "transfer" not in found
    assert found["forward"] == kinds[StepKind.FORWARD]
    assert found["item"] == trace.spans.begin_s.size


def test_threads_are_as_busy_as_simulated(read):
    step, _, perfetto = read
    labels, timeline = step.tasks.labels, step.timeline
    chips = step.tasks.begin.shape[1]
    rows = perfetto.query(
        "select process.name as process, sum(slice.dur) as busy, count(*) as slices from slice "
        "join thread_track on slice.track_id = thread_track.id "
        "join thread using (utid) join process using (upid) "
        "where thread.name = 'kernels' and slice.category != 'item' group by process.name"
    )
    assert len(rows) == step.plan.pipeline_parallel * chips
    for name, seconds, count in rows:
        words = name.split()
        chip = int(words[1]) * chips + (int(words[3]) if chips > 1 else 0)
        mine = (labels.chip == chip) & (labels.stream == labels.streams.index("kernels"))
        expected = (timeline.end_s - timeline.start_s)[mine].sum()
        assert seconds == pytest.approx(1e9 * expected, abs=NANOSECOND * count)


def test_streams_have_their_order(read):
    _, trace, perfetto = read
    names = [name for (name,) in perfetto.query(
        "select thread.name from thread join process using (upid) where process.name in ('stage 0', 'stage 0 chip 0') "
        "and thread.name is not null order by tid"
    )]  # fmt: skip
    assert names[0] == "kernels"
    assert names[-1].split()[0] in ("transfers", "data-parallel")
    assert names == [name for _, chip, name in trace.threads.named() if chip == 0]


def test_kernels_lie_in_their_items(read):
    _, _, perfetto = read
    outside = perfetto.query(
        "select slice.name, slice.category from slice join thread_track on slice.track_id = thread_track.id "
        "join thread using (utid) where thread.name = 'kernels' and slice.depth = 0 and slice.category != 'item'"
    )
    assert {category for _, category in outside} <= {"optimizer", "wait", "slowed beside messages"}
    wrong = perfetto.query(
        "select a.name as inside, b.name as around from slice a join slice b on a.parent_id = b.id "
        "where b.category != 'item' or extract_arg(a.arg_set_id, 'args.microbatch') != "
        "extract_arg(b.arg_set_id, 'args.microbatch') and b.name not like '%&%'"
    )
    assert wrong == []
    ((deepest,),) = perfetto.query("select max(depth) from slice")
    assert deepest == 1


def test_arrows_lead_from_transfers_to_items(read):
    step, trace, perfetto = read
    # an arrow ends at the first slice of an item, or at the item itself
    rows = perfetto.query(
        "select a.category as sender, a.name as slice, a.ts + a.dur <= b.ts as after, p.name as process, "
        "coalesce(c.category, b.category) as receiver, coalesce(c.ts, b.ts) = b.ts as at_once, "
        "extract_arg(a.arg_set_id, 'args.microbatch') as sent, coalesce(c.name, b.name) as item from flow "
        "join slice a on flow.slice_out = a.id join slice b on flow.slice_in = b.id "
        "left join slice c on b.parent_id = c.id "
        "join thread_track t on b.track_id = t.id join thread using (utid) join process p using (upid)"
    )
    assert len(rows) == len(trace.arrows[0]) == (step.tasks.labels.kind == StepKind.TRANSFER).sum()
    for sender, name, after, process, receiver, at_once, microbatch, item in rows:
        assert (sender, receiver, after, at_once) == ("transfer", "item", 1, 1)
        assert process.split(" chip")[0] == name.removeprefix("to ")
        assert str(microbatch) in [part[1:] for part in item.split(" & ")]


def test_counters_are_what_was_simulated(read):
    step, trace, perfetto = read
    chips = step.tasks.begin.shape[1]
    rows = perfetto.query(
        f"select process.name as process, t.name as counter, max(value) as peak from {COUNTERS} group by 1, 2"  # noqa: S608
    )
    peaks = {process: peak for process, counter, peak in rows if counter == "memory GiB"}
    for stage, memory in enumerate(step.memory):
        process = f"stage {stage}" if chips == 1 else f"stage {stage} chip 0"
        assert peaks[process] * 2**30 == pytest.approx(memory.peak_bytes)
    carried, ports = carried_bytes(step), len(step.tasks.link_names) // (step.plan.pipeline_parallel * chips)
    used = 0
    for process, counter, _ in rows:
        if counter == "memory GiB":
            continue
        link_name, rate = counter.split(" % of ")
        words = process.split()
        chip = int(words[1]) * chips + (int(words[3]) if chips > 1 else 0)
        (port,) = [n for n in range(ports) if step.tasks.link_names[n] == link_name]
        levels = perfetto.query(
            f"select ts, value from {COUNTERS} where process.name = '{process}' and t.name = '{counter}' order by ts"  # noqa: S608
        )
        at, share = np.array(levels, float).T
        full = step.tasks.graph.network.bytes_per_s[chip * ports + port]
        assert float(rate.removesuffix(" GB/s")) == pytest.approx(full / 1e9, rel=1e-3)
        found = (share[:-1] / 100 * np.diff(at) / 1e9 * full).sum()
        assert found == pytest.approx(carried[chip * ports + port], rel=1e-3)
        assert share[-1] == 0
        used += 1
    assert used == (carried > 0).sum() == len(trace.use.link)
