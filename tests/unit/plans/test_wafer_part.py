"""What plan and cluster files say of wafers: read, written, and read again."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from dovetail.errors import InputError
from dovetail.hardware import DefectMap, Store
from dovetail.plans.plan import PlanSpec, resolve_plan
from dovetail.plans.plan_file import Task, task_of
from dovetail.plans.wafer_part import STORE_CHOICES, Loan, StageTile, WaferPart, wafer_document
from dovetail.plans.write import plan_document, plan_fields, plan_part
from wafer_plans import job_of, tile_plan, wafers

JOB = job_of()
TILES = tuple(StageTile(0, 2 * row, 2 * col, 2, 2) for row, col in ((0, 0), (1, 0), (1, 1), (0, 1)))
LINK = DefectMap((), (((0, 0), (0, 1)),))


def read(part: WaferPart | None, cluster=None, zero_stage: int = 3) -> tuple[Task, Task]:
    """A plan as it is, and as a file of it says."""
    cluster = cluster or wafers(4, 4, store=Store(1e15, 1e12))
    plan = tile_plan(JOB, 2, 2, 4, tensor=2, zero_stage=zero_stage, wafer=part)
    document = yaml.safe_load(yaml.safe_dump(plan_document(plan, JOB, cluster, "wafer")))
    found = task_of(document, "plan.yaml")
    return Task(JOB, cluster, found.framework, plan), found


@pytest.mark.parametrize(
    "part",
    [
        WaferPart(tiles=TILES),
        WaferPart(tiles=TILES, loans=(Loan(0, 3, 1e9), Loan(1, 3, 5e8))),
        WaferPart(defects=(LINK,)),
        WaferPart(tiles=TILES, store=("optimizer", "weights"), defects=(LINK,)),
        *(WaferPart(store=choice) for choice in STORE_CHOICES if choice),
    ],
)
def test_a_wafer_part_is_read_as_it_was_written(part: WaferPart) -> None:
    given, found = read(part)
    assert found.plan == given.plan
    assert found.plan.wafer == part
    assert (found.cluster.store, found.cluster.tiers) == (given.cluster.store, given.cluster.tiers)
    assert plan_fields(found.plan)["wafer"] == wafer_document(part) == plan_part(found.plan)["wafer"]


def test_what_is_empty_is_left_out() -> None:
    _, found = read(None)
    assert found.plan.wafer is None
    assert "wafer" not in plan_part(found.plan)
    assert wafer_document(WaferPart()) == {}
    assert resolved({"wafer": {}}).wafer is None
    # a map of nothing dead is none
    assert resolved({"wafer": {"defects": {"dead_dies": []}}}).wafer is None


def resolved(fields: dict[str, Any]):
    spec = PlanSpec.model_validate(fields)
    return resolve_plan(spec, chips=16, global_batch=16, num_layers=24)


def test_files_may_be_short() -> None:
    """A tile without a wafer is on the first, one map is of one wafer, links have no direction, order is ours."""
    part = resolved(
        {
            "wafer": {
                "tiles": [[0, 0, 2, 2], [1, 2, 2, 2, 2]],
                "loans": [{"stage": 1, "lender": 0, "bytes": 2.0}, {"stage": 0, "lender": 1, "bytes": 1.0}],
                "store": ["weights", "optimizer"],
                "defects": {"dead_dies": [[3, 3]], "dead_links": [[[0, 1], [0, 0]]]},
            }
        }
    ).wafer
    assert part == WaferPart(
        (StageTile(0, 0, 0, 2, 2), StageTile(1, 2, 2, 2, 2)),
        (Loan(0, 1, 1.0), Loan(1, 0, 2.0)),
        ("optimizer", "weights"),
        (DefectMap(((3, 3),), (((0, 0), (0, 1)),)),),
    )
    assert part is not None
    assert part.at(0) == DefectMap(((3, 3),), (((0, 0), (0, 1)),))
    assert WaferPart().at(5) == DefectMap()


@pytest.mark.parametrize(
    ("store", "said"),
    [(["weights"], "holds weights"), (["activations"], "holds activations")],
)
def test_a_store_has_the_optimizer_first(store: list[str], said: str) -> None:
    with pytest.raises(InputError, match=f"plan: wafer.store: {said}; the optimizer's state goes first"):
        resolved({"wafer": {"store": store}})


def test_defects_and_the_store_are_part_of_the_cluster() -> None:
    maps = (LINK, DefectMap(((3, 3),)))
    cluster = wafers(4, 4, 2, store=Store(4e12, 3e11), defects=maps)
    _, found = read(WaferPart(tiles=TILES, defects=maps), cluster)
    assert found.cluster.defects == maps
    assert found.cluster.store == Store(4e12, 3e11)
    assert found.cluster.chips == 32
    # a wafer of the catalogue stays a name, with its own defects and without them
    document = plan_document(found.plan, JOB, found.cluster, "wafer")
    assert [each["dead_dies"] for each in document["cluster"]["defects"]] == [[], [[3, 3]]]


@pytest.mark.parametrize(
    ("defects", "said"),
    [
        ({"dead_dies": [[4, 0]]}, r"cluster.defects.dead_dies: has \[4, 0\]; it should be \[row, col\] below"),
        ({"dead_links": [[[0, 0], [1, 1]]]}, r"cluster.defects.dead_links: has \[\[0, 0\], \[1, 1\]\]; it should join"),
        ([{"dead_dies": [[0, 0]]}, {}], "cluster.defects: has 2 maps; it should have one for each of 1 wafers"),
    ],
)
def test_defects_of_no_such_wafer_are_refused(defects: Any, said: str) -> None:
    document = plan_document(tile_plan(JOB, 2, 2, 2, tensor=2), JOB, wafers(4, 4), "wafer")
    document["cluster"]["defects"] = defects
    with pytest.raises(InputError, match=said):
        task_of(document, "plan.yaml")


def test_defects_of_what_is_no_wafer_are_refused() -> None:
    document = {
        "job": {"model": "gpt3-1.3b", "seq_len": 1024, "global_batch": 8},
        "cluster": {"name": "dgx-a100-80gb", "chips": 8, "defects": {"dead_dies": [[0, 0]]}},
    }
    with pytest.raises(InputError, match=r"cluster\.defects: are for wafers, and dgx-a100-80gb is none"):
        task_of(document, "plan.yaml")
