"""What a plan made for a whole wafer still does on a damaged one, beside the plan made for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.errors import InputError
from dovetail.units import percent_text, seconds_text

if TYPE_CHECKING:
    from dovetail.search import Answer


@dataclass(frozen=True, slots=True)
class SurvivingPlan:
    """Step times of a plan on the whole wafer and on the damaged one, and of the plan made for that."""

    whole_s: float
    #: None where nothing of it fits
    kept_s: float | None
    replanned_s: float
    #: stages before and after
    stages: tuple[int, int]

    @property
    def sentence(self) -> str:
        """In words."""
        planned = f"planning again keeps {percent_text(self.whole_s / self.replanned_s)}"
        if self.kept_s is None:
            return f"does not fit the damaged wafer; {planned} of its throughput"
        lost = self.stages[0] - self.stages[1]
        without = f", {lost} of {self.stages[0]} stages lost" if lost else ""
        kept = percent_text(self.whole_s / self.kept_s)
        return f"keeps {kept} of its throughput ({seconds_text(self.kept_s)} a step{without}); {planned}"


def surviving_on(answer: Answer, file: Path) -> SurvivingPlan:
    """The plan of a file held against an answer for a damaged wafer."""
    from dataclasses import replace

    from dovetail.mapping.tiles.surviving import surviving_plan
    from dovetail.plans.plan_file import load_task
    from dovetail.step.evaluate import evaluate

    task = load_task(file)
    if task.plan.layouts is None:
        raise InputError("--keep", f"{file} is a plan of degrees", "give a plan of --strategy free")
    if (task.job, replace(task.cluster, defects=())) != (answer.job, replace(answer.cluster, defects=())):
        raise InputError("--keep", f"{file} is for another job or wafer", "give a plan of the same question")
    whole = evaluate(task.plan, task.job, task.cluster, task.framework, energy=False)
    kept = surviving_plan(task.plan, answer.job, answer.cluster, answer.framework)
    stages = task.plan.pipeline_parallel, 0 if kept is None else kept.plan.pipeline_parallel
    return SurvivingPlan(whole.step_time_s, None if kept is None else kept.step_time_s, answer.step_time_s, stages)


def surviving_fields(kept: SurvivingPlan | None) -> dict[str, Any]:
    """The same as JSON."""
    if kept is None:
        return {}
    throughput = None if kept.kept_s is None else kept.whole_s / kept.kept_s
    return {
        "keep": {
            "whole_s": kept.whole_s,
            "kept_s": kept.kept_s,
            "throughput_kept": throughput,
            "throughput_replanned": kept.whole_s / kept.replanned_s,
            "stages": list(kept.stages),
        }
    }
