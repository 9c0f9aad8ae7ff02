"""Random plans on wafers: tiles near and far, turned, damaged; loans and stores; one wafer or several."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import product

from dovetail.hardware import Cluster, DefectMap, Store
from dovetail.hardware.defects import grid_links
from dovetail.models import Job
from dovetail.plans.plan import Plan
from dovetail.plans.stage_tiles import mesh_of
from dovetail.plans.wafer_part import STORE_CHOICES, Loan, StageTile, WaferPart
from wafer_plans import job_of, tile_plan, wafers

#: Models, how many dies share their weights, and of a mixture how many share experts.
MODELS = (("gpt3-1.3b", (1, 2, 4), (1,)), ("llama-3.2-1b", (1, 2, 4, 8), (1,)), ("deepseek-v2-lite", (1, 2), (1, 2)))
SHAPES = ((1, 2), (2, 2), (1, 4), (2, 3), (2, 4), (4, 2))


@dataclass(frozen=True, slots=True)
class WaferCase:
    """A plan, its wafers, and what is special about it."""

    job: Job
    cluster: Cluster
    plan: Plan
    words: str


def wafer_case(seed: int) -> WaferCase:
    """The plan of a seed."""
    draw = random.Random(seed)  # noqa: S311
    while True:
        case = _drawn(draw)
        if case is not None:
            return case


def _drawn(draw: random.Random) -> WaferCase | None:
    model, shared, experts = draw.choice(MODELS)
    rows, cols, number = draw.randint(4, 6), draw.randint(4, 7), draw.choice([1, 1, 1, 2, 3])
    shape = draw.choice(SHAPES)
    dies = shape[0] * shape[1]
    tensor = draw.choice([n for n in shared if dies % n == 0])
    expert = draw.choice([n for n in experts if dies % n == 0])
    stages = draw.randint(1, min(number * (rows // shape[0]) * (cols // shape[1]), 8))
    maps = _maps(draw, rows, cols, number)
    tiles = _tiles(draw, shape, stages, (rows, cols), number)
    if tiles is None or not all(mesh_of((rows, cols), each).connected for each in maps):
        return None
    microbatches = draw.choice([stages, 2 * stages, 4 * stages]) if stages > 1 else draw.choice([1, 2, 4])
    batch = dies // tensor * draw.choice([1, 1, 2])
    job = job_of(model, 1024, batch * microbatches)
    zero_stage = draw.choice([1, 3])
    choices = [store for store in STORE_CHOICES if zero_stage == 3 or "weights" not in store]
    store = draw.choice(choices) if draw.random() < 0.4 else ()
    loans = _loans(draw, stages) if "activations" not in store and draw.random() < 0.4 else ()
    part = WaferPart(tiles, loans, store, maps if any(each != DefectMap() for each in maps) else ())
    cluster = wafers(rows, cols, number, defects=part.defects)
    plan = tile_plan(
        job,
        *shape,
        stages,
        tensor=tensor,
        sequence=draw.random() < 0.5,
        expert=expert,
        micro_batch=batch,
        zero_stage=zero_stage,
        schedule=draw.choice(["1f1b", "1f1b", "zb_h1", "gpipe"]),
        recompute=draw.choice(["none", "none", "full", "selective"]),
        wafer=part if part != WaferPart() else None,
    )
    if store:
        cluster = replace(cluster, store=Store(1e15, draw.choice([5e11, 2e12, 4e12, 1e13, 4e13])))
    words = f"{model} {shape} x{stages} tp{tensor} m{microbatches} zero{zero_stage} {plan.pipeline_schedule}"
    marks = [
        f"wafers {number}" if number > 1 else "",
        "tiles" if tiles else "",
        "dead" if part.defects else "",
        f"loans {len(loans)}" if loans else "",
        "store " + "+".join(store) if store else "",
    ]
    return WaferCase(job, cluster, plan, " ".join([words, *filter(None, marks)]))


def _maps(draw: random.Random, rows: int, cols: int, number: int) -> tuple[DefectMap, ...]:
    """One or two dead links, or none."""
    return tuple(
        DefectMap((), tuple(draw.sample(grid_links(rows, cols), draw.choice([0, 0, 1, 2])))) for _ in range(number)
    )


def _tiles(
    draw: random.Random, shape: tuple[int, int], stages: int, grid: tuple[int, int], number: int
) -> tuple[StageTile, ...] | None:
    """Anywhere, turned or not; empty for a snake, None where no room was left."""
    if draw.random() < 0.4:
        return ()
    taken: set[tuple[int, int, int]] = set()
    tiles: list[StageTile] = []
    places = [
        StageTile(wafer, row, col, r, c)
        for r, c in {shape, shape[::-1]}
        for wafer, row, col in product(range(number), range(grid[0] - r + 1), range(grid[1] - c + 1))
    ]
    draw.shuffle(places)
    for tile in places:
        dies = {(tile.wafer, *die) for die in tile.dies()}
        if len(tiles) < stages and not dies & taken:
            tiles.append(tile)
            taken |= dies
    return tuple(tiles) if len(tiles) == stages else None


def _loans(draw: random.Random, stages: int) -> tuple[Loan, ...]:
    pairs = [(one, other) for one, other in product(range(stages), repeat=2) if one < other]
    chosen = draw.sample(pairs, min(len(pairs), draw.choice([1, 1, 2])))
    return tuple(sorted(Loan(one, other, draw.choice([5e7, 2e8, 1e9])) for one, other in chosen))
