"""A plan on a cluster: step time, memory and energy; plan files; the best cut and recompute of a plan's degrees."""

from dovetail.plans.plan_file import PlanFile, Question, Task, load_task, question_of, schema, task_of
from dovetail.plans.write import plan_document
from dovetail.step.evaluate import Evaluation, evaluate, least_step_s

__all__ = [
    "Evaluation",
    "PlanFile",
    "Question",
    "Task",
    "evaluate",
    "least_step_s",
    "load_task",
    "plan_document",
    "question_of",
    "schema",
    "task_of",
]
