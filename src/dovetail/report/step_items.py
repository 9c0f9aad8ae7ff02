"""When the items of a simulated step ran: a microbatch's forward or backward through a chunk of layers."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.frozen import frozen
from dovetail.pipeline.work_order import WorkKind, WorkOrder
from dovetail.simulation.layer_steps import StepKind
from dovetail.simulation.simulate import Simulation

#: In short, as papers write them; a backward that leaves weight gradients for later is one all the same.
LETTERS = {
    WorkKind.FORWARD: "F",
    WorkKind.BACKWARD: "B",
    WorkKind.INPUT_GRADIENT: "B",
    WorkKind.WEIGHT_GRADIENT: "W",
}

WORDS = {
    WorkKind.FORWARD: "forward",
    WorkKind.BACKWARD: "backward",
    WorkKind.INPUT_GRADIENT: "input gradient",
    WorkKind.WEIGHT_GRADIENT: "weight gradient",
}

#: What a chip computes; the other kinds are waits and messages.
COMPUTING = (
    StepKind.FORWARD,
    StepKind.RECOMPUTE,
    StepKind.INPUT_GRADIENT,
    StepKind.WEIGHT_GRADIENT,
    StepKind.OPTIMIZER,
)


@frozen
class ItemSpans:
    """Items in the order of their stages and times; two that run together are one, called after the first."""

    item: Ints
    stage: Ints
    #: items × simulated chips of a stage
    begin_s: Floats
    end_s: Floats
    #: how often each comes: more than once where it stands for those of skipped periods
    runs: Ints


def item_spans(simulation: Simulation) -> ItemSpans:
    """When each item began and ended."""
    tasks, timeline = simulation.tasks, simulation.timeline
    order = tasks.order
    (item,) = np.nonzero(~np.append(False, order.joined[:-1]))
    begin_s, end_s = timeline.start_s[tasks.begin[item]], timeline.end_s[tasks.end[item]]
    return ItemSpans(item, order.stage[item], begin_s, end_s, tasks.runs[item])


def skipped_times(simulation: Simulation) -> list[list[tuple[float, float]]]:
    """By stage, from when until when its first chip repeats items that were not played."""
    spans = item_spans(simulation)
    times: list[list[tuple[float, float]]] = [[] for _ in range(num_stages(simulation))]
    ends = (spans.runs[:-1] > 1) & (spans.runs[1:] == 1) & (spans.stage[:-1] == spans.stage[1:])
    for last in np.nonzero(ends)[0].tolist():
        times[int(spans.stage[last])].append((float(spans.end_s[last, 0]), float(spans.begin_s[last + 1, 0])))
    return times


def item_name(order: WorkOrder, item: int) -> str:
    """An item in short, F3 or B3; with its partner where two run together."""
    name = f"{LETTERS[WorkKind(int(order.kind[item]))]}{order.microbatch[item]}"
    return f"{name} & {item_name(order, item + 1)}" if order.joined[item] else name


def num_stages(simulation: Simulation) -> int:
    """Stages of the pipeline."""
    return simulation.tasks.order.pipeline.num_stages


def stage_chips(simulation: Simulation) -> int:
    """Chips of a stage that are simulated."""
    return simulation.tasks.begin.shape[1]


def stage_names(simulation: Simulation) -> list[str]:
    """What every simulated chip is called."""
    chips = stage_chips(simulation)
    stages = range(num_stages(simulation))
    if chips == 1:
        return [f"stage {stage}" for stage in stages]
    return [f"stage {stage} chip {chip}" for stage in stages for chip in range(chips)]


def store_names(simulation: Simulation) -> list[str]:
    """What the stores of wafers are called, where the plan uses them."""
    stores = len(simulation.tasks.link_names) - simulation.tasks.port_links
    return [f"store of wafer {wafer}" for wafer in range(stores)]


def computing_s(simulation: Simulation) -> Floats:
    """Seconds in which kernels run, by simulated chip and kind of step."""
    labels, timeline = simulation.tasks.labels, simulation.timeline
    chips = num_stages(simulation) * stage_chips(simulation)
    key = labels.chip * len(StepKind) + labels.kind
    took = simulation.tasks.task_runs * (timeline.end_s - timeline.start_s)
    seconds = summed_by(key, took, chips * len(StepKind))
    return seconds.reshape(chips, len(StepKind))[:, list(COMPUTING)]


def summed_by(key: Ints, values: Floats, count: int) -> Floats:
    """The sum of values for each of so many keys."""
    sums = np.zeros(count)
    np.add.at(sums, key, values)
    return sums


def busy_shares(simulation: Simulation) -> Floats:
    """By stage the part of the step in which kernels run, the mean of its chips."""
    seconds = computing_s(simulation).sum(axis=1)
    return seconds.reshape(num_stages(simulation), -1).mean(axis=1) / simulation.step_time_s
