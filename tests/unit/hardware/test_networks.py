"""Networks of the catalogue and of files: tiers for any number of any chip, and plans on them."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import yaml

from dovetail import hardware
from dovetail.cost.units import tier_arrays
from dovetail.documents import validate
from dovetail.errors import InputError
from dovetail.hardware import MAX_CHIPS, network_tiers
from dovetail.hardware.network_file import NetworkSpec
from dovetail.plans.plan_file import task_of
from dovetail.plans.write import plan_document
from dovetail.step.evaluate import evaluate

NETWORKS = hardware.network_names()
#: Powers of two, and whole racks of 72 chips.
COUNTS = (*(2**n for n in range(3, 15)), 144, 576, 1152, 2304, 9216)
B200 = hardware.chip("b200")

#: Chips of the tiers, how many times less than its rate a chip gets beyond each, of 4,096 chips.
SIZES = {
    "dragonfly": [(8, 1), (512, 1), (4096, 2)],
    "fat-tree": [(8, 1), (4096, 1)],
    "fat-tree-2to1": [(8, 1), (32, 1), (4096, 2)],
    "rail-optimised": [(8, 1), (256, 1), (4096, 2)],
    "switch-576": [(512, 1), (4096, 1)],
    "switch-72": [(64, 1), (4096, 1)],
    "switch-8": [(8, 1), (4096, 1)],
    "torus-3d": [(4096, 1)],
}

FILE = {
    "name": "mine",
    "tiers": [
        {"name": "near", "size": 4, "topology": "full", "bytes_per_s": "links"},
        {"name": "far", "topology": "switch", "bytes_per_s": "100 GB/s", "latency_s": "3 us"},
    ],
}


def question(**cluster):
    return {
        "job": {"model": "llama-3.1-8b", "seq_len": 8192, "global_batch": 1024},
        "cluster": {"chip": "b200", "chips": 1024, **cluster},
        "plan": {"tensor_parallel": 4, "context_parallel": 4, "pipeline_parallel": 2, "zero_stage": 1},
    }


def step_time(document):
    task = task_of(document, "plan.yaml")
    result = evaluate(task.plan, task.job, task.cluster, task.framework)
    return result.step_time_s


def test_the_catalogue_holds_these_networks():
    assert set(NETWORKS) == set(SIZES)
    assert all(hardware.network(name).source for name in NETWORKS)
    assert all(hardware.network(name).takes_links for name in NETWORKS)


@pytest.mark.parametrize("name", SIZES)
def test_tiers_of_4096_chips(name):
    tiers = network_tiers(hardware.network(name), B200, 4096)
    assert [(tier.size, tier.oversubscription) for tier in tiers] == SIZES[name]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("chip", ["b200", "tpu-v7x", "mi355x"])
def test_any_number_of_chips_has_tiers_that_nest(name, chip):
    network, unit = hardware.network(name), hardware.chip(chip)
    for count in COUNTS:
        cluster = hardware.cluster_on(network, unit, count)  # a Cluster checks that sizes divide each other
        assert math.prod(cluster.factors) == count
        assert cluster.tiers[0].size <= network.domain_chips
        assert cluster.tiers[0].bytes_per_s == unit.link_bytes_per_s
        assert all(math.prod(tier.shape) == tier.size for tier in cluster.tiers if tier.shape)


@pytest.mark.parametrize("name", NETWORKS)
def test_groups_are_the_largest_that_are_equal(name):
    """Against every size there is, tier by tier from the inside."""
    network = hardware.network(name)
    for count in range(8, 1400, 24):
        try:
            tiers = network_tiers(network, B200, count)
        except InputError:
            fits = [n for n in range(1, network.domain_chips + 1) if count % n == 0]
            assert 3 * max(fits) < 2 * network.domain_chips, count
            continue
        inner, expected = 1, []
        for tier in network.tiers:
            most = min(tier.chips(), count)
            size = max(n for n in range(1, most + 1) if count % n == 0 and n % inner == 0)
            if size > inner:
                expected.append((tier.name, size))
                inner = size
        assert [(tier.name, tier.size) for tier in tiers] == expected, count


@pytest.mark.parametrize("name", NETWORKS)
def test_a_plan_on_it_takes_as_long_as_on_its_tiers_written_out(name):
    on_network = question(network=name)
    task = task_of(on_network, "plan.yaml")
    written = plan_document(task.plan, task.job, task.cluster, "megatron")
    assert "network" not in written["cluster"]
    assert step_time(on_network) == step_time(written) > 0


def test_tiers_written_by_hand_are_the_same():
    by_hand = [
        {"name": "scale-up", "size": 64, "topology": "switch", "bytes_per_s": "900 GB/s", "latency_s": "1.2 us",
         "in_network_reduction": True, "ports": "links"},
        {"name": "scale-out", "topology": "switch", "bytes_per_s": "50 GB/s", "latency_s": "5 us"},
    ]  # fmt: skip
    assert step_time(question(network="switch-72")) == step_time(question(tiers=by_hand))


def test_the_network_a_chip_is_sold_with_is_one_of_the_catalogue():
    sold = hardware.cluster(B200, 1024).tiers
    for name in ("switch-8", "fat-tree"):
        tiers = network_tiers(hardware.network(name), B200, 1024)
        assert [(t.size, t.bytes_per_s, t.latency_s, t.in_network_reduction) for t in tiers] == [
            (t.size, t.bytes_per_s, t.latency_s, t.in_network_reduction) for t in sold
        ]


def test_a_taper_costs_exchanges_time_and_rails_take_it_further_out():
    names, times = ("fat-tree", "rail-optimised", "fat-tree-2to1"), []
    for name in names:
        asked = question(network=name, chips=512)
        asked["job"] |= {"model": "deepseek-v2", "seq_len": 4096}
        asked["plan"] = {"expert_parallel": 32, "zero_stage": 1, "recompute": "full"}
        times.append(step_time(asked))
    assert times[0] == times[1] < times[2]
    # rings cross the edge of a leaf once for all its chips
    rings = {"tensor_parallel": 8, "zero_stage": 1}
    assert len({step_time({**question(network=name), "plan": rings}) for name in names}) == 1


def test_a_domain_larger_than_the_chips_own_is_still_of_its_links():
    own, larger = hardware.cluster(B200, 8).tiers[0], network_tiers(hardware.network("switch-72"), B200, 64)[0]
    assert (own.size, larger.size) == (8, 64)
    ours, theirs = tier_arrays(B200, own), tier_arrays(B200, larger)
    assert (ours.efficiency, ours.launch_s) == (theirs.efficiency, theirs.launch_s)
    assert tier_arrays(B200, replace(larger, ports=None)).launch_s > theirs.launch_s


def test_larger_scale_up_domains_are_no_slower():
    times = [step_time(question(network=f"switch-{size}")) for size in (8, 72)]
    assert all(outer <= inner for inner, outer in pairwise(times))


def test_files_of_ones_own(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(FILE))
    network = hardware.network(str(path))
    assert (network.domain_chips, network.tiers[-1].chips(), network.title) == (4, MAX_CHIPS, "mine")
    near, far = network_tiers(network, B200, 64)
    assert (near.size, near.bytes_per_s, near.latency_s, near.in_network_reduction) == (4, 900e9, 1.2e-6, False)
    assert (far.size, far.bytes_per_s, far.latency_s) == (64, 100e9, pytest.approx(3e-6))
    # from a cluster file, by a path from its folder, and from a plan file
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(yaml.safe_dump({"name": "ours", "chip": "b200", "chips": 64, "network": "mine.yaml"}))
    assert hardware.cluster(str(cluster)).tiers == (near, far)
    plan = question(network="mine.yaml", chips=64)
    assert task_of(plan, "plan.yaml", tmp_path).cluster.tiers == (near, far)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"size": 1}, "tiers.0.size"),
        ({"bytes_per_s": "link"}, "it should be 'links' or 'network'"),
        ({"bytes_per_s": "1 GB/s"}, "tiers.0.latency_s: is missing"),
        ({"topology": "torus"}, "tiers.0.shape: is missing"),
        ({"name": "far"}, "each should have a name of its own"),
        ({"size": 2**20}, "each should be larger than the one before"),
    ],
)
def test_wrong_files_are_refused_in_a_sentence(change, sentence, refusal):
    wrong = {**FILE, "tiers": [{**FILE["tiers"][0], **change}, FILE["tiers"][1]]}
    assert sentence in refusal(validate, NetworkSpec, wrong, "mine.yaml")


def test_wrong_questions_are_refused_in_a_sentence(refusal):
    network = hardware.network("switch-72")
    assert "did you mean 'fat-tree'" in refusal(hardware.network, "fat-trees")
    assert "80 do not fill groups of 72" in refusal(network_tiers, network, B200, 80)
    assert "has no network beyond its links" in refusal(network_tiers, network, hardware.chip("wse-3"), 1024)
    assert "cannot be combined with tiers" in refusal(task_of, question(network="switch-8", tiers=[{
        "name": "a", "topology": "switch", "bytes_per_s": 1e9, "latency_s": 1e-6}]), "plan.yaml")  # fmt: skip
    named = {**question(), "cluster": {"name": "hgx-b200", "network": "switch-8"}}
    assert "cluster.network: cannot be combined with a named cluster" in refusal(task_of, named, "plan.yaml")
    assert "'switch-9' is not in the catalogue" in refusal(task_of, question(network="switch-9"), "plan.yaml")
