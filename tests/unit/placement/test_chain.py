"""Chains of layers: reading them, wrong files, and `dovetail place`."""

import json
import subprocess
import sys

import numpy as np
import pytest

from dovetail.errors import InputError
from dovetail.placement.chain import ChainPlacement, chain_of, chain_seconds
from dovetail.placement.chain_solver import solve_chain


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
    assert "proven the least" in view.stdout


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
