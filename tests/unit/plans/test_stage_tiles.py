"""Stages on tiles: where they are, the ways between them walked die by die, and what is refused."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import replace

import pytest

from dovetail import hardware
from dovetail.errors import InputError
from dovetail.hardware import Cluster, DefectMap, Store
from dovetail.hardware.defects import Position, grid_links
from dovetail.plans.plan import Plan
from dovetail.plans.stage_tiles import (
    Handover,
    check_wafer,
    damage,
    damaged,
    fellows,
    handover,
    mesh_of,
    num_wafers,
    snake_tiles,
    stage_tiles,
)
from dovetail.plans.wafer_part import Loan, StageTile, WaferPart
from wafer_plans import job_of, tile_plan, wafers

JOB = job_of()
WAFER = wafers(4, 4)
STORE = Store(1e15, 1e12)


def plan_on(*tiles: StageTile, stages: int = 2, rows: int = 2, cols: int = 2, zero_stage: int = 1, **part: object):
    wafer = WaferPart(tiles=tiles, **part)  # type: ignore[arg-type]
    tensor = 2 if rows * cols % 2 == 0 else 1
    return tile_plan(JOB, rows, cols, len(tiles) or stages, tensor=tensor, zero_stage=zero_stage, wafer=wafer)


NEAR = (StageTile(0, 0, 0, 2, 2), StageTile(0, 0, 2, 2, 2))
HERE, CUT = StageTile(0, 0, 0, 2, 2), DefectMap((), (((0, 1), (0, 2)),))
INSIDE = DefectMap((), (((0, 0), (0, 1)),))
#: two columns of dies on their own
APART = DefectMap((), tuple(((row, 1), (row, 2)) for row in range(4)))


def refused(plan: Plan, cluster: Cluster) -> str:
    with pytest.raises(InputError) as error:
        check_wafer(plan, cluster)
    return str(error.value)


AGAIN = "plan again for the damaged wafer, or add it to wafer.defects."
REFUSED = {
    "no wafer": (
        plan_on(),
        hardware.cluster("dgx-a100-80gb", 8),
        "plan: wafer: is for wafers, and dgx-a100-80gb is none; leave it out.",
    ),
    "few tiles": (
        replace(plan_on(*NEAR), pipeline_parallel=3),
        WAFER,
        "plan: wafer.tiles: has 2 tiles; it should have one for each of 3 stages.",
    ),
    "tiles without layouts": (
        replace(plan_on(*NEAR), layouts=None),
        WAFER,
        "plan: wafer.tiles: are for plans with layouts; leave them out.",
    ),
    "loans without layouts": (
        replace(plan_on(loans=(Loan(0, 1, 1.0),)), layouts=None),
        WAFER,
        "plan: wafer.loans[0]: is for plans with layouts; leave it out.",
    ),
    "other shape": (
        plan_on(NEAR[0], StageTile(0, 0, 2, 1, 4)),
        WAFER,
        "plan: wafer.tiles[1]: is 1 × 4 dies; it should be 2 × 2 as the layouts are, or turned.",
    ),
    "beyond a row": (
        plan_on(NEAR[0], StageTile(0, 3, 0, 2, 2)),
        WAFER,
        "plan: wafer.tiles[1]: is not on the wafers; there are 1 wafers of 4 × 4 dies.",
    ),
    "beyond a wafer": (
        plan_on(NEAR[0], StageTile(1, 0, 0, 2, 2)),
        WAFER,
        "plan: wafer.tiles[1]: is not on the wafers; there are 1 wafers of 4 × 4 dies.",
    ),
    "too many in a snake": (
        plan_on(stages=5),
        WAFER,
        "plan: wafer.tiles[4]: is not on the wafers; there are 1 wafers of 4 × 4 dies.",
    ),
    "overlap": (
        plan_on(NEAR[0], StageTile(0, 1, 1, 2, 2)),
        WAFER,
        "plan: wafer.tiles[1]: has die [1, 1], which stage 0 has too; tiles should share no die.",
    ),
    "dead die": (
        plan_on(*NEAR),
        wafers(4, 4, defects=(DefectMap(((1, 3),)),)),
        "plan: wafer.tiles[1]: has die [1, 3], which is dead; "
        "plan again for the damaged wafer: dovetail plan --strategy free, or --keep.",
    ),
    "dead die the plan knows": (
        plan_on(*NEAR, defects=(DefectMap(((1, 3),)),)),
        WAFER,
        "plan: wafer.tiles[1]: has die [1, 3], which is dead; "
        "plan again for the damaged wafer: dovetail plan --strategy free, or --keep.",
    ),
    "dead link": (
        plan_on(*NEAR),
        wafers(4, 4, defects=(INSIDE,)),
        f"plan: wafer.tiles[0]: uses the link [0, 0] to [0, 1], which is dead; {AGAIN}",
    ),
    "dead link on the way": (
        plan_on(*NEAR),
        wafers(4, 4, defects=(CUT,)),
        f"plan: wafer.tiles[0]: sends over the link [0, 1] to [0, 2], which is dead; {AGAIN}",
    ),
    "dead die on the way": (
        plan_on(HERE, StageTile(0, 2, 2, 2, 2)),
        wafers(4, 4, defects=(DefectMap(((0, 3),)),)),
        f"plan: wafer.tiles[0]: sends over the link [0, 2] to [0, 3], which is dead; {AGAIN}",
    ),
    "dead die on the way back": (
        plan_on(HERE, StageTile(0, 2, 2, 2, 2)),
        wafers(4, 4, defects=(DefectMap(((3, 1),)),)),
        f"plan: wafer.tiles[1]: sends over the link [3, 2] to [3, 1], which is dead; {AGAIN}",
    ),
    "dead link on the way of a loan": (
        plan_on(
            StageTile(0, 0, 0, 2, 2),
            StageTile(0, 2, 0, 2, 2),
            StageTile(0, 2, 2, 2, 2),
            StageTile(0, 0, 2, 2, 2),
            loans=(Loan(0, 3, 1e9),),
        ),
        wafers(4, 4, defects=(CUT,)),
        f"plan: wafer.tiles[0]: sends over the link [0, 1] to [0, 2], which is dead; {AGAIN}",
    ),
    "no way": (
        plan_on(*NEAR, defects=(APART,)),
        WAFER,
        "plan: wafer.tiles[0]: does not reach the tile of stage 1; choose tiles that live links join.",
    ),
    "a tile in parts": (
        plan_on(StageTile(0, 0, 1, 2, 2), defects=(APART,)),
        WAFER,
        "plan: wafer.tiles[0]: has die [0, 2], which die [0, 1] does not reach; choose tiles that live links join.",
    ),
    "maps": (
        plan_on(*NEAR, defects=(CUT, CUT)),
        WAFER,
        "plan: wafer.defects: has 2 maps; it should have one for each of 1.",
    ),
    "a map of another wafer": (
        plan_on(*NEAR, defects=(DefectMap(((9, 9),)),)),
        WAFER,
        "plan: wafer.defects[0].dead_dies: has [9, 9]; it should be [row, col] below [4, 4].",
    ),
    "a loan to itself": (
        plan_on(*NEAR, loans=(Loan(1, 1, 1e9),)),
        WAFER,
        "plan: wafer.loans[0]: is from stage 1 to 1; both should be different stages below 2.",
    ),
    "a loan of no stage": (
        plan_on(*NEAR, loans=(Loan(0, 1, 1e9), Loan(0, 2, 1e9))),
        WAFER,
        "plan: wafer.loans[1]: is from stage 2 to 0; both should be different stages below 2.",
    ),
    "a loan of what is stored": (
        plan_on(*NEAR, loans=(Loan(0, 1, 1e9),), store=("optimizer", "activations")),
        wafers(4, 4, store=STORE),
        "plan: wafer.loans: are of activations, which the store holds; "
        "leave out one of them: what the store holds need not be lent.",
    ),
    "no store": (
        plan_on(*NEAR, store=("optimizer",)),
        WAFER,
        "plan: wafer.store: is used, but watos-like has none; leave it out.",
    ),
    "whole weights in the store": (
        plan_on(*NEAR, store=("optimizer", "weights")),
        wafers(4, 4, store=STORE),
        "plan: zero_stage: is 1 with weights in the store; "
        "it should be 3: dies gather the weights of the layer at work.",
    ),
    "a whole wafer with a dead die": (
        replace(plan_on(), layouts=None, wafer=None),
        wafers(4, 4, defects=(DefectMap(((1, 3),)),)),
        "plan: degrees: has die [1, 3], which is dead; "
        "plan again for the damaged wafer: dovetail plan --strategy free, or --keep.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_each_refusal_has_its_sentence(case: str) -> None:
    plan, cluster, sentence = REFUSED[case]
    assert refused(plan, cluster) == sentence


@pytest.mark.parametrize(
    ("plan", "cluster"),
    [
        (plan_on(*NEAR), WAFER),
        (plan_on(*NEAR), wafers(4, 4, defects=(DefectMap(((3, 3),), (((2, 0), (2, 1)),)),))),
        # known, so gone around
        (plan_on(*NEAR, defects=(CUT,)), wafers(4, 4, defects=(CUT,))),
        (plan_on(*NEAR, defects=(INSIDE,)), wafers(4, 4, defects=(INSIDE,))),
        (plan_on(*NEAR, store=("optimizer", "weights"), zero_stage=3), wafers(4, 4, store=STORE)),
        (plan_on(StageTile(1, 0, 0, 2, 2), StageTile(0, 2, 2, 2, 2)), wafers(4, 4, 2)),
        (plan_on(StageTile(0, 0, 0, 1, 2), StageTile(0, 1, 0, 2, 1), rows=1, cols=2), WAFER),
        (replace(plan_on(), layouts=None, wafer=None), wafers(4, 4)),
        (replace(plan_on(), layouts=None, wafer=None), hardware.cluster("dgx-a100-80gb", 8)),
    ],
)
def test_what_runs_is_not_refused(plan: Plan, cluster: Cluster) -> None:
    check_wafer(plan, cluster)


def test_a_snake_goes_down_and_up_and_to_the_next_wafer() -> None:
    tiles = snake_tiles(2, 3, 7, (4, 6))
    assert [(t.wafer, t.row, t.col) for t in tiles] == [
        (0, 0, 0), (0, 2, 0), (0, 2, 3), (0, 0, 3), (1, 0, 3), (1, 2, 3), (1, 2, 0),
    ]  # fmt: skip
    with pytest.raises(InputError, match="is 5 × 1 on 4 × 6 dies; use a smaller tile"):
        snake_tiles(5, 1, 1, (4, 6))
    plan = tile_plan(JOB, 2, 2, 4, tensor=2)
    assert stage_tiles(plan, WAFER) == snake_tiles(2, 2, 4, (4, 4))
    assert stage_tiles(plan_on(*NEAR), WAFER) == NEAR


def test_damaged_wafers_have_a_map_each_or_none() -> None:
    two = wafers(4, 4, 2)
    assert num_wafers(two) == 2
    assert damaged(two, (CUT, INSIDE), "here").defects == (CUT, INSIDE)
    assert damaged(two, (DefectMap(), DefectMap()), "here") == two
    with pytest.raises(InputError, match="here: has 1 maps; it should have one for each of 2 wafers"):
        damaged(two, (CUT,), "here")


def walked(rows: int, cols: int, defects: DefectMap, source: Position, target: Position) -> list[tuple]:
    """The links of a way found here: along the row and then the column if all of it lives, otherwise the shortest."""
    dead, cut = set(defects.dead_dies), set(defects.dead_links)

    def linked(a: Position, b: Position) -> bool:
        return not {a, b} & dead and (min(a, b), max(a, b)) not in cut

    way, here = [], source
    for axis in (1, 0):
        while here[axis] != target[axis]:
            step = 1 if target[axis] > here[axis] else -1
            ahead = (here[0] + step, here[1]) if axis == 0 else (here[0], here[1] + step)
            way.append((here, ahead))
            here = ahead
    if all(linked(a, b) for a, b in way):
        return way

    def around(die: Position) -> list[Position]:
        row, col = die
        others = [(row, col - 1), (row, col + 1), (row - 1, col), (row + 1, col)]
        inside = [(r, c) for r, c in others if 0 <= r < rows and 0 <= c < cols]
        return [other for other in inside if linked(die, other)]

    left, ahead = {target: 0}, deque([target])
    while ahead:
        here = ahead.popleft()
        for other in around(here):
            if other not in left:
                left[other] = left[here] + 1
                ahead.append(other)
    way, here = [], source
    while here != target:
        nearer = next(other for other in around(here) if left.get(other, 99) < left[here])
        way.append((here, nearer))
        here = nearer
    return way


def test_ways_are_those_walked_die_by_die() -> None:
    """Hops of the longest and messages of the busiest link, near and far, turned, whole and damaged."""
    draw = random.Random(7)  # noqa: S311
    detours = turned = 0
    for _ in range(150):
        rows, cols = draw.randint(3, 6), draw.randint(3, 6)
        shape = draw.choice([(1, 2), (2, 2), (1, 3), (2, 1), (2, 3)])
        places = [
            StageTile(0, row, col, r, c)
            for r, c in {shape, shape[::-1]}
            for row in range(rows - r + 1)
            for col in range(cols - c + 1)
        ]
        one, other = draw.sample(places, 2)
        links = draw.sample(grid_links(rows, cols), draw.choice([0, 1, 3]))
        mesh = mesh_of((rows, cols), DefectMap((), tuple(links)))
        if set(one.dies()) & set(other.dies()) or not mesh.connected:
            continue
        plan = plan_on(one, other, rows=shape[0], cols=shape[1], defects=(DefectMap((), tuple(links)),))
        found = handover(plan, wafers(rows, cols), 0, 1)
        ways = [walked(rows, cols, DefectMap((), tuple(links)), *pair) for pair in fellows(one, other)]
        carried = Counter(link for way in ways for link in way)
        assert found == Handover(max(map(len, ways)), max(carried.values()))
        whole = [abs(a[0] - b[0]) + abs(a[1] - b[1]) for a, b in fellows(one, other)]
        detours += sum(map(len, ways)) > sum(whole)
        turned += (one.rows, one.cols) != (other.rows, other.cols)
    assert detours > 3
    assert turned > 20


def test_fellows_of_a_turned_tile_change_row_and_column() -> None:
    # [0, 0]-[0, 3], [0, 1]-[1, 3], [0, 2]-[2, 3]
    assert list(fellows(StageTile(0, 0, 0, 1, 3), StageTile(0, 0, 3, 3, 1))) == [
        ((0, 0), (0, 3)), ((0, 1), (1, 3)), ((0, 2), (2, 3)),
    ]  # fmt: skip
    around = DefectMap(((0, 2),))
    plan = plan_on(StageTile(0, 0, 0, 1, 2), StageTile(0, 0, 3, 1, 2), rows=1, cols=2, defects=(around,))
    assert handover(plan, wafers(2, 6), 0, 1).hops == 5
    off = plan_on(StageTile(0, 0, 0, 2, 2), StageTile(1, 0, 0, 2, 2))
    assert handover(off, wafers(4, 4, 2), 0, 1) == Handover(0, 0)


def test_damage_is_what_is_dead_inside_the_tile() -> None:
    assert damage(plan_on(*NEAR, defects=(CUT,)), WAFER, 0) is None
    found = damage(plan_on(*NEAR, defects=(INSIDE,)), WAFER, 0)
    assert found is not None
    assert (found.corner, found.rows, found.cols, found.turned) == ((0, 0), 2, 2, False)
    assert damage(plan_on(*NEAR, defects=(INSIDE,)), WAFER, 1) is None
    second = plan_on(StageTile(1, 0, 0, 2, 2), StageTile(0, 0, 0, 2, 2), defects=(DefectMap(), INSIDE))
    assert damage(second, wafers(4, 4, 2), 0) is not None
    assert damage(second, wafers(4, 4, 2), 1) is None
    turned = plan_on(StageTile(0, 0, 0, 2, 1), rows=1, cols=2, defects=(DefectMap((), (((0, 0), (1, 0)),)),))
    found = damage(turned, WAFER, 0)
    assert found is not None
    assert found.turned
