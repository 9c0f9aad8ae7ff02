"""Clusters of the catalogue, scaled, built around a chip, and of a user's file."""

from __future__ import annotations

import copy
import pickle

import pytest
import yaml

from dovetail import hardware
from dovetail.hardware import Cluster, Tier

#: What their sources state: chip, chips, (tier size, GB/s per chip and direction) from the inside out.
PUBLISHED = {
    "cloudmatrix384": ("ascend-910c", 384, [(384, 392)]),
    "deepseek-h800": ("h800-sxm", 2048, [(8, 200), (2048, 50)]),
    "dgx-a100-40gb": ("a100-40gb", 1120, [(8, 300), (1120, 25)]),
    "dgx-a100-80gb": ("a100-80gb", 1120, [(8, 300), (1120, 25)]),
    "eos": ("h100-sxm", 4608, [(8, 450), (4608, 50)]),
    "frontier": ("mi250x", 37632, [(4, 250), (37632, 25)]),
    "gb200-nvl72": ("gb200", 576, [(72, 900), (576, 50)]),
    "gb300-nvl72": ("gb300", 576, [(72, 900), (576, 100)]),
    "hgx-b200": ("b200", 1024, [(8, 900), (1024, 50)]),
    "hgx-h100": ("h100-sxm", 1024, [(8, 450), (1024, 50)]),
    "hgx-h200": ("h200-sxm", 1024, [(8, 450), (1024, 50)]),
    "jean-zay": ("a100-80gb", 384, [(8, 300), (384, 4 * 12.5 / 8)]),
    "meta-24k-roce": ("h100-sxm", 24576, [(8, 450), (3072, 50), (24576, 50)]),
    "mi300x-roce": ("mi300x", 1024, [(8, 448), (1024, 50)]),
    "selene": ("a100-80gb", 4480, [(8, 300), (4480, 25)]),
    "tpu-v4-pod": ("tpu-v4", 4096, [(4096, 300)]),
    "tpu-v5e-pod": ("tpu-v5e", 256, [(256, 200)]),
    "tpu-v5p-pod": ("tpu-v5p", 8960, [(8960, 600)]),
    "tpu-v6e-pod": ("tpu-v6e", 256, [(256, 400)]),
    "tpu-v7x-pod": ("tpu-v7x", 9216, [(9216, 600)]),
    "trn2": ("trainium2", 1024, [(16, 512), (1024, 25)]),
    "trn2-ultra": ("trainium2", 1024, [(16, 512), (64, 128), (1024, 25)]),
}


def sizes(cluster: Cluster) -> list[int]:
    return [tier.size for tier in cluster.tiers]


def test_the_catalogue_holds_these_clusters():
    assert list(hardware.cluster_names()) == sorted(PUBLISHED)
    assert not set(hardware.cluster_names()) & set(hardware.chip_names())


@pytest.mark.parametrize("name", PUBLISHED)
def test_figures_of_their_sources(name):
    chip, chips, tiers = PUBLISHED[name]
    cluster = hardware.cluster(name)
    assert (cluster.name, cluster.chip.name, cluster.chips) == (name, chip, chips)
    assert [(tier.size, tier.bytes_per_s / 1e9) for tier in cluster.tiers] == tiers
    assert cluster.source
    assert cluster.doubts


def test_switches_add_up_from_the_third_nvswitch_on():
    reducing = {name for name in PUBLISHED if hardware.cluster(name).tiers[0].in_network_reduction}
    with_switches = {name for name, (chip, _, _) in PUBLISHED.items() if chip[0] in "hb" or chip.startswith("gb")}
    assert reducing == with_switches


def test_pods_of_the_llama_cluster_are_oversubscribed():
    assert [tier.oversubscription for tier in hardware.cluster("meta-24k-roce").tiers] == [1, 1, 7]


@pytest.mark.parametrize(
    ("name", "chips", "expected"),
    [
        ("selene", 64, [8, 64]),
        ("selene", 8, [8]),
        ("selene", 2, [2]),
        ("selene", 1, []),
        ("selene", 10_000, [8, 10_000]),
        ("gb200-nvl72", 2496, [64, 2496]),
        ("meta-24k-roce", 16_384, [8, 2048, 16_384]),
        ("meta-24k-roce", 1024, [8, 1024]),
        ("tpu-v4-pod", 6144, [3072, 6144]),
        ("tpu-v5e-pod", 8192, [256, 8192]),
        ("trn2-ultra", 32, [16, 32]),
        ("h100-sxm", 1024, [8, 1024]),
        ("gb300", 256, [64, 256]),
    ],
)
def test_a_cluster_of_another_size(name, chips, expected):
    cluster = hardware.cluster(name, chips=chips)
    assert cluster.chips == chips
    assert sizes(cluster) == expected


@pytest.mark.parametrize("name", hardware.chip_names())
def test_every_chip_has_a_network_of_its_own(name):
    chip = hardware.chip(name)
    for chips in (1, 2, 16, chip.tiers[0].size):
        cluster = hardware.cluster(name, chips=min(chips, chip.tiers[-1].size))
        assert cluster.chip is chip
        assert cluster.chips == 1 or cluster.tiers[0].bytes_per_s == chip.link_bytes_per_s
    assert hardware.cluster(chip, chips=2) == hardware.cluster(name, chips=2)


def test_factors_and_the_tier_of_a_group():
    cluster = hardware.cluster("meta-24k-roce")
    assert cluster.factors == (8, 384, 8)
    names = [tier.name if (tier := cluster.tier_of(group)) else None for group in (1, 2, 8, 9, 3072, 24_576)]
    assert names == [None, "nvlink4", "nvlink4", "pod", "pod", "aggregation"]


def test_a_cluster_can_be_hashed_and_sent_elsewhere():
    cluster = hardware.cluster("selene", chips=64)
    assert hash(cluster) == hash(hardware.cluster("selene", chips=64))
    assert copy.deepcopy(cluster) == cluster
    assert pickle.dumps(cluster)


def test_tiers_must_nest(refusal):
    chip = hardware.chip("h100-sxm")
    inner, odd = Tier("a", 8, "switch", 1e9, 0.0), Tier("b", 12, "switch", 1e9, 0.0)
    assert "multiple" in refusal(Cluster, "mine", chip, 12, (inner, odd))
    assert "all 16 chips" in refusal(Cluster, "mine", chip, 16, (inner,))


def test_a_cluster_file_with_a_chip_of_the_catalogue(tmp_path):
    path = tmp_path / "cluster.yaml"
    tiers = [
        {"name": "nvlink", "size": 8, "topology": "switch", "bytes_per_s": "450 GB/s", "latency_s": "1 us"},
        {"name": "ethernet", "topology": "switch", "bytes_per_s": "100 Gbit/s", "latency_s": 2e-5},
    ]
    document = {"name": "mine", "chip": "h100-sxm", "chips": 64, "tiers": tiers, "doubts": {"ethernet": "guessed"}}
    path.write_text(yaml.safe_dump(document))
    cluster = hardware.cluster(str(path))
    assert cluster.chip is hardware.chip("h100-sxm")
    assert [(tier.size, tier.bytes_per_s) for tier in cluster.tiers] == [(8, 450e9), (64, 12.5e9)]
    assert cluster.doubts == (("ethernet", "guessed"),)
    assert sizes(hardware.cluster(str(path), chips=16)) == [8, 16]
    assert sizes(hardware.cluster(str(path), chips=12)) == [6, 12]


def test_a_cluster_file_without_tiers_takes_the_chips_own(tmp_path):
    path = tmp_path / "cluster.json"
    path.write_text('{"name": "mine", "chip": "tpu-v5e", "chips": 64}')
    (tier,) = hardware.cluster(str(path)).tiers
    assert (tier.name, tier.shape, tier.topology) == ("ici", (8, 8), "mesh")


@pytest.mark.parametrize("chips", [0, -1, 1.0, True, "8", 2**20 + 1, None])
def test_a_wrong_number_of_chips(chips, refusal):
    assert "chips" in refusal(hardware.cluster, "h100-sxm", chips)


def test_a_wrong_name(refusal):
    assert "did you mean 'selene'" in refusal(hardware.cluster, "selenee")
    assert "did you mean 'h100-sxm'" in refusal(hardware.cluster, "h100-smx", 8)
    assert "did you mean 'h100-sxm'" in refusal(hardware.chip, "h100-smx")
    assert "technology" in refusal(hardware.technology, "9nm")
