"""Every placement of a small instance of the chain problem, from the definition alone; and random instances."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations, pairwise

from hypothesis import strategies as st


@dataclass(frozen=True)
class Placed:
    """One placement that keeps its limits: the width, where stages start and end, its longest one and its time."""

    width: int
    parts: tuple[tuple[int, int], ...]
    longest: float
    seconds: float
    alone: tuple[bool, ...]


def every_placement(document):
    """All of them."""
    microbatches, bandwidth = document["mbsInBatch"], document["bandwidth"]
    for text, nodes in document["nodes"].items():
        width, layers = int(text), len(nodes)
        edges = [edge["communicationCost"] for edge in document["edges"][text]]
        for stages in range(1, layers + 1):
            for cuts in combinations(range(1, layers), stages - 1):
                parts = tuple(pairwise((0, *cuts, layers)))
                step = longest_stage(document, nodes, edges, parts)
                if step is None:
                    continue
                alone = tuple(not any(nodes[k]["isTensorParallelized"] for k in range(*part)) for part in parts)
                devices = sum(1 if one else width for one in alone)
                first = sum(nodes[k]["parameterSize"] for k in range(*parts[0]))
                for pipelines in range(1, microbatches + 1):
                    if pipelines * devices <= document["maxDevices"]:
                        rounds = math.ceil(microbatches / pipelines) + stages - 1
                        seconds = step * rounds + 4 * (pipelines - 1) / pipelines * first / bandwidth
                        yield Placed(width, parts, step, seconds, alone)


def longest_stage(document, nodes, edges, parts):
    """The longest stage, or None where one does not fit."""
    loads = []
    again = document["activationRecomputation"]
    for position, (low, high) in enumerate(parts):
        own = nodes[low:high]
        from_end = len(parts) - position
        if held(document, nodes, edges, low, high, from_end) > document["maxMemoryPerDevice"]:
            return None
        forward = sum(node["optimalLatencyFw"] for node in own)
        backward = sum(node["optimalLatencyBw"] for node in own)
        t_in = edges[low - 1] / document["bandwidth"] if low else 0.0
        t_out = edges[high - 1] / document["bandwidth"] if high < len(nodes) else 0.0
        if again and from_end > 1:
            loads.append(t_in + forward + max(forward, t_out) + backward)
        else:
            loads.append(t_in + forward + t_out + backward)
    return max(loads)


def held(document, nodes, edges, low, high, from_end):
    """Bytes of a stage."""
    parameters = sum(node["parameterSize"] for node in nodes[low:high])
    activations = sum(node["activationSize"] for node in nodes[low:high])
    stash = (edges[low - 1] if low else 0.0) if document["activationRecomputation"] else activations
    state = 3 if document["optimizerAlgorithm"] == "Adam" else 2
    return state * parameters + activations + (from_end - 1) * stash


@st.composite
def instances(draw, most_layers=7):
    """Small whole numbers, often the same: equal times and limits met exactly are where a mistake would hide."""
    layers = draw(st.integers(1, most_layers))
    amount = st.integers(0, 6).map(float)
    widths = draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=3, unique=True))
    cut = draw(st.lists(st.booleans(), min_size=layers, max_size=layers))
    nodes, edges = {}, {}
    for width in widths:
        nodes[str(width)] = [
            {
                "id": k, "parameterSize": draw(amount), "activationSize": draw(amount),
                "optimalLatencyFw": draw(amount), "optimalLatencyBw": draw(amount), "isTensorParallelized": cut[k],
            }
            for k in range(layers)
        ]  # fmt: skip
        handed = draw(st.sampled_from([amount, st.just(draw(amount))]))
        edges[str(width)] = [
            {"sourceId": k, "destId": k + 1, "communicationCost": draw(handed)} for k in range(layers - 1)
        ]
    document = {
        "maxMemoryPerDevice": float(draw(st.integers(1, 60))), "maxDevices": draw(st.integers(1, 8)),
        "bandwidth": draw(st.sampled_from([0.5, 1.0, 4.0])), "mbsInBatch": draw(st.integers(1, 9)),
        "nodes": nodes, "edges": edges, "activationRecomputation": draw(st.booleans()),
        "optimizerAlgorithm": draw(st.sampled_from(["SGD", "Adam"])),
    }  # fmt: skip
    if draw(st.booleans()):
        # just what some stage needs
        width, low, from_end = (
            draw(st.sampled_from(widths)),
            draw(st.integers(0, layers - 1)),
            draw(st.integers(1, layers)),
        )
        high = draw(st.integers(low + 1, layers))
        costs = [edge["communicationCost"] for edge in edges[str(width)]]
        document["maxMemoryPerDevice"] = max(1.0, held(document, nodes[str(width)], costs, low, high, from_end))
    return document
