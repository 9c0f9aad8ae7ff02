"""A plan on a cluster: step time, memory and energy; plan files; the best cut and recompute of a plan's degrees."""

from dovetail.evaluation.evaluate import Evaluation, evaluate
from dovetail.evaluation.place import PlacedPlan, place_plan
from dovetail.evaluation.plan_file import PlanFile, Task, load_task, schema, task_of

__all__ = ["Evaluation", "PlacedPlan", "PlanFile", "Task", "evaluate", "load_task", "place_plan", "schema", "task_of"]
