"""Where plans lie on wafers: every die once, groups as rectangles, stages as far apart as simulated."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import product

import pytest

from dovetail import hardware, models
from dovetail.cost.calibration import calibration
from dovetail.errors import InputError
from dovetail.hardware.network import ways
from dovetail.models import Job
from dovetail.plans.arrange import PIPELINE, arrange, stage_hops
from dovetail.plans.plan import PlanSpec, resolve_plan
from dovetail.plans.wafer_tiles import die_tiles, is_wafer, snake, wafer_shape
from dovetail.simulation.chips import Chips

JOB = Job(models.load("llama-3.1-8b"), seq_len=4096, global_batch=25 * 672)
GRAPH = JOB.graph()
CLUSTERS = {
    f"{name}-{chips}": hardware.cluster(name, chips)
    for name, chips in (("watos-like", 56), ("temp-like", 96), ("dojo-tile", 25), ("wse-3-like", 84))
}


def laid_out(cluster, **fields):
    spec = PlanSpec(**fields)
    plan = resolve_plan(spec, chips=cluster.chips, global_batch=25 * 672, num_layers=32)
    arrangement = arrange(plan, GRAPH, cluster)
    return plan, arrangement, die_tiles(plan, arrangement, cluster)


def plans(cluster):
    """Degrees that nest in a wafer, with stages outside copies and inside them."""
    dies = math.prod(wafer_shape(cluster))
    for t, c, p in product((1, 2, 3, 4, 5, 7, 8, 14), (1, 2), (1, 2, 3, 4, 5, 6, 7, 8, 12)):
        stage = cluster.chips // p
        if dies % (t * c * p) == 0 and (dies % stage == 0 or stage % dies == 0):
            for order in ("tp-cp-dp-pp", "tp-cp-pp-dp"):
                yield {"tensor_parallel": t, "context_parallel": c, "pipeline_parallel": p, "axis_order": order}


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS.keys())
def test_every_die_is_one_chip(cluster):
    rows, cols = wafer_shape(cluster)
    every = {(w, r, c) for w in range(cluster.chips // (rows * cols)) for r in range(rows) for c in range(cols)}
    for fields in plans(cluster):
        plan, _, tiles = laid_out(cluster, **fields)
        assert {(tile.wafer, tile.row, tile.col) for tile in tiles} == every, fields
        chips = {(tile.stage, tile.replica, tile.context, tile.tensor) for tile in tiles}
        assert len(chips) == len(tiles) == plan.chips


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS.keys())
def test_tensor_groups_are_rectangles_of_neighbours(cluster):
    for fields in plans(cluster):
        plan, arrangement, tiles = laid_out(cluster, **fields)
        # tensor parallelism is the innermost: its axes together take what they join along rows and columns
        axes = arrangement.axes.mesh.tensor
        height, width = (math.prod(arrangement.joins[axis][way] for axis in axes) for way in (0, 1))
        assert height * width == plan.tensor_parallel
        groups = defaultdict(list)
        for tile in tiles:
            groups[tile.tensor_group].append(tile)
        for group in groups.values():
            top, left = min(tile.row for tile in group), min(tile.col for tile in group)
            box = {(row, col) for row in range(top, top + height) for col in range(left, left + width)}
            assert {(tile.row, tile.col) for tile in group} == box, fields
            assert len({tile.wafer for tile in group}) == 1
            assert (top % height, left % width) == (0, 0)


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS.keys())
def test_chips_that_an_axis_joins_lie_its_strides_apart(cluster):
    for fields in plans(cluster):
        _, arrangement, tiles = laid_out(cluster, **fields)
        at = {(tile.stage, tile.chip): (tile.row, tile.col) for tile in tiles if tile.wafer == 0}
        low = 1
        for axis, size in arrangement.axes.sizes.items():
            for way in (0, 1):
                places = {at[0, n * low][way] - at[0, 0][way] for n in range(size) if (0, n * low) in at}
                joins, stride = arrangement.joins[axis][way], arrangement.strides[axis][way]
                assert places == {n * stride for n in range(joins)}, (fields, axis)
            low *= size


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS.keys())
def test_neighbouring_stages_are_as_many_links_apart_as_the_simulator_waits_for(cluster):
    known = calibration(cluster.chip, JOB.precision)
    compared = 0
    for fields in plans(cluster):
        plan, arrangement, tiles = laid_out(cluster, **fields)
        if plan.pipeline_parallel == 1:
            continue
        chips = Chips.of(plan, cluster, arrangement, known.efficiencies, exact=False)
        at = {(tile.stage, tile.chip): tile for tile in tiles}
        hops = []
        for stage in range(plan.pipeline_parallel - 1):
            pairs = [(at[stage, chip], at[stage + 1, chip]) for chip in range(chips.stage_chips)]
            apart = {abs(a.row - b.row) + abs(a.col - b.col) for a, b in pairs}
            assert len(apart) == 1, fields
            if any(a.wafer != b.wafer for a, b in pairs):
                assert apart == {0}
                continue
            assert all(a.row == b.row or a.col == b.col for a, b in pairs)
            hops.append(apart.pop())
            wait_s = hops[-1] * float(chips.ways[0].latency_s) + float(chips.ways[0].launch_s)
            assert chips.transfer(stage, stage + 1)[0].wait_s == pytest.approx(wait_s), fields
            compared += 1
        # the model counts the nearer of two directions, and none where every stage has wafers of its own
        assert min(hops, default=None) == stage_hops(arrangement, cluster)
        along = zip(ways(cluster.tiers), arrangement.joins[PIPELINE], arrangement.strides[PIPELINE], strict=True)
        assert set(hops) <= {stride for way, n, stride in along if way.axis is not None and n > 1}
    assert compared


def test_a_pipeline_over_two_wafers_goes_on_at_the_same_place_of_the_second():
    cluster = CLUSTERS["temp-like-96"]
    _, _, tiles = laid_out(cluster, tensor_parallel=4, context_parallel=2, pipeline_parallel=12)
    at = {(tile.stage, tile.chip): tile for tile in tiles}
    assert {tile.wafer for tile in tiles if tile.stage < 6} == {0}
    assert {tile.wafer for tile in tiles if tile.stage >= 6} == {1}
    for chip in range(8):
        assert (at[5, chip].row, at[5, chip].col) == (at[6, chip].row, at[6, chip].col)


def test_a_snake_turns_at_the_end_of_every_line():
    assert [snake(n, (2, 3)) for n in range(6)] == [[0, 0], [1, 0], [1, 1], [0, 1], [0, 2], [1, 2]]


def test_clusters_without_a_grid_of_dies_and_plans_that_do_not_nest_are_refused():
    cluster = hardware.cluster("h100-sxm", 64)
    assert not is_wafer(cluster)
    assert all(map(is_wafer, CLUSTERS.values()))
    with pytest.raises(InputError, match="cluster h100-sxm-64: is no wafer; "):
        wafer_shape(cluster)
    # a stage is half a wafer and three of them a pipeline: these end in the middle of the second
    with pytest.raises(InputError, match=r"do not nest in 8 × 7 dies"):
        laid_out(hardware.cluster("watos-like", 168), tensor_parallel=28, pipeline_parallel=3, axis_order="tp-cp-pp-dp")
