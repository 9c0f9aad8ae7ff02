"""Collectives on meshes against linear programs, cuts, counting by hand and the simulator."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest
from damaged_meshes import damaged, must_cross, some_cuts
from mesh_by_lp import broadcasts_by_lp, exchange_by_lp, grid_edges, largest_partition_ratio, packed_trees_by_lp
from mesh_walks import by_link, played_loads, unfinished, walked_loads

from dovetail.cost.mesh import (
    ALGORITHMS,
    DieMesh,
    MeshCollective,
    MeshCollectiveKind,
    across_loads,
    across_tiles,
    best,
    collective,
    lower_bound,
    on_group,
    tile_loads,
    tiles,
    tilings,
    total_loads,
)
from dovetail.simulation.mesh_flows import flows, sends
from dovetail.simulation.task_graph import run

WHOLE = [(rows, cols) for rows in range(1, 7) for cols in range(1, 9)]


def all_of(mesh: DieMesh, num_bytes: float = 1.0) -> list[MeshCollective]:
    made = [collective(name, kind, mesh, num_bytes) for kind in MeshCollectiveKind for name in ALGORITHMS]
    return [each for each in made if each is not None]


@pytest.mark.parametrize(("rows", "cols"), WHOLE)
def test_whole_meshes_complete_as_counted_and_not_below_the_bound(rows, cols):
    mesh = DieMesh(rows, cols)
    made = all_of(mesh)
    assert {each.kind for each in made} == set(MeshCollectiveKind)
    for each in made:
        assert unfinished(each) is None, each
        assert each.loads.tolist() == pytest.approx(by_link(mesh, played_loads(each)), abs=1e-12)
        assert each.busiest_bytes >= lower_bound(each.kind, mesh) - 1e-9
        depth = max((spread.depth for spread in each.spreads()), default=0)
        assert each.hops == depth * (2 if each.kind is MeshCollectiveKind.ALL_REDUCE else 1)


@pytest.mark.parametrize(("rows", "cols"), WHOLE)
def test_whole_meshes_have_collectives_as_fast_as_the_bound(rows, cols):
    mesh = DieMesh(rows, cols)
    count = rows * cols
    for kind in set(MeshCollectiveKind) - {MeshCollectiveKind.PERMUTE}:
        assert best(kind, mesh, 1.0, 1.0).busiest_bytes == pytest.approx(lower_bound(kind, mesh), abs=1e-9)
    packed = collective("tree_packing", MeshCollectiveKind.ALL_REDUCE, mesh, 1.0)
    assert packed is not None
    assert packed.busiest_bytes == pytest.approx((count - 1) / max(2 * count - rows - cols, 1), abs=1e-12)


SMALL = [(r, c) for r in range(1, 5) for c in range(r, 5) if r * c > 1]


@pytest.mark.parametrize(
    ("rows", "cols"), [*SMALL, *(pytest.param(*size, marks=pytest.mark.slow) for size in [(3, 7), (5, 5), (6, 6)])]
)
def test_packings_of_whole_meshes_equal_linear_programs(rows, cols):
    mesh = DieMesh(rows, cols)
    edges = grid_edges(rows, cols)
    packed = collective("tree_packing", MeshCollectiveKind.ALL_REDUCE, mesh, 1.0)
    gathered = collective("tree_packing", MeshCollectiveKind.ALL_GATHER, mesh, 1.0)
    assert packed is not None
    assert gathered is not None
    assert packed.busiest_bytes == pytest.approx(packed_trees_by_lp(mesh.dies, edges), abs=1e-6)
    shares = dict.fromkeys(mesh.dies, 1 / mesh.num_dies)
    assert gathered.busiest_bytes == pytest.approx(broadcasts_by_lp(mesh.dies, edges, shares), abs=1e-6)


@pytest.mark.slow
def test_the_packing_of_the_largest_mesh_equals_linear_programs_of_flows():
    """Trees of 6 × 8 dies; the program of all flows is too large for the solver, those to one die are not."""
    mesh = DieMesh(6, 8)
    shares = dict.fromkeys(mesh.dies, 1 / mesh.num_dies)
    assert lower_bound(MeshCollectiveKind.ALL_GATHER, mesh) == pytest.approx(
        broadcasts_by_lp(mesh.dies, mesh.edges, shares), abs=1e-6
    )
    for root in ((0, 0), (2, 3)):
        bound = broadcasts_by_lp(mesh.dies, mesh.edges, {root: 1.0})
        made = collective("tree_packing", MeshCollectiveKind.BROADCAST, mesh, 1.0, root=root)
        assert made is not None
        assert made.busiest_bytes == pytest.approx(bound, abs=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_packings_of_damaged_meshes_equal_linear_programs(seed):
    mesh = damaged(seed, 3 + seed % 2, 3 + seed % 3 // 2)
    dies, edges = mesh.dies, mesh.edges
    shares = dict.fromkeys(dies, 1 / len(dies))
    expected = {
        MeshCollectiveKind.ALL_REDUCE: packed_trees_by_lp(dies, edges),
        MeshCollectiveKind.ALL_GATHER: (gathered := broadcasts_by_lp(dies, edges, shares)),
        MeshCollectiveKind.REDUCE_SCATTER: gathered,
        MeshCollectiveKind.BROADCAST: broadcasts_by_lp(dies, edges, {dies[0]: 1.0}),
    }
    expected[MeshCollectiveKind.ALL_TO_ALL] = exchange_by_lp(dies, edges)
    for kind, value in expected.items():
        made = best(kind, mesh, 1.0, 1.0)
        assert made.busiest_bytes == pytest.approx(value, abs=1e-6)
        assert lower_bound(kind, mesh) == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_no_partition_proves_more_than_packed_trees(seed):
    mesh = damaged(seed, 2 + seed % 2, 4 - seed % 2)
    assert lower_bound(MeshCollectiveKind.ALL_REDUCE, mesh) == pytest.approx(
        largest_partition_ratio(mesh.dies, mesh.edges), abs=1e-6
    )


def test_no_ring_through_three_by_three_dies_shares_no_link():
    """Every order of the dies along shortest ways of either bend: some link is used twice, so 2(N − 1)/N stays."""
    mesh = DieMesh(3, 3)
    made = collective("ring", MeshCollectiveKind.ALL_REDUCE, mesh, 1.0)
    assert made is not None
    assert made.busiest_bytes == pytest.approx(16 / 9)
    for rest in permutations(mesh.dies[1:]):
        order = [mesh.dies[0], *rest, mesh.dies[0]]
        if rest[0] < rest[-1] and sum(mesh.hops(a, b) for a, b in pairwise(order)) <= mesh.num_edges:
            assert not _disjoint([(a, b) for a, b in pairwise(order)], frozenset())


def _disjoint(pairs, used):
    """Whether all pairs have ways that share no edge, each along shortest ways with one bend."""
    if not pairs:
        return True
    (a, b), *rest = pairs
    for bend in {(a[0], b[1]), (b[0], a[1])}:
        dies = [*_line(a, bend), *_line(bend, b)[1:]]
        edges = {tuple(sorted(pair)) for pair in pairwise(dies)}
        if not edges & used and _disjoint(rest, used | edges):
            return True
    return False


def _line(a, b):
    steps = max(abs(a[0] - b[0]), abs(a[1] - b[1]))
    return [
        (a[0] + (b[0] - a[0]) * i // max(steps, 1), a[1] + (b[1] - a[1]) * i // max(steps, 1)) for i in range(steps + 1)
    ]


def check_damaged(seed: int, mesh: DieMesh) -> None:
    made = all_of(mesh, num_bytes=1e9)
    assert {each.kind for each in made} == set(MeshCollectiveKind)
    root = mesh.dies[0]
    for kind in set(MeshCollectiveKind) - {MeshCollectiveKind.PERMUTE}:
        assert best(kind, mesh, 1.0, 1.0).busiest_bytes == pytest.approx(lower_bound(kind, mesh), abs=1e-6)
    cuts = list(some_cuts(mesh, seed, 30)) if mesh.num_dies > 1 else []
    for each in made:
        assert unfinished(each) is None, each
        assert each.loads.tolist() == pytest.approx(by_link(mesh, played_loads(each)), rel=1e-9, abs=1.0)
        assert each.busiest_bytes >= 1e9 * (lower_bound(each.kind, mesh) - 1e-9)
        for cut in cuts:
            assert each.busiest_bytes >= 1e9 * (must_cross(each.kind, mesh, cut, root) - 1e-7)
        alone = run(flows([each], 1e12, 2e-7)).seconds
        assert alone == pytest.approx(each.seconds(1e12, 2e-7), rel=1e-9)


@pytest.mark.parametrize("seed", range(16))
def test_every_collective_completes_on_sampled_faults(seed):
    rows, cols = [(2, 3), (1, 6), (3, 3), (4, 4), (3, 5), (5, 5), (4, 6), (6, 8)][seed % 8]
    check_damaged(seed, damaged(seed, rows, cols))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 400))
def test_every_collective_completes_on_many_sampled_faults(seed):
    check_damaged(seed, damaged(seed, 1 + seed % 6, 2 + seed // 6 % 7))


def simulated_ratio(made: MeshCollective, latency_s: float = 0.0) -> float:
    """Simulated send by send over the formula, with chunks enough that filling the pipeline does not matter."""
    shares_at_once = made.algorithm == "ring" and made.kind not in (
        MeshCollectiveKind.BROADCAST,
        MeshCollectiveKind.PERMUTE,
    )
    # a ring with a share of every die on its way is full from the start
    chunks = 150 if shares_at_once else 60 * max(made.hops, 1)
    return run(sends(made, 1e12, chunks, latency_s)).seconds / made.seconds(1e12, latency_s)


@pytest.mark.parametrize("mesh", [DieMesh(1, 4), DieMesh(2, 3), DieMesh(3, 3), damaged(3, 3, 3), damaged(4, 3, 3)])
def test_sends_take_what_the_formula_says(mesh):
    for made in all_of(mesh, num_bytes=1e9):
        assert simulated_ratio(made) == pytest.approx(1.0, abs=0.02), made
        assert simulated_ratio(made, 2e-7) == pytest.approx(1.0, abs=0.02), made


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(500, 530))
def test_sends_on_sampled_faults_take_what_the_formula_says(seed):
    mesh = damaged(seed, 2 + seed % 3, 3 + seed % 2)
    for kind in MeshCollectiveKind:
        assert simulated_ratio(best(kind, mesh, 1e9, 1e12, 2e-7), 2e-7) == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("rows", range(1, 5))
@pytest.mark.parametrize("cols", range(1, 5))
def test_loads_of_tilings_equal_counting(rows, cols):
    mesh = DieMesh(rows, cols)
    for tile_rows, tile_cols in tilings(mesh):
        inside, across = DieMesh(tile_rows, tile_cols), DieMesh(rows // tile_rows, cols // tile_cols)
        for one in all_of(inside, num_bytes=3.0):
            groups = tiles(mesh, tile_rows, tile_cols)
            counted = by_link(mesh, walked_loads(groups, one))
            assert tile_loads(mesh, one).tolist() == pytest.approx(counted, abs=1e-12)
        for one in all_of(across, num_bytes=5.0):
            groups = across_tiles(mesh, tile_rows, tile_cols)
            counted = by_link(mesh, walked_loads(groups, one))
            assert across_loads(mesh, one).tolist() == pytest.approx(counted, abs=1e-12)
            made = [on_group(one.algorithm, one.kind, mesh, group, 5.0) for group in groups]
            assert total_loads(made).tolist() == pytest.approx(counted, abs=1e-12)
            assert np.allclose(made[0].loads, by_link(mesh, played_loads(made[0])))
