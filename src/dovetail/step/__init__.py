"""One model of a training step: seconds, bytes and joules of a plan."""

from dovetail.step.evaluate import Evaluation, evaluate, least_step_s

__all__ = ["Evaluation", "evaluate", "least_step_s"]
