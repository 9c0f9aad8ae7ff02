"""The best plan of a job on given hardware, with a proof."""

from dovetail.plans.space import Space
from dovetail.search.answer import Alternative, Answer, Certificate
from dovetail.search.plan import plan
from dovetail.search.progress import SearchProgress
from dovetail.step.ties import TIE_MARGIN

__all__ = ["TIE_MARGIN", "Alternative", "Answer", "Certificate", "SearchProgress", "Space", "plan"]
