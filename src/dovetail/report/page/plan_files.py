"""The page of a plan file: what the plan costs, beside the best plan of its question."""

from __future__ import annotations

from pathlib import Path

from dovetail.documents import validate
from dovetail.explanation.explain import explain
from dovetail.frameworks import Framework
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.plan_file import Task, load_task
from dovetail.plans.words import plan_words
from dovetail.report.answer_fields import answer_fields, evaluation_fields
from dovetail.report.page.answer_file import AnswerFile
from dovetail.report.page.answers import answer_page
from dovetail.report.page.document import Page
from dovetail.search.plan import plan as search_plans
from dovetail.step.evaluate import evaluate


def plan_file_page(path: Path, command: str, *, search: bool = True, time_limit_s: float | None = None) -> Page:
    """The page of the plan in a file; with the certificate and explanation of a search, where it has degrees alone."""
    task = load_task(path)
    fields = evaluation_fields(evaluate(task.plan, task.job, task.cluster, task.framework), *_question(task))
    # layouts of operators are found by a search of minutes, and their neighbours are not explained
    if search and task.plan.layouts is None and not task.cluster.defects:
        answer = search_plans(*_question(task), time_limit_s=time_limit_s, keep_tables=True)
        found = answer_fields(answer, explanation=explain(answer, time_limit_s=time_limit_s))
        fields |= {name: found[name] for name in ("certificate", "alternatives", "explanation")}
        if answer.evaluation is not None:
            fastest = answer.fastest
            fields["fastest"] = {"step_time_s": fastest.step_time_s, "words": plan_words(fastest.plan)}
            fields["recommended_loss"] = fields["step_time_s"] / fastest.step_time_s - 1
    return answer_page(validate(AnswerFile, fields, str(path)), task, command)


def _question(task: Task) -> tuple[Job, Cluster, Framework]:
    return task.job, task.cluster, task.framework
