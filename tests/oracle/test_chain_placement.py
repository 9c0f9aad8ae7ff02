"""The chain solver against every placement of small chains, enumerated from the definition alone."""

from __future__ import annotations

import json
import math
import os
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.placement.chain import chain_of, chain_seconds, read_chain
from dovetail.placement.chain_solver import solve_chain

PLACEMENT = Path(__file__).parents[3] / "shared" / "data" / "placement"
REFERENCE = PLACEMENT / "reference.json"

#: The oracle tries every placement: few examples in CI, thousands on command.
EXAMPLES = 2000 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 300


def every_time(document):
    """Time per batch of every placement of an instance that keeps its limits."""
    microbatches, bandwidth = document["mbsInBatch"], document["bandwidth"]
    for text, nodes in document["nodes"].items():
        width, layers = int(text), len(nodes)
        edges = [edge["communicationCost"] for edge in document["edges"][text]]
        for stages in range(1, layers + 1):
            for cuts in combinations(range(1, layers), stages - 1):
                parts = list(pairwise((0, *cuts, layers)))
                step = stage_times(document, nodes, edges, parts)
                if step is None:
                    continue
                devices = sum(
                    width if any(nodes[k]["isTensorParallelized"] for k in range(*part)) else 1 for part in parts
                )
                first = sum(nodes[k]["parameterSize"] for k in range(*parts[0]))
                for pipelines in range(1, microbatches + 1):
                    if pipelines * devices <= document["maxDevices"]:
                        rounds = math.ceil(microbatches / pipelines) + stages - 1
                        yield step * rounds + 4 * (pipelines - 1) / pipelines * first / bandwidth


def stage_times(document, nodes, edges, parts):
    """The longest stage, or None where one does not fit."""
    loads = []
    again = document["activationRecomputation"]
    for position, (low, high) in enumerate(parts):
        own = nodes[low:high]
        parameters = sum(node["parameterSize"] for node in own)
        activations = sum(node["activationSize"] for node in own)
        from_end = len(parts) - position
        stash = (edges[low - 1] if low else 0.0) if again else activations
        state = 3 if document["optimizerAlgorithm"] == "Adam" else 2
        if state * parameters + activations + (from_end - 1) * stash > document["maxMemoryPerDevice"]:
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


@st.composite
def instances(draw):
    layers = draw(st.integers(1, 7))
    # small whole numbers: equal times and limits met exactly are where a mistake would hide
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
        edges[str(width)] = [
            {"sourceId": k, "destId": k + 1, "communicationCost": draw(amount)} for k in range(layers - 1)
        ]
    return {
        "maxMemoryPerDevice": float(draw(st.integers(1, 60))), "maxDevices": draw(st.integers(1, 8)),
        "bandwidth": draw(st.sampled_from([0.5, 1.0, 4.0])), "mbsInBatch": draw(st.integers(1, 9)),
        "nodes": nodes, "edges": edges, "activationRecomputation": draw(st.booleans()),
        "optimizerAlgorithm": draw(st.sampled_from(["SGD", "Adam"])),
    }  # fmt: skip


@settings(max_examples=EXAMPLES, deadline=None)
@given(instances())
def test_the_solver_finds_the_best_of_all_placements(document):
    least = min(every_time(document), default=math.inf)
    chain = chain_of(document, "case")
    solution = solve_chain(chain)
    if math.isinf(least):
        assert (solution.status, solution.placement) == ("infeasible", None)
        return
    assert solution.status == "optimal"
    assert solution.placement is not None
    assert solution.seconds == pytest.approx(least, rel=1e-12, abs=1e-12)
    assert chain_seconds(chain, solution.placement) == solution.seconds


@pytest.mark.skipif(not REFERENCE.exists(), reason="the instances with known optima are not here")
def test_instances_with_known_optima():
    reference = json.loads(REFERENCE.read_text())
    assert len(reference) == 50
    for name, known in reference.items():
        chain = read_chain(PLACEMENT / name)
        solution = solve_chain(chain)
        optimum = known.get("optimal_time_per_batch_s")
        if optimum is None:
            assert solution.status == "infeasible", name
        else:
            assert solution.placement is not None, name
            assert solution.seconds == pytest.approx(optimum, rel=known["relative_tolerance"]), name
            assert chain_seconds(chain, solution.placement) == solution.seconds, name
