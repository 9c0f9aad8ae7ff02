"""Groups that share the links of a mesh."""

from __future__ import annotations

import pytest

from dovetail.cost.mesh import (
    DieGroup,
    DieMesh,
    MeshCollectiveKind,
    across_loads,
    across_tiles,
    best,
    collective,
    concurrent_seconds,
    logical_ring,
    on_group,
    tile_loads,
    tiles,
    tilings,
    total_loads,
)
from dovetail.errors import InputError


def test_strided_chains_load_an_inner_link_as_often_as_a_tile_is_wide():
    """Tiles of 1 × 4 on a row of 16 dies: four chains of four dies each, side by side on the links in the middle."""
    mesh = DieMesh(1, 16)
    line = collective("tree_packing", MeshCollectiveKind.ALL_REDUCE, DieMesh(1, 4), 1.0)
    assert line is not None
    loads = across_loads(mesh, line)
    assert loads.max() == pytest.approx(4.0)
    assert loads[::2].tolist() == pytest.approx([1, 2, 3, *([4] * 9), 3, 2, 1])
    made = [
        on_group("tree_packing", MeshCollectiveKind.ALL_REDUCE, mesh, group, 1.0) for group in across_tiles(mesh, 1, 4)
    ]
    assert concurrent_seconds(made, 2.0, 0.5) == pytest.approx(4.0 / 2.0 + line.hops * 4 * 0.5)


def test_tiles_do_not_share_links():
    mesh = DieMesh(4, 6)
    one = collective("tree_packing", MeshCollectiveKind.ALL_REDUCE, DieMesh(2, 3), 1.0)
    assert one is not None
    assert tile_loads(mesh, one).max() == pytest.approx(one.busiest_bytes)
    made = [on_group("tree_packing", MeshCollectiveKind.ALL_REDUCE, mesh, group, 1.0) for group in tiles(mesh, 2, 3)]
    assert total_loads(made).tolist() == pytest.approx(tile_loads(mesh, one).tolist())


def test_tilings_divide_the_mesh():
    assert list(tilings(DieMesh(2, 4))) == [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4)]
    with pytest.raises(InputError, match="rows divide 4 and columns divide 4"):
        tiles(DieMesh(4, 4), 3, 2)
    with pytest.raises(InputError, match="damaged"):
        tiles(DieMesh(4, 4, frozenset({(0, 0)})), 2, 2)


def test_hops_of_strided_groups_pass_the_dies_between():
    made = on_group(
        "dimension_ordered", MeshCollectiveKind.ALL_GATHER, DieMesh(4, 6), DieGroup((0, 0), 2, 2, 2, 3), 1.0
    )
    assert made.hops == 2 + 3
    assert max(spread.depth for spread in made.spreads()) == 5


def test_a_damaged_rectangle_uses_its_own_live_links():
    mesh = DieMesh(4, 4, dead_links=frozenset({((0, 0), (0, 1))}))
    group = DieGroup((0, 0), 2, 2)
    made = on_group(None, MeshCollectiveKind.ALL_REDUCE, mesh, group, 1.0)
    assert made.busiest_bytes == pytest.approx(1.0)
    used = {mesh.links[link] for link in range(len(mesh.links)) if made.loads[link] > 0}
    assert {die for link in used for die in link} == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_a_cut_strided_line_goes_around():
    mesh = DieMesh(2, 5, dead_dies=frozenset({(0, 1)}))
    made = on_group(None, MeshCollectiveKind.ALL_REDUCE, mesh, DieGroup((0, 0), 1, 3, 1, 2), 1.0)
    assert made.busiest_bytes == pytest.approx(1.0)
    # (0, 0) to (0, 2) over the row below, (0, 2) to (0, 4) straight on
    assert sum(made.loads > 0) == 2 * (4 + 2)


def test_parts_of_a_group_are_joined_by_a_ring_of_routes():
    mesh = DieMesh(3, 3, dead_dies=frozenset({(0, 1)}))
    made = on_group(None, MeshCollectiveKind.ALL_REDUCE, mesh, DieGroup((0, 0), 1, 3), 1.0)
    assert made.algorithm == "logical_ring"
    # two dies, half of the bytes each way, reduced and gathered
    assert made.busiest_bytes == pytest.approx(1.0)
    assert made.hops == 8
    with pytest.raises(InputError, match="are dead"):
        on_group(None, MeshCollectiveKind.ALL_REDUCE, mesh, DieGroup((0, 1), 1, 1), 1.0)


@pytest.mark.parametrize("kind", list(MeshCollectiveKind))
def test_a_ring_in_the_order_of_a_cycle_is_the_mesh_ring(kind):
    mesh = DieMesh(2, 3)
    order = [(0, 0), (0, 1), (0, 2), (1, 2), (1, 1), (1, 0)]
    made = logical_ring(kind, mesh, order, 7.0)
    expected = best(kind, mesh, 7.0, 1.0, optimal=False)
    assert made.busiest_bytes == pytest.approx(expected.busiest_bytes)
    assert made.hops == expected.hops


def test_one_die_sends_nothing():
    for kind in MeshCollectiveKind:
        made = logical_ring(kind, DieMesh(2, 2), [(0, 0)], 7.0)
        assert made.busiest_bytes == 0.0
        assert made.hops == 0


def test_an_algorithm_that_does_not_apply_is_named():
    with pytest.raises(InputError, match="ring does not do all_to_all here"):
        on_group("ring", MeshCollectiveKind.ALL_TO_ALL, DieMesh(2, 2), DieGroup((0, 0), 2, 2), 1.0)
