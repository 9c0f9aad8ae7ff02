"""`dovetail estimate`: step time, memory and energy of one given plan, and where they go."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import dovetail as dt
from dovetail.cli.defects import DefectOptions, DefectRate, Defects, LinkDefectRate, Seed
from dovetail.cli.evaluation import (
    exit_unless_fits,
    plan_facts,
    print_parts,
    print_reserved,
    question_facts,
    result_facts,
)
from dovetail.cli.output import print_facts, print_json


def estimate(
    plan: Annotated[Path, typer.Argument(help="A plan file: job, cluster and plan in YAML.")],
    defects: Defects = None,
    defect_rate: DefectRate = None,
    link_defect_rate: LinkDefectRate = None,
    seed: Seed = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a view.")] = False,
) -> None:
    """Estimate a given plan: step time, memory, energy, and where the time goes."""
    from dovetail.memory.reserved import reserved_memory

    task = DefectOptions(defects, defect_rate, link_defect_rate, seed).task(plan)
    result = dt.evaluate(task.plan, task.job, task.cluster, task.framework)
    reserved = reserved_memory(result, task.plan, task.job, task.cluster, task.framework)
    if as_json:
        from dovetail.report.answer_fields import evaluation_fields

        print_json(evaluation_fields(result, task.job, task.cluster, task.framework, reserved))
    else:
        asked = question_facts(task.job, task.cluster, task.framework)
        print_facts([*asked, *plan_facts(task.plan), *result_facts(result)])
        print_parts(result)
        print_reserved(reserved)
    exit_unless_fits(result, str(plan))
