"""Simulated steps of plans whose stages are tiles of wafers, with whatever a plan says of its wafers."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from dovetail import frameworks, hardware, models
from dovetail.hardware import Cluster, DefectMap, Store
from dovetail.models import Job
from dovetail.plans.arrange import arrange
from dovetail.plans.file_types import LayoutsSpec
from dovetail.plans.plan import Plan, PlanSpec, resolve_plan
from dovetail.plans.stage_tiles import check_wafer
from dovetail.plans.wafer_part import StageTile, WaferPart
from dovetail.report.wafer_picture import WaferPicture, wafer_pictures
from dovetail.simulation.simulate import Simulation, simulate

JOB = Job(models.load("gpt3-1.3b"), seq_len=2048, global_batch=4)
FRAMEWORK = frameworks.load("wafer")
STORE = Store(1e15, 2e12)

#: Four stages of 2 × 3 dies, the third turned.
TILES = (StageTile(0, 0, 1, 2, 3), StageTile(0, 0, 4, 2, 3), StageTile(0, 2, 5, 3, 2), StageTile(0, 5, 4, 2, 3))
DEFECTS = DefectMap(((0, 0), (4, 4), (7, 2)), (((0, 0), (1, 0)), ((1, 0), (2, 0)), ((2, 5), (2, 6))))


def wafers(number: int = 1, grid: tuple[int, int] = (8, 7)) -> Cluster:
    """WATOS-like wafers with a store."""
    wafer = replace(hardware.wafer("watos-like"), rows=grid[0], cols=grid[1])
    return replace(wafer.cluster(wafers=number), store=STORE)


#: What the rows of a tile shard of an operator; columns hold copies unless they are said to shard too.
ROWS = {
    "embedding": {"hidden": "embedded position_added position_embedded", "seq": "embedding_dropout"},
    "head": {"seq": "final_norm", "vocab": "logits loss"},
    "layer": {
        "kv_heads": "attention key key.biased query query.biased value value.biased",
        "ffn": "mlp.up mlp.up.biased mlp.activation mlp.down",
        "seq": "mlp.down.biased output output.biased mixer_norm mixer_dropout mixer_residual "
        "feed_forward_norm feed_forward_dropout feed_forward_residual",
    },
}
COLS = {"embedded": "vocab", "logits": "vocab", "loss": "vocab"}


@lru_cache(maxsize=1)
def four_stages() -> Plan:
    """A plan of four stages of 2 × 3 dies, which says nothing of the wafer."""
    classes = {
        layer: {
            name: {"rows": f"2 {dim}", "cols": f"3 {COLS.get(name, 'replicate')}"}
            for dim, names in by_dim.items()
            for name in names.split()
        }
        for layer, by_dim in ROWS.items()
    }
    stream = {"rows": "2 seq", "cols": "3 replicate"}
    layouts = LayoutsSpec.model_validate({"tile": [2, 3], "stream": stream, "classes": classes})
    spec = PlanSpec(tensor_parallel=6, pipeline_parallel=4, zero_stage=1, layouts=layouts)
    return resolve_plan(spec, chips=24, global_batch=JOB.global_batch, num_layers=24)


def tiled(part: WaferPart | None, cluster: Cluster, **options: bool) -> tuple[Simulation, list[WaferPicture]]:
    """The step and the pictures of the plan with this part."""
    plan = replace(four_stages(), wafer=part)
    check_wafer(plan, cluster)
    step = simulate(plan, JOB, cluster, FRAMEWORK, **options)
    return step, wafer_pictures(step, arrange(plan, JOB.graph(), cluster), cluster)


def damaged_wafer(part: WaferPart, cluster: Cluster, *defects: DefectMap) -> tuple[WaferPart, Cluster]:
    """The plan's part and the wafers with the same defects."""
    return replace(part, defects=defects), replace(cluster, defects=defects)
