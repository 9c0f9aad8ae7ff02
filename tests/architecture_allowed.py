"""What still breaks a rule of test_architecture.py, by name: lists that may only shrink.

Each is compared exactly: an offender that is not here fails, and so does an entry that is no longer needed.
"""

from __future__ import annotations

#: Modules that no command and no public name reaches.
ALLOWED_UNREACHABLE: dict[str, str] = {}

#: Definitions that have one of our words in the field's meaning.
THE_FIELDS_OWN: dict[str, int] = {
    "_straight_cuts()": 1,  # a cut of a graph bounds what flows across it
    "floor_plan.py": 1,  # of a die, as designers call it
}

#: Modules that load a package of an extra when they are imported.
LOADS_AN_EXTRA = frozenset(
    {
        "dovetail.exploration.evolutionary",
        "dovetail.models.tracing.contents",
        "dovetail.models.tracing.kinds",
        "dovetail.models.tracing.masks",
        "dovetail.models.tracing.pytorch",
        "dovetail.models.tracing.record",
        "dovetail.models.tracing.recorder",
        "dovetail.models.tracing.transformers_images",
        "dovetail.models.tracing.transformers_kernels",
        "dovetail.models.tracing.transformers_model",
        "dovetail.schedule.cp_sat",
    }
)
