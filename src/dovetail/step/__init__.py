"""One model of a training step: seconds, bytes and joules of a plan."""

from dovetail.step.evaluate import evaluate, least_step_s
from dovetail.step.evaluation import Evaluation

__all__ = ["Evaluation", "evaluate", "least_step_s"]
