"""How fast one chip of a design is, operator by operator: what a search for hardware alone compares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.bounds.design_tables import DesignTables
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.hardware import Chip
from dovetail.plans.space import Space

#: The plan of one chip: nothing is sharded, sent or recomputed.
ONE_CHIP = Space(
    tensor_parallel=(1,), context_parallel=(1,), pipeline_parallel=(1,), sequence_parallel=(False,), micro_batch=(1,),
    zero_stage=(0,), recompute=("none",), recompute_share=(1.0,),
)  # fmt: skip


def operator_score(study: ResolvedStudy) -> Callable[[Ints], Floats]:
    """Seconds of designs by number: all operators of a step's sequences on one chip, one by one, a mean over jobs."""
    one_chip = replace(study.positions[0], count=1)
    tables: dict[tuple[object, ...], list[DesignTables]] = {}

    def tables_for(chip: Chip) -> list[DesignTables]:
        formats = tuple(chip.dense_flops.published())
        if formats not in tables:
            cluster = one_chip.cluster(chip)
            tables[formats] = [DesignTables(job.job, cluster, study.framework, ONE_CHIP) for job in study.jobs]
        return tables[formats]

    def score(designs: Ints) -> Floats:
        seconds = np.zeros((len(designs), len(study.jobs)))
        chips = study.space.chips(designs)
        alike: dict[int, list[int]] = {}
        for row, chip in enumerate(chips):
            alike.setdefault(id(tables_for(chip)), []).append(row)
        for rows in alike.values():
            some = [chips[row] for row in rows]
            for number, (job, table) in enumerate(zip(study.jobs, tables_for(some[0]), strict=True)):
                seconds[rows, number] = job.job.global_batch * table.operator_seconds(some)
        return study.mean.of(seconds)

    return score
