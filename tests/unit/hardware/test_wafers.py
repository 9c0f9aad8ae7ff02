"""Wafers: files, maps of defects, who reaches whom, and wafers as clusters."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dovetail as dt
from dovetail.cli import main
from dovetail.documents import to_yaml
from dovetail.errors import InputError
from dovetail.hardware import DefectMap, Wafer
from dovetail.hardware.defects import Position, grid_links
from dovetail.hardware.silicon.wafer_check import sampled_defects

NAMES = ("dojo-buildable", "dojo-tile", "temp-like", "watos-buildable", "watos-like", "wse-3-like")

FILE: dict[str, Any] = {
    "name": "mine", "die": "dojo-d1", "integration": "info-sow", "rows": 3, "cols": 4, "die_width_mm": "25 mm",
    "die_height_mm": 25.8, "d2d_bytes_per_s": "2 TB/s", "d2d_latency_s": "200 ns", "edge_bytes_per_s": "12 TB/s",
    "edge_latency_s": "1 us", "power_limit_w": "8 kW", "spare_dies": 1,
    "defects": {"dead_dies": [[0, 1]], "dead_links": [[[1, 1], [1, 0]]]}, "doubts": {"rows": "guessed"},
}  # fmt: skip


def reached(wafer: Wafer, start: Position) -> set[Position]:
    """Breadth first over working neighbours, written without the wafer's own links."""
    dead = set(wafer.defects.dead_dies)
    cut = {frozenset(link) for link in wafer.defects.dead_links}
    seen, waiting = {start}, deque([start])
    while waiting:
        row, col = waiting.popleft()
        for near in ((row + 1, col), (row - 1, col), (row, col + 1), (row, col - 1)):
            inside = 0 <= near[0] < wafer.rows and 0 <= near[1] < wafer.cols
            if inside and near not in seen and near not in dead and frozenset({(row, col), near}) not in cut:
                seen.add(near)
                waiting.append(near)
    return seen


def small(rows: int, cols: int) -> Wafer:
    return dt.hardware.wafer_from(FILE | {"rows": rows, "cols": cols, "spare_dies": 0, "defects": {}}, "small")


def test_the_catalogue():
    assert dt.hardware.wafer_names() == NAMES
    for name in NAMES:
        wafer = dt.hardware.wafer(name)
        assert (wafer.name, bool(wafer.source), bool(wafer.doubts)) == (name, True, True)
        assert wafer.die.technology in dt.hardware.technology_names()
    watos, temp = dt.hardware.wafer("watos-like"), dt.hardware.wafer("temp-like")
    assert (watos.dies, watos.die.hbm_bytes, watos.die.hbm_bytes_per_s, watos.d2d_bytes_per_s) == (56, 70e9, 2e12, 4e12)
    assert {temp.rows, temp.cols} == {6, 8}
    assert temp.die.peak_flops("bf16") == pytest.approx(1.8e15, rel=2e-3)
    assert dt.hardware.wafer("dojo-tile").dies == 25
    whole = dt.hardware.wafer("wse-3-like")
    assert whole.die.area_mm2 == pytest.approx(46_225 / whole.dies, rel=1e-3)
    assert whole.dies * whole.die.sram_bytes == pytest.approx(44e9, rel=0.01)
    assert whole.dies * whole.die.vector_cores == pytest.approx(900_000, rel=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_peaks_are_what_the_cores_make(name):
    die = dt.hardware.wafer(name).die
    peak = die.dense_flops.bf16 or die.dense_flops.fp16
    assert 2 * die.macs_per_cycle * die.clock_hz == pytest.approx(peak, rel=3.5e-3)


@pytest.mark.parametrize("name", dt.hardware.integration_names())
def test_coefficients_of_integrations_lie_between_their_ends(name):
    found = dt.hardware.integration(name)
    low, value, high = (found.numbers(end) for end in ("low", "value", "high"))
    for figure in ("link_energy_j_per_byte", "link_shoreline_mm_per_byte_per_s", "fatal_share"):
        assert getattr(low, figure) <= getattr(value, figure) <= getattr(high, figure)
    for figure in ("wire_reach_mm", "link_yield", "bond_yield"):
        assert getattr(low, figure) >= getattr(value, figure) >= getattr(high, figure)


def test_a_file_with_defects(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(to_yaml(FILE))
    wafer = dt.hardware.wafer(str(path))
    assert wafer.die_height_mm == 25.8
    assert wafer.defects == DefectMap(((0, 1),), (((1, 0), (1, 1)),))
    assert dt.hardware.cluster(str(path), 24) == wafer.cluster(2)
    assert len(wafer.live_dies()) == 11
    # 17 links of a 3 x 4 grid: three ended at the dead die, one is dead itself
    assert len(wafer.links()) == 17 - 3 - 1
    assert dt.hardware.wafer_from({**FILE, "integration": _integration()}, "mine").integration.name == "own"


def _integration() -> dict[str, Any]:
    one = {"value": 1, "source": "us", "status": "assumed"}
    figures = (
        "wire_reach_mm", "link_shoreline_mm_per_byte_per_s", "link_energy_j_per_byte", "link_yield", "bond_yield",
        "fatal_share",
    )  # fmt: skip
    return {"name": "own", "monolithic": False, "source": "us", **dict.fromkeys(figures, one)}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown field": ({"row": 3}, "mine: row: is not a field here; did you mean 'rows'"),
    "no die": ({"die": "dojo-d9"}, "mine: die: 'dojo-d9' is not in the catalogue; did you mean 'dojo-d1'."),
    "no integration": ({"integration": "glue"}, "mine: integration: 'glue' is not in the catalogue"),
    "no unit": ({"die_width_mm": "25 kg"}, "mine: die_width_mm: the unit 'kg' does not measure mm"),
    "no size": ({"die_width_mm": 0}, "mine: die_width_mm: is 0"),
    "rows": ({"rows": 0}, "mine: rows: is 0; it should be greater than or equal to 1"),
    "spares": ({"spare_dies": 12}, "mine: spare_dies: is 12; it should leave some of the 12 dies"),
    "die outside": (
        {"defects": {"dead_dies": [[3, 0]]}},
        "mine: defects.dead_dies: has [3, 0]; it should be [row, col] below [3, 4]",
    ),
    "no neighbours": (
        {"defects": {"dead_links": [[[0, 0], [1, 1]]]}},
        "mine: defects.dead_links: has [[0, 0], [1, 1]]; it should join two neighbours of the 3 x 4 grid",
    ),
    "half a position": ({"defects": {"dead_dies": [[1]]}}, "mine: defects.dead_dies.0.1: is missing"),
    "store": ({"store_bytes": "1 TB"}, "mine: store_bytes_per_s: contradicts store_bytes; both should be 0 or neither"),
    "doubt": ({"doubts": {"colour": "red"}}, "mine: doubts.colour: is not about a field of this file"),
    "inner": ({"integration": {**_integration(), "monolithic": "no"}}, "mine: integration: monolithic: is 'no'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_one_sentence(case):
    change, start = WRONG[case]
    with pytest.raises(InputError) as error:
        dt.hardware.wafer_from(FILE | change, "mine")
    text = str(error.value)
    assert text.startswith(start)
    assert "\n" not in text


@pytest.mark.parametrize("missing", ["name", "die", "integration", "rows", "cols", "die_width_mm", "power_limit_w"])
def test_a_field_that_is_missing_is_named(missing):
    with pytest.raises(InputError, match=rf"^mine: {missing}: is missing; add this field\.$"):
        dt.hardware.wafer_from({n: v for n, v in FILE.items() if n != missing}, "mine")


def test_an_unknown_wafer_is_named():
    with pytest.raises(InputError, match=r"^wafer: 'watos' is not in the catalogue; did you mean 'watos-like'"):
        dt.hardware.wafer("watos")


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (1, 5), (2, 3), (7, 12)])
def test_links_of_a_grid(rows, cols):
    links = grid_links(rows, cols)
    assert len(set(links)) == len(links) == 2 * rows * cols - rows - cols
    assert all(a < b and abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1 for a, b in links)
    assert small(rows, cols).links() == links


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 7), st.integers(1, 7), st.floats(0.3, 1), st.floats(0.3, 1), st.integers(0, 10**6))
def test_the_largest_part_is_what_a_walk_reaches(rows, cols, die_yield, link_yield, seed):
    defects = DefectMap.sampled(rows, cols, die_yield, link_yield, seed)
    wafer = small(rows, cols).with_defects(defects)
    parts = {frozenset(reached(wafer, die)) for die in wafer.live_dies()}
    found = wafer.connected_dies()
    assert len(found) == max(map(len, parts), default=0)
    assert not found or frozenset(found) in parts
    # of equal parts the one with the first die
    assert not found or min(found) == min(min(part) for part in parts if len(part) == len(found))
    assert found == tuple(sorted(found))


def test_maps_of_a_seed_are_the_same_and_as_frequent_as_the_yield():
    one, same = (DefectMap.sampled(40, 40, 0.9, 0.8, 7) for _ in range(2))
    assert one == same
    assert one != DefectMap.sampled(40, 40, 0.9, 0.8, 8)
    assert one.dead_dies == DefectMap.sampled(40, 40, 0.9, 0.2, 7).dead_dies
    assert len(one.dead_dies) / 1600 == pytest.approx(0.1, abs=0.03)
    assert len(one.dead_links) / 3120 == pytest.approx(0.2, abs=0.03)
    assert DefectMap.sampled(5, 5, 1, 1, 0) == DefectMap()
    assert len(DefectMap.sampled(5, 5, 0, 1, 0).dead_dies) == 25
    with pytest.raises(InputError, match=r"die_yield: is 1\.5"):
        DefectMap.sampled(5, 5, 1.5, 1, 0)


def test_a_map_is_kept_in_one_order():
    assert DefectMap(((1, 0), (0, 1), (1, 0)), (((1, 1), (0, 1)),)) == DefectMap(((0, 1), (1, 0)), (((0, 1), (1, 1)),))


def test_defects_drawn_by_the_estimate():
    wafer = dt.hardware.wafer("watos-like")
    node = dt.hardware.technology_of(wafer)
    assert sampled_defects(wafer, node, 3) == sampled_defects(wafer, node, 3)
    # 0.99 for a die and each of two stacks
    drawn = [len(sampled_defects(wafer, node, seed).dead_dies) for seed in range(200)]
    assert sum(drawn) / 200 == pytest.approx(56 * (1 - 0.99**3), rel=0.2)


def test_a_wafer_as_a_cluster():
    wafer = dt.hardware.wafer("watos-like")
    one, four = wafer.cluster(), wafer.cluster(4)
    assert (one.chips, four.chips) == (56, 224)
    (mesh,) = one.tiers
    assert (mesh.topology, mesh.shape, mesh.bytes_per_s, mesh.latency_s) == ("mesh", (8, 7), 16e12, pytest.approx(2e-7))
    assert four.tiers[0] == mesh
    assert (four.tiers[1].bytes_per_s, four.tiers[1].size) == (pytest.approx(1e12 / 56), 224)
    assert four.factors == (56, 4)
    assert one.chip.hbm_bytes == 70e9
    assert dt.hardware.cluster("watos-like") == one
    assert dt.hardware.cluster("watos-like", 224) == four
    with pytest.raises(InputError, match="it should be a multiple of the 56 dies of a wafer"):
        dt.hardware.cluster("watos-like", 60)
    with pytest.raises(InputError, match="several wafers need links between them"):
        dt.hardware.wafer_from(FILE | {"edge_bytes_per_s": 0}, "mine").cluster(2)
    with pytest.raises(InputError, match="wafers: is 0"):
        wafer.cluster(0)
    assert small(1, 1).cluster().tiers == ()
    assert [tier.name for tier in small(1, 1).cluster(3).tiers] == ["edge"]


@pytest.fixture
def run(capsys, monkeypatch):
    """Runs a command in this process; returns its exit code and what it printed."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    return call


def test_the_list(run):
    answers = json.loads(run("wafers", "list", "--json")[1])
    assert [answer["name"] for answer in answers] == list(NAMES)
    code, out, err = run("wafers", "list")
    assert (code, err) == (0, "")
    assert all(name in out for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_show(name, run):
    answer = json.loads(run("wafers", "show", name, "--json")[1])
    wafer = dt.hardware.wafer(name)
    assert answer["dies"] == answer["live_dies"] == answer["chips"] == wafer.dies
    assert [finding["rule"] for finding in answer["findings"]][:2] == ["reticle", "area"]
    code, text, err = run("wafers", "show", name)
    assert (code, err) == (0, "")
    assert all(why in text for why in answer["doubts"].values())
    for finding in answer["findings"]:
        assert finding["sentence"][:30] in text
    assert json.loads(run("wafers", "show", name, "--wafers", "2", "--json")[1])["chips"] == 2 * wafer.dies


def test_show_says_what_is_dead(run, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(to_yaml(FILE))
    assert "1 dead die, 1 dead link; 11 of 12 dies reach each other" in run("wafers", "show", str(path))[1]
    code, out, err = run("wafers", "show", "wse")
    assert (code, out) == (2, "")
    assert err.startswith("wafer: 'wse' is not in the catalogue;")
