"""Meshes of dies: links, parts, routes around what is dead."""

from __future__ import annotations

import pytest

from dovetail.cost.mesh import Die, DieMesh
from dovetail.errors import InputError


def way(mesh: DieMesh, source: Die, target: Die) -> list[Die]:
    """The dies of a route, which must join them."""
    dies = [source]
    for link in mesh.route(source, target):
        a, b = mesh.links[link]
        assert a == dies[-1]
        dies.append(b)
    return dies


def test_links_come_in_pairs():
    mesh = DieMesh(2, 3)
    assert mesh.num_edges == 7
    assert mesh.links[:4] == (((0, 0), (0, 1)), ((0, 1), (0, 0)), ((0, 0), (1, 0)), ((1, 0), (0, 0)))
    assert all(mesh.links[i ^ 1] == (b, a) for i, (a, b) in enumerate(mesh.links))
    assert [mesh.link_number[link] for link in mesh.links] == list(range(14))


def test_a_dead_die_takes_its_links_along():
    mesh = DieMesh(3, 3, dead_dies=frozenset({(1, 1)}))
    assert mesh.num_dies == 8
    assert mesh.num_edges == 8
    assert not mesh.whole
    assert mesh.neighbours[0, 1] == ((0, 0), (0, 2))


def test_dead_links_have_no_direction():
    one, other = (DieMesh(2, 2, dead_links=frozenset({pair})) for pair in [((0, 0), (0, 1)), ((0, 1), (0, 0))])
    assert one == other
    assert hash(one) == hash(other)
    assert one.num_edges == 3


def test_routes_go_along_the_row_then_the_column():
    assert way(DieMesh(4, 4), (3, 0), (1, 2)) == [(3, 0), (3, 1), (3, 2), (2, 2), (1, 2)]


def test_routes_lead_around_what_is_dead():
    mesh = DieMesh(3, 3, dead_dies=frozenset({(0, 1)}))
    assert way(mesh, (0, 0), (0, 2)) == [(0, 0), (1, 0), (1, 1), (1, 2), (0, 2)]
    # a shortest way in another order costs no hop more
    assert way(mesh, (0, 0), (2, 1)) == [(0, 0), (1, 0), (1, 1), (2, 1)]
    assert mesh.hops((0, 0), (0, 2)) == 4
    # of several shortest ways the one that stays in the row
    cut = DieMesh(3, 3, dead_links=frozenset({((1, 2), (2, 2))}))
    assert way(cut, (2, 0), (0, 2)) == [(2, 0), (2, 1), (1, 1), (1, 2), (0, 2)]


@pytest.mark.parametrize("dead", [frozenset[Die](), frozenset({(1, 1), (2, 3)}), frozenset({(0, 1), (1, 2), (3, 0)})])
def test_routes_are_shortest(dead):
    mesh = DieMesh(4, 5, dead)
    for source in mesh.dies:
        for target, hops in mesh.distances(source).items():
            assert len(way(mesh, source, target)) == hops + 1
            assert way(mesh, source, target)[-1] == target


def test_parts_of_a_cut_mesh_are_meshes_of_their_own():
    mesh = DieMesh(3, 4, dead_dies=frozenset({(0, 1), (1, 1), (2, 1)}))
    assert not mesh.connected
    large, small = mesh.components
    assert large.dies == ((0, 2), (0, 3), (1, 2), (1, 3), (2, 2), (2, 3))
    assert small.dies == ((0, 0), (1, 0), (2, 0))
    assert large.connected
    assert small.connected
    with pytest.raises(InputError, match=r"no way leads from \(0, 0\) to \(0, 3\)"):
        mesh.route((0, 0), (0, 3))


@pytest.mark.parametrize(
    ("mesh", "count"),
    [
        (DieMesh(3, 3), 8),
        (DieMesh(3, 4), 4),
        (DieMesh(1, 4), 2),
        (DieMesh(1, 1), 1),
        (DieMesh(3, 3, frozenset({(1, 1)})), 8),
        (DieMesh(3, 3, frozenset({(0, 0)})), 2),
        (DieMesh(3, 3, dead_links=frozenset({((0, 0), (0, 1))})), 1),
        (DieMesh(3, 3, dead_links=frozenset({((0, 1), (1, 1))})), 2),
    ],
)
def test_symmetries_keep_what_is_dead(mesh, count):
    assert len(mesh.symmetries) == count
    assert mesh.symmetries[0] == mesh.dies


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: DieMesh(0, 3), "rows and columns are at least 1"),
        (lambda: DieMesh(2, 2, frozenset({(2, 0)})), r"the dead die \(2, 0\) lies outside"),
        (lambda: DieMesh(2, 2, dead_links=frozenset({((0, 0), (1, 1))})), "no link joins"),
        (lambda: DieMesh(2, 2, frozenset({(0, 0)})).route((0, 0), (1, 1)), "is dead or outside"),
    ],
)
def test_wrong_meshes_are_answered_by_a_sentence(make, said):
    with pytest.raises(InputError, match=said):
        make()
