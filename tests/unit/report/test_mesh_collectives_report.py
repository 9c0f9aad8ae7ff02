"""Collectives of a tile as the command shows them: near their bounds, simulated alike, damaged ones longer."""

from __future__ import annotations

import json

import pytest

from dovetail import hardware
from dovetail.cli import main
from dovetail.hardware import DefectMap
from dovetail.report.mesh_collectives import tile_collectives

WAFER = hardware.wafer("watos-like")


def test_collectives_are_at_their_bounds_and_simulated_alike() -> None:
    for rows, cols in ((1, 4), (2, 2), (4, 7)):
        for each in tile_collectives(WAFER, rows, cols, 0, 0, 1e9):
            # a gigabyte: hops hardly count
            assert each.lower_bound_s <= each.seconds <= 1.03 * each.lower_bound_s
            if each.simulated_s is not None:
                assert each.simulated_s == pytest.approx(each.seconds, rel=0.15)


def test_all_reduce_of_a_mesh_is_the_packing_of_trees() -> None:
    """(N - 1)/|E| of the bytes over the busiest link."""
    reduce = tile_collectives(WAFER, 4, 4, 0, 0, 1e9)[0]
    assert reduce.lower_bound_s == pytest.approx(15 / 24 * 1e9 / WAFER.d2d_bytes_per_s)


def test_a_dead_link_makes_collectives_longer_and_leaves_no_groups_across() -> None:
    damaged = WAFER.with_defects(DefectMap((), (((0, 0), (0, 1)),)))
    whole, around = (tile_collectives(each, 2, 2, 0, 0, 1e9) for each in (WAFER, damaged))
    assert all(a.seconds > w.seconds for a, w in zip(around, whole, strict=True))
    assert all(each.across_tiles_s is None for each in around)
    elsewhere = tile_collectives(damaged, 2, 2, 2, 2, 1e9)
    assert [each.seconds for each in elsewhere] == [each.seconds for each in whole]


def called(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The exit code of a command and what it printed."""
    with pytest.raises(SystemExit) as ended:
        main(["wafers", "collectives", "watos-like", *arguments])
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


def test_the_command_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = called(capsys, "--tile", "2x4", "--bytes", "1GB", "--json")
    expected = tile_collectives(WAFER, 2, 4, 0, 0, 1e9)
    assert code == 0
    assert [each["seconds"] for each in json.loads(out)["collectives"]] == [each.seconds for each in expected]
    code, _, err = called(capsys, "--tile", "9x3")
    assert (code, "inside 8 × 7 dies" in err) == (2, True)
    code, _, err = called(capsys, "--tile", "2")
    assert (code, "--tile" in err) == (2, True)
