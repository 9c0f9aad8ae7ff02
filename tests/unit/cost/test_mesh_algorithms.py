"""Collectives on meshes: figures known by hand, and the choice among algorithms."""

from __future__ import annotations

from itertools import pairwise

import pytest

from dovetail.cost.mesh import DieMesh, MeshCollectiveKind, best, collective, lower_bound, on_components
from dovetail.cost.mesh.rings import ring_dies, ring_legs
from dovetail.errors import InputError
from dovetail.layout import CollectiveKind

SIZES = [(rows, cols) for rows in range(1, 7) for cols in range(1, 9) if rows * cols > 1]


def busiest(algorithm: str, kind: MeshCollectiveKind, rows: int, cols: int) -> float:
    made = collective(algorithm, kind, DieMesh(rows, cols), 1.0)
    assert made is not None
    return made.busiest_bytes


@pytest.mark.parametrize(
    ("size", "packed", "ring"), [((4, 4), 0.625, 0.9375), ((6, 8), 47 / 82, 47 / 48), ((1, 8), 1, 1.75)]
)
def test_published_figures_of_all_reduces(size, packed, ring):
    assert busiest("tree_packing", MeshCollectiveKind.ALL_REDUCE, *size) == pytest.approx(packed)
    assert busiest("ring", MeshCollectiveKind.ALL_REDUCE, *size) == pytest.approx(ring)


@pytest.mark.parametrize("size", SIZES)
def test_rings_cost_what_their_closing_leg_makes_of_them(size):
    rows, cols = size
    count = rows * cols
    mesh = DieMesh(rows, cols)
    legs = ring_legs(mesh)
    assert sorted(ring_dies(mesh, legs)) == list(mesh.dies)
    round_a_tree = min(size) == 1 or size == (3, 3)
    expected = (count - 1) / count * (2 if round_a_tree else 1)
    assert busiest("ring", MeshCollectiveKind.ALL_REDUCE, rows, cols) == pytest.approx(expected)
    assert busiest("ring", MeshCollectiveKind.ALL_GATHER, rows, cols) == pytest.approx(expected / 2)
    lengths = sorted(map(len, legs))
    if min(size) == 1:
        assert lengths == [1] * (count - 1) + [count - 1]
    elif count % 2:
        assert lengths == [1] * (count - 1) + [2]
    else:
        assert lengths == [1] * count
    passed = [link for leg in legs for link in leg]
    for a, b in pairwise([*passed, passed[0]]):
        assert mesh.links[a][1] == mesh.links[b][0]


def test_large_odd_meshes_have_a_ring_without_a_shared_link():
    for size in [(7, 9), (9, 7), (3, 11), (11, 3), (9, 9)]:
        count = size[0] * size[1]
        assert busiest("ring", MeshCollectiveKind.ALL_REDUCE, *size) == pytest.approx((count - 1) / count)


@pytest.mark.parametrize("size", [(2, 2), (3, 4), (5, 5)])
def test_dimension_ordered_and_relays(size):
    rows, cols = size
    count = rows * cols
    assert busiest("dimension_ordered", MeshCollectiveKind.ALL_GATHER, *size) == pytest.approx((rows - 1) / rows)
    assert busiest("dimension_ordered", MeshCollectiveKind.REDUCE_SCATTER, *size) == pytest.approx((cols - 1) / cols)
    assert busiest("dimension_ordered", MeshCollectiveKind.ALL_REDUCE, *size) == pytest.approx(1.0)
    # twice what a ring, where there is one, puts on a link
    assert busiest("relay", MeshCollectiveKind.ALL_GATHER, *size) == pytest.approx((count - 1) / count)
    relayed = collective("relay", MeshCollectiveKind.ALL_GATHER, DieMesh(*size), 1.0)
    assert relayed is not None
    assert relayed.hops == count - 1


def test_an_all_to_all_crosses_the_middle():
    assert busiest("routes", MeshCollectiveKind.ALL_TO_ALL, 4, 4) == pytest.approx(1.0)
    assert busiest("routes", MeshCollectiveKind.ALL_TO_ALL, 3, 8) == pytest.approx(4 * 4 / 8)
    assert lower_bound(MeshCollectiveKind.ALL_TO_ALL, DieMesh(3, 8)) == pytest.approx(2.0)


def test_seconds_add_hops_to_the_busiest_link():
    made = collective("ring", MeshCollectiveKind.ALL_REDUCE, DieMesh(4, 4), 8e9)
    assert made is not None
    assert made.bytes == 8e9
    assert made.hops == 30
    assert made.seconds(1e12, 2e-7) == pytest.approx(8e9 * 0.9375 / 1e12 + 30 * 2e-7)


def test_the_best_algorithm_depends_on_the_bytes():
    mesh = DieMesh(4, 4)
    large = best(CollectiveKind.ALL_REDUCE, mesh, 1e9, 1e12, 2e-7)
    small = best(CollectiveKind.ALL_REDUCE, mesh, 1e3, 1e12, 2e-7)
    assert (large.algorithm, small.algorithm) == ("tree_packing", "shallow_tree")
    assert small.hops < large.hops
    ring = best(CollectiveKind.ALL_REDUCE, mesh, 1e9, 1e12, 2e-7, optimal=False)
    assert ring.algorithm == "ring"
    assert ring.seconds(1e12, 2e-7) > large.seconds(1e12, 2e-7)
    assert best(CollectiveKind.ALL_TO_ALL, mesh, 1e9, 1e12, optimal=False).algorithm == "routes"


def test_a_broadcast_may_begin_anywhere():
    mesh = DieMesh(3, 3)
    for root in mesh.dies:
        made = best(MeshCollectiveKind.BROADCAST, mesh, 1.0, 1.0, root=root)
        assert made.busiest_bytes == pytest.approx(0.5, abs=1e-7)
        assert {spread.root for spread in made.spreads()} == {root}


def test_a_bridge_carries_everything():
    """Two squares joined by one link."""
    mesh = DieMesh(2, 4, dead_links=frozenset({((1, 1), (1, 2))}))
    assert best(MeshCollectiveKind.ALL_REDUCE, mesh, 1.0, 1.0).busiest_bytes == pytest.approx(1.0)
    assert best(MeshCollectiveKind.ALL_GATHER, mesh, 1.0, 1.0).busiest_bytes == pytest.approx(0.5)
    assert best(MeshCollectiveKind.ALL_TO_ALL, mesh, 1.0, 1.0).busiest_bytes == pytest.approx(4 * 4 / 8)
    assert lower_bound(MeshCollectiveKind.ALL_TO_ALL, mesh) == pytest.approx(2.0)


def test_a_mesh_without_its_middle_is_a_ring():
    mesh = DieMesh(3, 3, dead_dies=frozenset({(1, 1)}))
    made = collective("ring", MeshCollectiveKind.ALL_REDUCE, mesh, 1.0)
    assert made is not None
    assert made.busiest_bytes == pytest.approx(7 / 8)
    assert best(MeshCollectiveKind.ALL_REDUCE, mesh, 1.0, 1.0).busiest_bytes == pytest.approx(7 / 8)
    assert collective("dimension_ordered", MeshCollectiveKind.ALL_REDUCE, mesh, 1.0) is None


@pytest.mark.parametrize(
    "mesh",
    [
        DieMesh(6, 8, dead_dies=frozenset({(2, 3)})),
        DieMesh(5, 6, dead_links=frozenset({((2, 2), (2, 3)), ((1, 1), (2, 1))})),
        DieMesh(5, 5, dead_dies=frozenset({(2, 2), (0, 2)})),
    ],
)
def test_packings_end_with_a_proof(mesh):
    """Nothing near the border is dead, so that no single cut decides and many trees are mixed."""
    for kind in (MeshCollectiveKind.ALL_REDUCE, MeshCollectiveKind.ALL_GATHER, MeshCollectiveKind.ALL_TO_ALL):
        made = best(kind, mesh, 1.0, 1.0)
        assert made.busiest_bytes == pytest.approx(lower_bound(kind, mesh), abs=1e-6)
        assert len(made.spreads()) > 10


def test_a_cut_mesh_is_refused_and_done_in_parts():
    mesh = DieMesh(2, 4, dead_dies=frozenset({(0, 1), (1, 1)}))
    with pytest.raises(InputError, match="not connected"):
        best(MeshCollectiveKind.ALL_REDUCE, mesh, 1.0, 1.0)
    made = on_components(MeshCollectiveKind.ALL_REDUCE, mesh, 1.0, 1.0)
    assert [each.busiest_bytes for each in made] == pytest.approx([0.75, 1.0])
