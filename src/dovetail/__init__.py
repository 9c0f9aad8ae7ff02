"""Dovetail: which chip, on which wafer or cluster, running which parallel plan, trains a model best."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dovetail import frameworks as frameworks
    from dovetail import hardware as hardware
    from dovetail import models as models
    from dovetail.api import diff as diff
    from dovetail.api import evaluate as evaluate
    from dovetail.api import explain as explain
    from dovetail.api import explore as explore
    from dovetail.api import export as export
    from dovetail.api import fitting_changes as fitting_changes
    from dovetail.api import plan as plan
    from dovetail.api import plot as plot
    from dovetail.api import reasons as reasons
    from dovetail.api import simulate as simulate
    from dovetail.exploration.study import Study as Study
    from dovetail.hardware.cluster import Cluster as Cluster
    from dovetail.models.job import Job as Job
    from dovetail.plans.plan import Plan as Plan
    from dovetail.plans.space import Space as Space

__version__ = "0.1.0"

#: Public names and where they live; resolved on first use, so `import dovetail` costs nothing.
_PUBLIC = {
    "Cluster": "dovetail.hardware.cluster:Cluster",
    "Job": "dovetail.models.job:Job",
    "Plan": "dovetail.plans.plan:Plan",
    "Space": "dovetail.plans.space:Space",
    "Study": "dovetail.exploration.study:Study",
    "diff": "dovetail.api:diff",
    "evaluate": "dovetail.api:evaluate",
    "explain": "dovetail.api:explain",
    "explore": "dovetail.api:explore",
    "export": "dovetail.api:export",
    "fitting_changes": "dovetail.api:fitting_changes",
    "frameworks": "dovetail.frameworks",
    "hardware": "dovetail.hardware",
    "models": "dovetail.models",
    "plan": "dovetail.api:plan",
    "plot": "dovetail.api:plot",
    "reasons": "dovetail.api:reasons",
    "simulate": "dovetail.api:simulate",
}

__all__ = [
    "Cluster", "Job", "Plan", "Space", "Study", "__version__", "diff", "evaluate", "explain", "explore", "export",
    "fitting_changes", "frameworks", "hardware", "models", "plan", "plot", "reasons", "simulate",
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
