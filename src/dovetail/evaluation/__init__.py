"""THE FLOW: evaluate(plan, job, cluster, framework) → Evaluation; plan files."""

from dovetail.evaluation.evaluate import Evaluation, evaluate
from dovetail.evaluation.plan_file import PlanFile, Task, load_task, schema, task_of

__all__ = ["Evaluation", "PlanFile", "Task", "evaluate", "load_task", "schema", "task_of"]
