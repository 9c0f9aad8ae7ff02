"""Options for dead dies and links of a wafer, and the wafers with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.errors import InputError
from dovetail.frozen import frozen

if TYPE_CHECKING:
    from dovetail.hardware import Cluster, DefectMap
    from dovetail.plans.plan_file import Task

Defects = Annotated[
    Path | None, typer.Option("--defects", metavar="FILE", help="Dead dies and links of the wafer (YAML).")
]
DefectRate = Annotated[
    float | None, typer.Option("--defect-rate", metavar="PART", help="Draw dead dies: the part of dies that die.")
]
LinkDefectRate = Annotated[
    float | None, typer.Option("--link-defect-rate", metavar="PART", help="Draw dead links as well.")
]
Seed = Annotated[int | None, typer.Option("--seed", help="Of the drawn defects; default: 0.")]


@frozen
class DefectOptions:
    """What the options say of dead dies and links."""

    file: Path | None = None
    rate: float | None = None
    link_rate: float | None = None
    seed: int | None = None

    def damaged(self, cluster: Cluster) -> Cluster:
        """The cluster with these defects, or as it is; each of several wafers has its own drawn map."""
        if self == DefectOptions():
            return cluster
        from dovetail.hardware.defect_file import asked_defects
        from dovetail.plans.stage_tiles import damaged, num_wafers
        from dovetail.plans.wafer_tiles import is_wafer, wafer_shape

        flag = "--defects" if self.file is not None else "--defect-rate"
        if not is_wafer(cluster):
            raise InputError(flag, f"is for wafers, and {cluster.name} is none", "leave it out")
        maps: list[DefectMap] = []
        for wafer in range(num_wafers(cluster)):
            seed = self.seed if self.file is not None or not wafer else (self.seed or 0) + wafer
            try:
                drawn = asked_defects(*wafer_shape(cluster), self.file, self.rate, self.link_rate, seed)
            except InputError as error:
                raise InputError(_FLAGS.get(error.where, error.where), error.what, error.fix) from None
            maps += [] if drawn is None else [drawn]
        whole = all(not each.dead_dies and not each.dead_links for each in maps)
        return damaged(cluster, () if whole else tuple(maps), flag)

    def task(self, plan: Path) -> Task:
        """The task of a plan file on its wafer with these defects; refused where it uses a dead die or link."""
        from dovetail.plans.plan_file import load_task
        from dovetail.plans.stage_tiles import check_wafer

        task = load_task(plan)
        cluster = self.damaged(task.cluster)
        if cluster is not task.cluster:
            check_wafer(task.plan, cluster)
        return replace(task, cluster=cluster)


#: What the fields of a drawn map are called on the command line.
_FLAGS = {
    "defects": "--defects",
    "defect_rate": "--defect-rate",
    "link_defect_rate": "--link-defect-rate",
    "seed": "--seed",
}
