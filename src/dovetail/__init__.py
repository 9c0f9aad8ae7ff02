"""Dovetail: which chip, on which wafer or cluster, running which parallel plan, trains a model best."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dovetail import frameworks as frameworks
    from dovetail import hardware as hardware
    from dovetail import models as models
    from dovetail import search as search
    from dovetail.explanation.explain import explain as explain
    from dovetail.exploration.study import Study as Study
    from dovetail.models import Job as Job
    from dovetail.search import Space as Space
    from dovetail.search import plan as plan
    from dovetail.simulation import simulate as simulate
    from dovetail.step.evaluate import evaluate as evaluate

__version__ = "0.1.0"

#: Public names and where they live; resolved on first use, so `import dovetail` costs nothing.
_PUBLIC = {
    "Job": "dovetail.models:Job",
    "Space": "dovetail.search:Space",
    "Study": "dovetail.exploration.study:Study",
    "evaluate": "dovetail.step.evaluate:evaluate",
    "explain": "dovetail.explanation.explain:explain",
    "frameworks": "dovetail.frameworks",
    "hardware": "dovetail.hardware",
    "models": "dovetail.models",
    "plan": "dovetail.search:plan",
    "search": "dovetail.search",
    "simulate": "dovetail.simulation:simulate",
}

__all__ = [
    "Job", "Space", "Study", "__version__", "evaluate", "explain", "frameworks", "hardware", "models", "plan",
    "search", "simulate",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Imports a public name when it is first asked for (PEP 562)."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'dovetail' has no attribute {name!r}")
    module, _, attribute = _PUBLIC[name].partition(":")
    value: object = import_module(module)
    return getattr(value, attribute) if attribute else value


def __dir__() -> list[str]:
    return sorted(__all__)
