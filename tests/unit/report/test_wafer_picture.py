"""Pictures of wafers: stages, groups, loads and dead dies, in characters and in SVG."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

from dovetail import hardware, models
from dovetail.errors import InputError
from dovetail.hardware import DefectMap
from dovetail.models import Job
from dovetail.plans.arrange import arrange
from dovetail.plans.plan import PlanSpec, resolve_plan
from dovetail.report import wafer_lines as terminal
from dovetail.report import wafer_picture
from dovetail.report.step_breakdown import link_shares
from dovetail.report.svg import PALETTE
from dovetail.report.wafer_lines import wafer_lines
from dovetail.report.wafer_picture import wafer_pictures
from dovetail.report.wafer_svg import stage_colours, wafer_svg
from dovetail.simulation.simulate import simulate

JOB = Job(models.load("gpt3-1.3b"), seq_len=2048, global_batch=16)
DEAD = frozenset({(1, 2), (7, 5)})
SVG = "{http://www.w3.org/2000/svg}"


def drawn(chips=48, exact=False, **fields):
    cluster = hardware.cluster("temp-like", chips)
    plan = resolve_plan(PlanSpec(**fields), chips=chips, global_batch=16, num_layers=24)
    step = simulate(plan, JOB, cluster, exact=exact)
    return step, wafer_pictures(step, arrange(plan, JOB.graph(), cluster), cluster)


@pytest.fixture(scope="module")
def six():
    """Six stages of two copies, each of 2 × 2 dies."""
    return drawn(tensor_parallel=4, pipeline_parallel=6)


@pytest.fixture(scope="module")
def damaged(six):
    dead = DefectMap(tuple(DEAD))
    return [replace(p, defects=dead, dies={k: v for k, v in p.dies.items() if k not in DEAD}) for p in six[1]]


def test_the_grid_has_the_stage_of_every_die_with_lines_between_groups(six):
    assert wafer_lines(six[1])[:12] == [
        "8 × 6 dies of temp-like, the stage of each",
        "  0 0 | 3 3 | 4 4",
        "  0 0 | 3 3 | 4 4",
        "  ----+-----+----",
        "  0 0 | 3 3 | 4 4",
        "  0 0 | 3 3 | 4 4",
        "  ----+-----+----",
        "  1 1 | 2 2 | 5 5",
        "  1 1 | 2 2 | 5 5",
        "  ----+-----+----",
        "  1 1 | 2 2 | 5 5",
        "  1 1 | 2 2 | 5 5",
    ]
    assert re.match(
        r"lines stand between tensor groups, links from row to row .* full, links ", wafer_lines(six[1])[12]
    )


def test_single_dies_have_no_lines_and_wide_numbers_stand_below_each_other():
    _, pictures = drawn(tensor_parallel=1, pipeline_parallel=12)
    lines = wafer_lines(pictures)
    assert lines[1] == "   0  0  7  7  8  8"
    assert lines[8] == "   3  3  4  4 11 11"
    assert len(lines) == 10
    assert "lines" not in lines[-1]


def test_dead_dies_are_crosses(six, damaged):
    cluster = hardware.cluster("temp-like")
    arrangement = arrange(six[0].plan, JOB.graph(), cluster)
    given = wafer_pictures(six[0], arrangement, replace(cluster, defects=(DefectMap(tuple(DEAD)),)))
    assert given[0].dead == DEAD
    assert not given[0].left_over
    assert given[0].dies == damaged[0].dies
    lines = wafer_lines(given)
    assert lines[2] == "  0 0 | x 3 | 4 4"
    assert lines[11] == "  1 1 | 2 2 | 5 x"
    assert "x dead" in lines[12]
    with pytest.raises(InputError, match=r"defects.dead_dies: has \[8, 0\]; it should be \[row, col\] below \[8, 6\]"):
        wafer_pictures(six[0], arrangement, replace(cluster, defects=(DefectMap(((8, 0),)),)))


def test_loads_are_what_ports_carry_of_what_they_could(six):
    step, (picture,) = six
    shares = {share.name: share for share in link_shares(step)}
    for axis in (0, 1):
        found = picture.loads[:, :, axis]
        both = [shares[f"d2d axis {axis} {direction}"] for direction in ("out", "in")]
        # every stage has as many dies as any other
        assert found.mean() == pytest.approx(np.mean([share.mean_share for share in both]))
        assert 0 < found.max() <= max(share.busiest_share for share in both) * (1 + 1e-9)
        # folded, the dies of a stage are alike
        for stage in range(6):
            assert len({float(found[die.row, die.col]) for die in picture.dies.values() if die.stage == stage}) == 1
        assert len(np.unique(found)) > 1


def test_a_link_has_the_mean_of_its_ends(six):
    _, (picture,) = six
    links = {(link.one, link.other): link.load for link in picture.links()}
    assert len(links) == 7 * 6 + 8 * 5
    # between stages 0 and 1 from row to row, and between 0 and 3 from column to column
    for one, other, axis in (((3, 0), (4, 0), 0), ((0, 1), (0, 2), 1)):
        assert links[one, other] == pytest.approx((picture.loads[*one, axis] + picture.loads[*other, axis]) / 2)


def test_chips_simulated_for_themselves_have_loads_of_their_own(six, monkeypatch):
    _, (exact,) = drawn(tensor_parallel=4, pipeline_parallel=6, exact=True)
    assert exact.loads == pytest.approx(six[1][0].loads, rel=0.05)
    # chips of a stage carry much the same, so what tells them apart is put in
    told = np.arange(6 * 8 * 2, dtype=float).reshape(6, 8, 2)
    monkeypatch.setattr(wafer_picture, "_axis_loads", lambda *_: told)
    _, (picture,) = drawn(tensor_parallel=4, pipeline_parallel=6)
    for die in picture.dies.values():
        assert picture.loads[die.row, die.col].tolist() == told[die.stage, 4 * die.replica + die.tensor].tolist()


def test_wafers_that_hold_other_stages_are_shown_too():
    _, two = drawn(96, tensor_parallel=4, pipeline_parallel=12)
    lines = wafer_lines(two)
    assert [line for line in lines if "dies of" in line] == [
        f"wafer {n} of 2, 8 × 6 dies of temp-like-2, the stage of each" for n in (0, 1)
    ]
    _, alike = drawn(96, tensor_parallel=4, pipeline_parallel=6, axis_order="tp-cp-pp-dp")
    assert len(alike) == 2
    assert sum("dies of" in line for line in wafer_lines(alike)) == 1
    assert wafer_svg(two).count("dies of temp-like-2") == wafer_svg(alike).count("dies of temp-like-2")


def test_large_grids_are_left_to_files(six, monkeypatch):
    monkeypatch.setattr(terminal, "MOST_ROWS", 7)
    assert wafer_lines(six[1]) == ["8 × 6 dies of temp-like: too many to show here, --picture FILE draws them"]


def told(element):
    """What an element says when pointed at."""
    return element.findtext(f"{SVG}title", "")


def numbers(element, *names):
    return [float(element.get(name, "nan")) for name in names]


def rectangles(svg):
    """The document, and by position the rectangle of each die."""
    root = ET.fromstring(svg)  # noqa: S314
    found: dict[tuple[int, int], ET.Element] = {}
    for rect in root.iter(f"{SVG}rect"):
        if told(rect):
            row, col = map(int, re.findall(r"\d+", told(rect))[:2])
            found[row, col] = rect
    return root, found


def test_svg_has_every_die_where_it_is_in_the_colour_of_its_stage(six):
    root, found = rectangles(wafer_svg(six[1]))
    picture = six[1][0]
    assert set(found) == set(picture.dies)
    width, height = numbers(root, "width", "height")
    for (row, col), die in picture.dies.items():
        rect = found[row, col]
        assert rect.get("fill") == PALETTE[die.stage]
        assert f"stage {die.stage}, replica {die.replica}, context 0, tensor {die.tensor}" in told(rect)
        # rows go down and columns to the right, with a gap between dies
        x, y, side = numbers(rect, "x", "y", "width")
        if (row + 1, col) in found:
            below = numbers(found[row + 1, col], "x", "y")
            assert below[0] == x
            assert below[1] > y + side + 5
        if (row, col + 1) in found:
            right = numbers(found[row, col + 1], "x", "y")
            assert right[1] == y
            assert right[0] > x + side + 5
        assert 0 <= x <= x + side <= width
        assert 0 <= y <= y + side <= height - 40


def test_svg_has_links_as_wide_as_they_are_full(six):
    root, _ = rectangles(wafer_svg(six[1]))
    widths = {}
    for line in root.iter(f"{SVG}line"):
        a, b, c, d = map(int, re.findall(r"\d+", told(line))[:4])
        (widths[(a, b), (c, d)],) = numbers(line, "stroke-width")
    links = {(link.one, link.other): link.load for link in six[1][0].links()}
    assert set(widths) == set(links)
    most = max(links.values())
    for ends, load in links.items():
        assert widths[ends] == pytest.approx(0.5 + 9 * load / most, abs=0.006)
    legend = [text.text for text in root.iter(f"{SVG}text") if (text.text or "").startswith("link ")]
    assert len(legend) == 3
    assert legend[2] == "link 0.0 % full"


def test_svg_hatches_dead_dies_and_leaves_out_their_links(damaged):
    svg = wafer_svg(damaged)
    root, found = rectangles(svg)
    assert {place for place, rect in found.items() if rect.get("fill") == "url(#dead)"} == DEAD
    assert [pattern.get("id") for pattern in root.iter(f"{SVG}pattern")] == ["dead"]
    ends = [told(line) for line in root.iter(f"{SVG}line")]
    assert len(ends) == 82 - 4 - 2
    assert not any("(1, 2)" in text or "(7, 5)" in text for text in ends)
    assert svg == wafer_svg(damaged)


def contrast(one, other):
    def bright(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((bright(one), bright(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_on_dies_can_be_read_and_fourteen_stages_differ():
    colours = [stage_colours(stage) for stage in range(14)]
    assert len({colour for colour, _ in colours}) == 14
    assert all(contrast(*pair) >= 4.5 for pair in colours)
    assert stage_colours(14) == stage_colours(0)
