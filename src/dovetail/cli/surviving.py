"""What a plan made for a whole wafer still does on a damaged one, beside the plan made for that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.units import percent_text, seconds_text

if TYPE_CHECKING:
    from dovetail.plans.plan_file import Question
    from dovetail.search import Answer
    from dovetail.step.evaluation import Evaluation


@frozen
class SurvivingPlan:
    """A plan on the whole wafer it was made for, and what is left of it on the damaged one."""

    whole: Evaluation
    #: None where nothing of it fits
    kept: Evaluation | None

    def sentence(self, answer: Answer) -> str:
        """What it keeps and what planning again keeps, in words."""
        planned = f"planning again keeps {percent_text(self.whole.step_time_s / answer.step_time_s)}"
        if self.kept is None:
            degrees = self.whole.plan.layouts is None
            why = "has degrees alone, which go around nothing" if degrees else "does not fit the damaged wafer"
            return f"{why}; {planned} of its throughput"
        stages = self.whole.plan.pipeline_parallel
        lost = stages - self.kept.plan.pipeline_parallel
        without = f", {lost} of {stages} stages lost" if lost else ""
        kept = percent_text(self.whole.step_time_s / self.kept.step_time_s)
        if answer.best.plan == self.kept.plan:
            planned = "nothing faster was found"
        return f"keeps {kept} of its throughput ({seconds_text(self.kept.step_time_s)} a step{without}); {planned}"

    def fields(self, answer: Answer) -> dict[str, Any]:
        """The same as JSON."""
        whole_s, kept_s = self.whole.step_time_s, None if self.kept is None else self.kept.step_time_s
        return {
            "whole_s": whole_s,
            "kept_s": kept_s,
            "throughput_kept": None if kept_s is None else whole_s / kept_s,
            "throughput_replanned": whole_s / answer.step_time_s,
            "stages": [
                self.whole.plan.pipeline_parallel,
                0 if self.kept is None else self.kept.plan.pipeline_parallel,
            ],
        }


def surviving_on(question: Question, file: Path) -> SurvivingPlan:
    """The plan of a file on the damaged wafer of a question."""
    from dovetail.mapping.tiles.surviving import surviving_plan
    from dovetail.plans.plan_file import load_task
    from dovetail.step.evaluate import evaluate

    task = load_task(file)
    if (task.job, replace(task.cluster, defects=())) != (question.job, replace(question.cluster, defects=())):
        raise InputError("--keep", f"{file} is for another job or wafer", "give a plan of the same question")
    whole = evaluate(task.plan, task.job, task.cluster, task.framework, energy=False)
    if task.plan.layouts is None:
        return SurvivingPlan(whole, None)
    return SurvivingPlan(whole, surviving_plan(task.plan, question.job, question.cluster, question.framework))
