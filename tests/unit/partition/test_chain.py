"""Chains of layers: reading them, wrong files, and `dovetail place`."""

import json
import subprocess
import sys

import numpy as np
import pytest

from dovetail.errors import InputError
from dovetail.partition.chain import ChainPlacement, chain_of, chain_seconds
from dovetail.partition.chain_solver import solve_chain
from timing import within


def document(layers=3, **changes):
    nodes = [
        {
            "id": k, "parameterSize": 1.0, "activationSize": 1.0, "optimalLatencyFw": 1.0, "optimalLatencyBw": 2.0,
            "isTensorParallelized": True, "energy": 0.0,
        }
        for k in range(layers)
    ]  # fmt: skip
    edges = [{"sourceId": k, "destId": k + 1, "communicationCost": 1.0} for k in range(layers - 1)]
    whole = {
        "maxMemoryPerDevice": 100.0, "maxDevices": 4, "bandwidth": 1.0, "mbsInBatch": 8,
        "nodes": {"1": nodes}, "edges": {"1": edges}, "activationRecomputation": False,
        "optimizerAlgorithm": "SGD", "fixedPP": 1, "fixedTMPC": 1, "fixedDP": 1, "numTransformerLayers": layers,
    }  # fmt: skip
    return whole | changes


def call(path, *options):
    return subprocess.run(
        [sys.executable, "-m", "dovetail", "place", str(path), *options], capture_output=True, text=True, timeout=120
    )


def test_a_placement_costs_what_the_definition_says():
    chain = chain_of(document(), "case")
    whole = ChainPlacement(chain.layers[0], (3,), 4)
    # three layers of 1 + 2 seconds, two rounds of four pipelines, gradients of three bytes
    assert chain_seconds(chain, whole) == pytest.approx(9 * 2 + 4 * 3 / 4 * 3)
    two = ChainPlacement(chain.layers[0], (2, 3), 1)
    assert chain_seconds(chain, two) == pytest.approx((6 + 1) * 9)
    assert chain_seconds(chain, ChainPlacement(chain.layers[0], (1, 2, 3), 2)) == np.inf  # six devices of four


def test_layers_follow_the_edges_whatever_their_order():
    straight, turned = document(), document()
    turned["nodes"]["1"].reverse()
    turned["edges"]["1"].reverse()
    assert chain_of(turned, "case").layers[0].ids == (0, 1, 2)
    assert solve_chain(chain_of(turned, "case")).seconds == solve_chain(chain_of(straight, "case")).seconds


def test_of_equal_placements_the_smallest_width_and_the_fewest_stages():
    equal = document(6, maxDevices=64)
    nodes = [
        node | {"optimalLatencyFw": 0.0, "optimalLatencyBw": 0.0, "parameterSize": 0.0} for node in equal["nodes"]["1"]
    ]
    edges = [edge | {"communicationCost": 0.0} for edge in equal["edges"]["1"]]
    equal |= {"nodes": {"4": nodes, "2": nodes, "8": nodes}, "edges": {"4": edges, "2": edges, "8": edges}}
    placement = solve_chain(chain_of(equal, "case")).placement
    assert placement is not None
    assert (placement.layers.width, placement.ends) == (2, (6,))


@pytest.mark.parametrize("layers", range(2, 60, 2))
def test_memory_that_two_stages_fill_to_the_last_byte_is_enough(layers):
    whole = document(layers, maxDevices=2, maxMemoryPerDevice=0.3 * (layers // 2), activationRecomputation=True)
    for node in whole["nodes"]["1"]:
        node |= {"parameterSize": 0.1, "activationSize": 0.1}
    for edge in whole["edges"]["1"]:
        edge["communicationCost"] = 0.0
    solution = solve_chain(chain_of(whole, "case"))
    assert solution.placement is not None
    assert solution.placement.ends == (layers // 2, layers)
    assert np.isfinite(solution.seconds)


def test_many_layers_on_one_device_each_are_solved_in_time_and_memory():
    mixed = document(700, maxDevices=2000, maxMemoryPerDevice=400.0, mbsInBatch=512)
    mixed["activationRecomputation"] = True
    for k, node in enumerate(mixed["nodes"]["1"]):
        node |= {"isTensorParallelized": k % 2 == 0, "optimalLatencyFw": 1.0 + k % 7 / 10}
    mixed |= {"nodes": {"4": mixed["nodes"]["1"]}, "edges": {"4": mixed["edges"]["1"]}}
    chain = chain_of(mixed, "case")
    solve_chain(chain)
    # a tenth of that; tables by every number of such stages take seconds and gigabytes
    with within(1):
        solution = solve_chain(chain)
    assert solution.placement is not None
    assert chain_seconds(chain, solution.placement) == solution.seconds


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"maxDevices": 0}, "maxDevices"),
        ({"bandwidth": 0.0}, "bandwidth"),
        ({"optimizerAlgorithm": "Lion"}, "optimizerAlgorithm"),
        ({"surprise": 1}, "surprise"),
        ({"nodes": {}}, "nodes"),
        ({"edges": {}}, "edges.1"),
        ({"edges": {"1": [{"sourceId": 0, "destId": 1, "communicationCost": 1.0}] * 2}}, "one chain"),
        ({"edges": {"1": [{"sourceId": k, "destId": 1 - k, "communicationCost": 1.0} for k in (0, 1)]}}, "one chain"),
    ],
)
def test_wrong_files_are_answered_by_a_sentence(change, words):
    with pytest.raises(InputError, match=words) as error:
        chain_of(document(**change), "case.json")
    assert str(error.value).count("\n") == 0


def test_widths_are_whole_numbers():
    wrong = document()
    wrong["nodes"]["wide"] = wrong["nodes"].pop("1")
    with pytest.raises(InputError, match="wide"):
        chain_of(wrong, "case.json")


def test_the_command_answers_with_the_fields_others_rely_on(tmp_path):
    path = tmp_path / "chain.json"
    path.write_text(json.dumps(document()))
    done = call(path, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    solution = solve_chain(chain_of(document(), "case"))
    assert answer["time_per_batch_s"] == solution.seconds
    assert answer["certificate"] == {"status": "optimal", "lower_bound_s": solution.seconds, "gap": 0.0}
    assert [layer for stage in answer["stages"] for layer in stage["layers"]] == [0, 1, 2]
    assert {"tensor_parallel", "data_parallel", "timing"} < answer.keys()
    view = call(path)
    assert "proven optimal" in view.stdout


def test_a_chain_that_fits_nowhere_exits_with_3(tmp_path):
    path = tmp_path / "chain.json"
    path.write_text(json.dumps(document(maxMemoryPerDevice=1.0)))
    done = call(path, "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["certificate"]["status"] == "infeasible"
    assert done.stderr.count("\n") == 1


def test_a_file_that_is_not_there_exits_with_2(tmp_path):
    done = call(tmp_path / "none.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
