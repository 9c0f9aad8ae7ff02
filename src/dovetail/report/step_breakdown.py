"""Where the time of a simulated step goes: kernels, waits and idle time of a stage, and how full links are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.report.step_items import (
    COMPUTING,
    Floats,
    Ints,
    busy_shares,
    computing_s,
    item_spans,
    num_stages,
    stage_chips,
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


@dataclass(frozen=True, slots=True)
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


def stage_breakdown(simulation: Simulation, stage: int) -> dict[str, float]:
    """Seconds of a stage's first chip by what it does; they add up to the step."""
    tasks, timeline = simulation.tasks, simulation.timeline
    chip = stage * stage_chips(simulation)
    kernels = dict(zip(COMPUTING, computing_s(simulation)[chip].tolist(), strict=True))
    spans = item_spans(simulation)
    mine = spans.stage == stage
    inside = float((spans.end_s[mine, 0] - spans.begin_s[mine, 0]).sum())
    labels = tasks.labels
    of_chip = labels.chip == chip
    waits = of_chip & (labels.kind == StepKind.WAIT) & (labels.microbatch >= 0)
    host = float((timeline.end_s[waits] - timeline.start_s[waits]).sum())
    worked = sum(seconds for kind, seconds in kernels.items() if kind is not StepKind.OPTIMIZER)
    update = of_chip & (labels.kind == StepKind.OPTIMIZER)
    last, updating = float(spans.end_s[mine, 0].max()), float(timeline.start_s[update].min())
    rest = simulation.step_time_s - updating - kernels[StepKind.OPTIMIZER]
    return {
        **{KERNELS[kind]: seconds for kind, seconds in kernels.items()},
        "waiting for messages": max(inside - worked - host, 0.0),
        "waiting for the host": host,
        "idle between microbatches": max(last - inside, 0.0),
        "gradients of the step": max(updating - last, 0.0),
        "until the next step": max(rest, 0.0),
    }


def link_shares(simulation: Simulation) -> list[LinkShare]:
    """By kind of link that carries anything, the fullest first."""
    names = np.array(simulation.tasks.link_names)
    ports = len(names) // (num_stages(simulation) * stage_chips(simulation))
    shares = carried_bytes(simulation) / simulation.tasks.graph.network.bytes_per_s / simulation.step_time_s
    found: list[LinkShare] = []
    for name in dict.fromkeys(names.tolist()):
        (links,) = np.nonzero(names == name)
        if shares[links].max() > 0:
            fullest = int(links[np.argmax(shares[links])])
            stage = fullest // ports // stage_chips(simulation)
            found.append(LinkShare(name, float(shares[fullest]), stage, float(shares[links].mean())))
    return sorted(found, key=lambda link: -link.busiest_share)


def carried_bytes(simulation: Simulation) -> Floats:
    """Bytes that cross every link in the step."""
    graph = simulation.tasks.graph
    sent = np.bincount(graph.route[graph.route >= 0], graph.bytes[graph.route >= 0], graph.network.num_routes)
    return np.bincount(
        graph.network.link, sent[entry_routes(simulation)] * graph.network.part, len(graph.network.bytes_per_s)
    )


def entry_routes(simulation: Simulation) -> Ints:
    """The route that each entry of the network's routes belongs to."""
    network = simulation.tasks.graph.network
    return np.repeat(np.arange(network.num_routes), np.diff(network.starts))
