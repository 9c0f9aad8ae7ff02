"""Where the time of a simulated step goes: kernels, waits and idle time of a stage, and how full links are."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Bools, Floats, Ints
from dovetail.frozen import frozen
from dovetail.report.step_items import (
    COMPUTING,
    busy_shares,
    computing_s,
    item_spans,
    num_stages,
    stage_chips,
    summed_by,
)
from dovetail.simulation.layer_steps import StepKind
from dovetail.simulation.simulate import Simulation

#: What kinds of kernels are called in a breakdown.
KERNELS = {
    StepKind.FORWARD: "forward",
    StepKind.RECOMPUTE: "recompute",
    StepKind.INPUT_GRADIENT: "input gradients",
    StepKind.WEIGHT_GRADIENT: "weight gradients",
    StepKind.OPTIMIZER: "optimizer",
}


@frozen
class LinkShare:
    """How full links of one kind are: of all they could have carried in the step, the part they did carry."""

    name: str
    busiest_share: float
    #: the stage whose chip has it
    busiest_stage: int
    mean_share: float


def busiest_stage(simulation: Simulation) -> int:
    """The stage whose kernels run longest."""
    return int(np.argmax(busy_shares(simulation)))


def stage_breakdowns(simulation: Simulation) -> list[dict[str, float]]:
    """Seconds of every stage's first chip by what it does; they add up to the step."""
    timeline, labels = simulation.timeline, simulation.tasks.labels
    stages, chips = num_stages(simulation), stage_chips(simulation)
    kernels = computing_s(simulation)[::chips]
    spans = item_spans(simulation)
    inside = summed_by(spans.stage, spans.runs * (spans.end_s[:, 0] - spans.begin_s[:, 0]), stages)
    lasts = spans.end_s[np.append(spans.stage[1:] != spans.stage[:-1], True), 0]
    took = simulation.tasks.task_runs * (timeline.end_s - timeline.start_s)
    by_kind: list[Floats] = []
    for kind in (StepKind.WAIT, StepKind.SLOWED):
        (tasks,) = np.nonzero((labels.kind == kind) & (labels.microbatch >= 0))
        by_kind.append(summed_by(labels.chip[tasks], took[tasks], stages * chips)[::chips])
    host, slowed = by_kind
    updating = np.full(stages * chips, np.inf)
    (updates,) = np.nonzero(labels.kind == StepKind.OPTIMIZER)
    np.minimum.at(updating, labels.chip[updates], timeline.start_s[updates])
    updating = updating[::chips]
    optimizer = kernels[:, COMPUTING.index(StepKind.OPTIMIZER)]
    parts = {
        **{name: kernels[:, COMPUTING.index(kind)] for kind, name in KERNELS.items()},
        "slowed beside messages": slowed,
        "waiting for messages": inside - (kernels.sum(axis=1) - optimizer) - host - slowed,
        "waiting for the host": host,
        "idle in the pipeline": lasts - inside,
        "until all gradients are reduced": updating - lasts,
        "between steps": simulation.step_time_s - updating - optimizer,
    }
    # differences of sums may be below nothing by their last digits
    return [{name: max(float(seconds[stage]), 0.0) for name, seconds in parts.items()} for stage in range(stages)]


def link_shares(simulation: Simulation) -> list[LinkShare]:
    """By kind of port that carries anything, the fullest first; stores off wafers are no ports."""
    tasks = simulation.tasks
    names = np.array(tasks.link_names[: tasks.port_links])
    shares = link_utilisation(simulation)
    by_link: list[LinkShare] = []
    for name in dict.fromkeys(names.tolist()):
        (links,) = np.nonzero(names == name)
        if shares[links].max() > 0:
            fullest = int(links[np.argmax(shares[links])])
            stage = fullest // tasks.chip_links // stage_chips(simulation)
            by_link.append(LinkShare(name, float(shares[fullest]), stage, float(shares[links].mean())))
    return sorted(by_link, key=lambda link: -link.busiest_share)


def store_shares(simulation: Simulation) -> list[float]:
    """By wafer, of all that the link to its store could have carried, the part it did; empty without stores."""
    return link_utilisation(simulation)[simulation.tasks.port_links :].tolist()


def link_utilisation(simulation: Simulation, tasks: Bools | None = None) -> Floats:
    """By link the part of what it could have carried in the step that it did carry, of all tasks or of some."""
    could = simulation.tasks.graph.network.bytes_per_s * simulation.step_time_s
    return carried_bytes(simulation, tasks) / could


def carried_bytes(simulation: Simulation, tasks: Bools | None = None) -> Floats:
    """Bytes that cross every link in the step, of all tasks or of some."""
    graph = simulation.tasks.graph
    sending = graph.route >= 0 if tasks is None else (graph.route >= 0) & tasks
    bytes_of = graph.bytes[sending] * simulation.tasks.task_runs[sending]
    sent = summed_by(graph.route[sending], bytes_of, graph.network.num_routes)
    return summed_by(
        graph.network.link, sent[entry_routes(simulation)] * graph.network.part, len(graph.network.bytes_per_s)
    )


def entry_routes(simulation: Simulation) -> Ints:
    """The route that each entry of the network's routes belongs to."""
    network = simulation.tasks.graph.network
    return np.repeat(np.arange(network.num_routes), np.diff(network.starts))
