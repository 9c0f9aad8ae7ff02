"""Collectives of a mesh that share its links in the simulator."""

from __future__ import annotations

import pytest

from dovetail.cost.mesh import (
    DieGroup,
    DieMesh,
    MeshCollectiveKind,
    across_tiles,
    collective,
    concurrent_seconds,
    on_group,
)
from dovetail.simulation.mesh_flows import add_flow, flows, sends
from dovetail.simulation.network import Routes
from dovetail.simulation.task_graph import run


def test_a_collective_alone_takes_the_time_of_the_formula():
    for kind in MeshCollectiveKind:
        made = on_group(None, kind, DieMesh(4, 4), DieGroup((1, 0), 2, 3), 1e9, 1e12, 2e-7)
        assert run(flows([made], 1e12, 2e-7)).seconds == pytest.approx(made.seconds(1e12, 2e-7), rel=1e-12)


def test_collectives_on_links_of_their_own_do_not_wait():
    mesh = DieMesh(2, 4)
    made = [on_group("ring", MeshCollectiveKind.ALL_REDUCE, mesh, DieGroup((0, col), 2, 2), 8.0) for col in (0, 2)]
    assert run(flows(made, 2.0)).end_s.tolist() == pytest.approx([made[0].seconds(2.0)] * 2)


def test_strided_groups_share_links_fairly():
    """Two chains of a row overlap on the links in the middle, and no link is idle before all is sent."""
    mesh = DieMesh(1, 4)
    made = [
        on_group("tree_packing", MeshCollectiveKind.ALL_REDUCE, mesh, group, 6.0) for group in across_tiles(mesh, 1, 2)
    ]
    assert run(flows(made, 3.0)).end_s.tolist() == pytest.approx([4.0, 4.0])
    assert concurrent_seconds(made, 3.0) == pytest.approx(4.0)


def test_a_small_collective_leaves_its_links_to_a_large_one():
    mesh = DieMesh(1, 2)
    made = [collective("ring", MeshCollectiveKind.BROADCAST, mesh, size) for size in (1.0, 3.0)]
    first, second = (each for each in made if each is not None)
    assert run(flows([first, second], 1.0)).end_s.tolist() == pytest.approx([2.0, 4.0])


def test_a_link_that_a_collective_half_uses_has_room_for_another():
    """A gather of three dies puts half of its busiest link's bytes on the first link, next to a broadcast there."""
    mesh = DieMesh(1, 3)
    gather = on_group("relay", MeshCollectiveKind.ALL_GATHER, mesh, DieGroup((0, 0), 1, 3), 3.0)
    assert gather.loads.tolist() == pytest.approx([1.0, 2.0, 2.0, 1.0])
    broadcast = on_group("relay", MeshCollectiveKind.BROADCAST, mesh, DieGroup((0, 0), 1, 2), 2.0)
    # at equal rates 1.5 of them fill the link
    assert run(flows([gather, broadcast], 1.0)).end_s.tolist() == pytest.approx([3.0, 3.0])


def test_flows_lie_where_the_links_of_their_mesh_begin():
    made = collective("relay", MeshCollectiveKind.BROADCAST, DieMesh(1, 3), 4.0)
    assert made is not None
    routes = Routes()
    assert add_flow(routes, made, first_link=10) == 0
    assert routes.network([1.0] * 20).link.tolist() == [10, 12]
    nothing = collective("relay", MeshCollectiveKind.BROADCAST, DieMesh(1, 1), 4.0)
    assert nothing is not None
    assert add_flow(routes, nothing) == -1


@pytest.mark.parametrize("chunks", [1, 2, 5])
def test_chunks_follow_each_other_down_a_line(chunks):
    """c chunks over d links take c + d − 1 times what one takes, and each hop its latency."""
    made = collective("shallow_tree", MeshCollectiveKind.BROADCAST, DieMesh(1, 5), 10.0)
    assert made is not None
    seconds = run(sends(made, 2.0, chunks, 0.25)).seconds
    assert seconds == pytest.approx((chunks + 3) * 10.0 / chunks / 2.0 + 4 * 0.25)


def test_sums_reach_the_root_before_results_leave_it():
    made = collective("shallow_tree", MeshCollectiveKind.ALL_REDUCE, DieMesh(1, 3), 6.0)
    assert made is not None
    graph = sends(made, 1.0, 1)
    timeline = run(graph)
    # both ends send 6 bytes to the middle at once, then the middle to both
    assert timeline.end_s[:4].tolist() == pytest.approx([6.0, 6.0, 12.0, 12.0])
