"""The memory a plan may take of a chip, and how likely it fits: the one place that decides it.

What a run of a plan takes is off by a logistic error, a part of what is predicted: the framework's `memory_error`. The
search takes plans that fit with all but a small risk; that stays one limit on bytes.
"""

from __future__ import annotations

import math

from dovetail.errors import InputError
from dovetail.frameworks import Framework
from dovetail.hardware import Chip
from dovetail.units import bytes_text

#: How likely a searched plan may run out of memory, unless another risk is asked for.
FIT_RISK = 0.02
#: Risks that can be asked for.
LEAST_RISK, MOST_RISK = 1e-6, 0.5


def memory_limit(
    chip: Chip, framework: Framework, asked_bytes: float | None = None, fit_risk: float = FIT_RISK
) -> float:
    """Bytes a searched plan may take: those asked for, or so many that it runs out of memory with this risk alone.

    A run takes `predicted · (1 + error) + outside`, where `predicted` are the bytes of tensors and of their allocator;
    a plan keeps the risk where that is within the usable bytes for the error that only a part `fit_risk` of runs
    exceeds. A plan that is given may take all that is usable.
    """
    if asked_bytes is not None:
        return asked_bytes
    outside, exceeded = framework.outside_bytes, _exceeded(framework, fit_risk)
    return min(outside + (chip.usable_bytes - outside) / (1 + exceeded), chip.usable_bytes)


def usable_for(predicted_bytes: float, framework: Framework, fit_risk: float = FIT_RISK) -> float:
    """Usable bytes of a chip with which so many predicted ones keep the risk: the inverse of `memory_limit`."""
    outside, exceeded = framework.outside_bytes, _exceeded(framework, fit_risk)
    return max(outside + (predicted_bytes - outside) * (1 + exceeded), predicted_bytes)


def _exceeded(framework: Framework, fit_risk: float) -> float:
    """The error that only a part `fit_risk` of runs exceeds."""
    return framework.memory_error.value * math.log((1 - fit_risk) / fit_risk)


def fit_probability(predicted_bytes: float, outside_bytes: float, usable_bytes: float, error: float) -> float:
    """How likely a chip has enough for what is predicted, of which the outside is known; `error` is the scale."""
    spare = usable_bytes - predicted_bytes
    if error == 0.0 or predicted_bytes == outside_bytes:
        return float(spare >= 0)
    return 0.5 + 0.5 * math.tanh(spare / ((predicted_bytes - outside_bytes) * error) / 2)


def check_memory_limit(chip: Chip, asked_bytes: float | None, where: str) -> None:
    """Refuses a limit that no program can reach."""
    if asked_bytes is not None and not 0 < asked_bytes <= chip.usable_bytes:
        fix = f"it should be more than 0 and at most what programs get of {chip.name}, {bytes_text(chip.usable_bytes)}"
        raise InputError(where, f"is {bytes_text(asked_bytes)}", fix)


def check_fit_risk(risk: float | None, asked_bytes: float | None, where: str) -> None:
    """Refuses a risk that is none, or beside a limit in bytes."""
    if risk is None:
        return
    if not LEAST_RISK <= risk <= MOST_RISK:
        raise InputError(where, f"is {risk:g}", f"it should be a part from {LEAST_RISK:g} to {MOST_RISK:g}, e.g. 0.02")
    if asked_bytes is not None:
        raise InputError(where, "cannot be combined with a memory limit", "leave one of them out")
