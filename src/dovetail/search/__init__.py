"""The best plan of a job on given hardware, with a proof."""

from dovetail.search.answer import Alternative, Answer, Certificate
from dovetail.search.plan import plan
from dovetail.search.space import Space

__all__ = ["Alternative", "Answer", "Certificate", "Space", "plan"]
