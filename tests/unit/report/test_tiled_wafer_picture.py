"""Pictures, link shares and traces of plans on tiles: turned tiles, defects, dies left over, loans and stores."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest
from tiled_steps import DEFECTS, JOB, TILES, damaged_wafer, tiled, wafers

from dovetail.cost.calibration import calibration
from dovetail.hardware import DefectMap
from dovetail.plans.arrange import arrange
from dovetail.plans.wafer_part import Loan, StageTile, WaferPart
from dovetail.plans.wafer_tiles import tile_dies
from dovetail.report.step_breakdown import link_shares, stage_breakdowns, store_shares
from dovetail.report.step_trace import step_trace
from dovetail.report.wafer_lines import wafer_lines
from dovetail.report.wafer_svg import wafer_svg
from dovetail.simulation.chips import Chips
from dovetail.simulation.step_tasks import STORE

SVG = "{http://www.w3.org/2000/svg}"
LOANS = (Loan(0, 3, 2e9), Loan(1, 2, 1e8))
STORED = WaferPart(tiles=TILES, store=("optimizer",))


@pytest.fixture(scope="module")
def damaged():
    """Tiles around dead dies and links, with loans and a store."""
    return tiled(*damaged_wafer(replace(STORED, loans=LOANS), wafers(), DEFECTS))


@pytest.fixture(scope="module")
def plain():
    return tiled(WaferPart(tiles=TILES), wafers())


@pytest.fixture(scope="module")
def stored():
    return tiled(STORED, wafers(), rates=True)


def test_dies_are_those_of_the_tiles(plain):
    _, (picture,) = plain
    for stage, tile in enumerate(TILES):
        assert {at for at, die in picture.dies.items() if die.stage == stage} == set(tile.dies())
        assert sorted(die.chip for die in picture.dies.values() if die.stage == stage) == list(range(6))
    assert len(picture.left_over) == 56 - 24
    assert picture.tiled


def test_chips_that_exchange_along_rows_are_in_one_column_unless_their_tile_is_turned(plain):
    plan, cluster = plain[0].plan, wafers()
    arrangement = arrange(plan, JOB.graph(), cluster)
    efficiencies = calibration(cluster.chip, JOB.precision).efficiencies
    chips = Chips.of(plan, cluster, arrangement, efficiencies, exact=True)
    dies = {(die.stage, die.chip): (die.row, die.col) for die in tile_dies(TILES, plan.layouts)}
    for way in (0, 1):
        along = tuple(axis for axis in arrangement.axes.sizes if arrangement.joins[axis][way] > 1)
        groups = chips.groups(along)
        assert along
        for stage in range(4):
            same = 1 - way if stage != 2 else way
            for group in range(int(groups.max()) + 1):
                members = [dies[stage, chip] for chip in np.nonzero(groups == group)[0].tolist()]
                assert len({place[same] for place in members}) == 1
                assert len({place[1 - same] for place in members}) == len(members) == (2, 3)[way]


def test_a_plan_that_says_no_tiles_is_a_snake():
    _, (picture,) = tiled(None, wafers())
    assert wafer_lines([picture])[1:9] == [
        "  0 0 0 . . . .",
        "  0 0 0 . . . .",
        "  1 1 1 . . . .",
        "  1 1 1 . . . .",
        "  2 2 2 . . . .",
        "  2 2 2 . . . .",
        "  3 3 3 . . . .",
        "  3 3 3 . . . .",
    ]


def test_a_terminal_has_what_is_dead_left_over_lent_and_stored(damaged):
    step, pictures = damaged
    lines = wafer_lines(pictures)
    assert lines[:9] == [
        "8 × 7 dies of watos-like, the stage of each",
        "  x 0 0 0 1 1 1",
        "  . 0 0 0 1 1 1",
        "  . . . . . 2 2",
        "  . . . . . 2 2",
        "  . . . . x 2 2",
        "  . . . . 3 3 3",
        "  . . . . 3 3 3",
        "  . . x . . . .",
    ]
    # a link of a dead die is no dead link of its own
    assert re.fullmatch(
        r"x dead, \. left over, links from row to row .* full, links from column to column .* full, 2 dead links, "
        rf"link to the store {100 * store_shares(step)[0]:.1f} % full",
        lines[9],
    )
    assert lines[10:] == [
        "stage 3 lends each die of stage 0 1.86 GiB",
        "stage 2 lends each die of stage 1 95.4 MiB",
    ]


def test_links_work_between_dies_that_work(damaged):
    _, (picture,) = damaged
    assert len(picture.left_over) == 56 - 24 - 3
    links = {(link.one, link.other): link.load for link in picture.links()}
    # corners, edges and the inside have 2, 3 and 4 links
    assert len(links) == 7 * 7 + 8 * 6 - 2 - 4 - 3 - 2
    assert all(pair not in links for pair in DEFECTS.dead_links)
    # of what dies without a stage pass on nothing is known
    assert links[(1, 0), (1, 1)] is None
    assert links[(0, 1), (1, 1)] > 0


def elements(svg: str, tag: str):
    return list(ET.fromstring(svg).iter(f"{SVG}{tag}"))  # noqa: S314


def told(element: ET.Element) -> str:
    return element.findtext(f"{SVG}title", "")


def test_svg_has_every_die_once_as_what_it_is(damaged):
    _, pictures = damaged
    svg = wafer_svg(pictures)
    dies = [told(rect) for rect in elements(svg, "rect") if told(rect)]
    assert len(dies) == len({text.partition(":")[0] for text in dies}) == 56
    assert {text for text in dies if text.endswith(": dead")} == {f"die {at}: dead" for at in DEFECTS.dead_dies}
    assert sum(text.endswith(": left over") for text in dies) == 56 - 24 - 3
    # turned, the rows of the layouts go from column to column
    assert {"die (2, 6): stage 2, place 1 of its tile", "die (3, 5): stage 2, place 2 of its tile"} <= set(dies)
    assert {"die (1, 1): stage 0, place 1 of its tile", "die (0, 2): stage 0, place 2 of its tile"} <= set(dies)
    outlines = [rect for rect in elements(svg, "rect") if rect.get("class") == "tile"]
    sizes = [(float(rect.get("width", 0)) > float(rect.get("height", 0))) for rect in outlines]
    assert sizes == [True, True, False, True]
    assert svg == wafer_svg(pictures)


def test_svg_crosses_dead_links_out(damaged):
    svg = wafer_svg(damaged[1])
    crosses = [told(path) for path in elements(svg, "path") if path.get("class") == "dead-link"]
    assert crosses == ["die (1, 0) to (2, 0): dead link", "die (2, 5) to (2, 6): dead link", ""]  # the last: the legend
    lines = {told(line).partition(" full")[0] for line in elements(svg, "line")}
    assert not any("(1, 0) to (2, 0)" in text or "(2, 5) to (2, 6)" in text for text in lines)


def box(rects, title):
    rect = next(rect for rect in rects if told(rect).startswith(title))
    return [float(rect.get(name, "nan")) for name in ("x", "y", "width", "height")]


def test_svg_has_arrows_from_stages_to_their_lenders(damaged):
    svg = wafer_svg(damaged[1])
    arrows = [path for path in elements(svg, "path") if path.get("class") == "loan"]
    assert [told(arrow) for arrow in arrows] == wafer_lines(damaged[1])[-2:]
    rects = elements(svg, "rect")
    x1, y1, _, _, x2, y2 = map(float, re.findall(r"[\d.]+", arrows[0].get("d", "")))
    for (x, y), tile in (((x1, y1), TILES[0]), ((x2, y2), TILES[3])):
        first = box(rects, f"die {tile.dies()[0]}")
        last = box(rects, f"die {tile.dies()[-1]}")
        assert first[0] < x < last[0] + last[2]
        assert first[1] < y < last[1] + last[3]
        assert x == pytest.approx((first[0] + last[0] + last[2]) / 2, abs=0.1)
    legend = [text.text for text in elements(svg, "text")]
    assert {"dead", "dead link", "left over", "lent memory"} <= set(legend)
    assert sum((text or "").startswith("link to the store") for text in legend) == 1


def test_signs_of_what_is_not_there_are_left_out(plain):
    legend = {text.text for text in elements(wafer_svg(plain[1]), "text")}
    assert "left over" in legend
    assert legend.isdisjoint({"dead", "dead link", "lent memory", "between tensor groups"})
    assert not any("store" in (text or "") for text in legend)


def test_wafers_have_defects_of_their_own_and_loans_go_from_one_to_another():
    tiles = (*TILES[:3], StageTile(1, 5, 4, 2, 3))
    part = WaferPart(tiles=tiles, loans=(Loan(0, 3, 2e9),), store=("optimizer",))
    step, pictures = tiled(*damaged_wafer(part, wafers(2), DEFECTS, DefectMap(((3, 3),))), rates=True)
    assert [picture.dead for picture in pictures] == [frozenset(DEFECTS.dead_dies), {(3, 3)}]
    assert [len(picture.dies) for picture in pictures] == [18, 6]
    assert [picture.store_share for picture in pictures] == store_shares(step)
    assert store_shares(step)[0] > store_shares(step)[1] > 0
    lines = wafer_lines(pictures)
    assert [line for line in lines if "dies of" in line] == [
        f"wafer {n} of 2, 8 × 7 dies of watos-like-2, the stage of each" for n in (0, 1)
    ]
    assert sum("lends" in line for line in lines) == 1
    svg = wafer_svg(pictures)
    (arrow,) = [path for path in elements(svg, "path") if path.get("class") == "loan"]
    ends = [float(n) for n in re.findall(r"[\d.]+", arrow.get("d", ""))]
    # the second wafer is below the first
    assert ends[5] > ends[1] + 8 * 72
    events = json.loads("".join(step_trace(step).parts()))["traceEvents"]
    assert {(e["pid"], e["name"]) for e in events if e["ph"] == "C" and e["pid"] > 4} == {
        (5, "store 0"),
        (6, "store 1"),
    }
    # wafers on which nothing but what is dead differs are both shown
    alike = [replace(picture, dies={}) for picture in pictures]
    assert sum("dies of" in line for line in wafer_lines(alike)) == 2


def test_a_turned_plan_is_drawn_turned():
    grid = wafers(grid=(6, 6))
    tiles = (StageTile(0, 0, 0, 2, 3), StageTile(0, 0, 3, 2, 3), StageTile(0, 2, 3, 2, 3), StageTile(0, 4, 0, 2, 3))
    turned = tuple(StageTile(0, tile.col, tile.row, tile.cols, tile.rows) for tile in tiles)
    (one,), (other,) = (tiled(WaferPart(tiles=each), grid)[1] for each in (tiles, turned))
    assert np.unique(one.loads[:, :, 0]).size > 2
    assert not np.allclose(one.loads[:, :, 0], one.loads[:, :, 1])
    # but for tied embeddings, which are summed along rows wherever stages are
    assert other.loads == pytest.approx(one.loads.transpose(1, 0, 2)[:, :, ::-1], rel=0.05)
    assert {(col, row): die.chip for (row, col), die in other.dies.items()} == {
        at: die.chip for at, die in one.dies.items()
    }


@pytest.mark.parametrize("exact", [False, True])
def test_ports_carry_the_same_with_a_store_behind_them(plain, exact):
    step, (picture,) = tiled(STORED, wafers(), exact=exact)
    whole, (without,) = plain
    assert step.tasks.link_names[-1] == "store 0"
    assert picture.loads * step.step_time_s == pytest.approx(without.loads * whole.step_time_s, rel=1e-6)
    assert picture.store_share == store_shares(step)[0] > 0
    assert without.store_share is None
    assert store_shares(whole) == []


def test_shares_of_links_are_those_of_ports_alone(plain, stored):
    (whole, _), (step, _) = plain, stored
    before, after = ({link.name: link for link in link_shares(each)} for each in (whole, step))
    assert before.keys() == after.keys()
    for name, link in after.items():
        assert link.busiest_stage == before[name].busiest_stage
        assert link.mean_share * step.step_time_s == pytest.approx(before[name].mean_share * whole.step_time_s)
    graph, labels = step.tasks.graph, step.tasks.labels
    streamed = graph.bytes[labels.stream == labels.streams.index(STORE)].sum()
    assert store_shares(step) == pytest.approx([streamed / 2e12 / step.step_time_s])
    for seconds in stage_breakdowns(step):
        assert sum(seconds.values()) == pytest.approx(step.step_time_s)


def test_a_trace_has_a_process_for_each_store(stored):
    step, _ = stored
    events = json.loads("".join(step_trace(step).parts()))["traceEvents"]
    named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert named == {1: "stage 0", 2: "stage 1", 3: "stage 2", 4: "stage 3", 5: "store of wafer 0"}
    # no thread has the number of a process
    assert min(e["tid"] for e in events if e["name"] == "thread_name") == 6
    counters = {(e["pid"], e["name"]) for e in events if e["ph"] == "C" and e["name"] != "memory"}
    assert {name for pid, name in counters if pid == 5} == {"store 0"}
    assert {name for pid, name in counters if pid < 5} <= set(step.tasks.link_names[: step.tasks.chip_links])
    streams = [e for e in events if e["ph"] == "X" and e["name"] == "gradients and weights"]
    assert {e["pid"] for e in streams} == {1, 2, 3, 4}
    (unit,) = {key for e in events if e["ph"] == "C" and e["pid"] == 5 for key in e["args"]}
    assert unit == "% of 2000 GB/s"


def test_loans_are_arrows_of_a_trace_on_their_way_back():
    step, _ = tiled(WaferPart(tiles=TILES, loans=LOANS[:1]), wafers(), rates=True)
    events = json.loads("".join(step_trace(step).parts()))["traceEvents"]
    sent = [e for e in events if e["ph"] == "X" and e["name"] == "to be held by stage 3"]
    back = [e for e in events if e["ph"] == "X" and e["name"] == "back to stage 0"]
    assert [e["pid"] for e in sent] == [1] * 4
    assert [e["pid"] for e in back] == [4] * 4
    starts = {(e["pid"], e["ts"]) for e in events if e["ph"] == "s"}
    assert {(e["pid"], e["ts"]) for e in back} <= starts
    assert sum(e["args"]["bytes"] for e in sent) == sum(e["args"]["bytes"] for e in back) > 0
