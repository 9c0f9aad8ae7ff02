"""Studies of free mappings: every operator of every design sharded its own way, and how far each search goes."""

from __future__ import annotations

from dovetail.errors import InputError
from dovetail.exploration.study_file import StudyFile, StudyPlansPart
from dovetail.frameworks import Framework
from dovetail.frozen import frozen
from dovetail.mapping.tiles.free_plan import SCHEDULES, ZERO_STAGES

#: Fields of `plans` that are about the search of free mappings, not about fields of a plan.
FREE_FIELDS = frozenset(("strategy", "gap", "work_limit"))


@frozen
class FreeMapping:
    """How free mappings of one design are searched."""

    #: how close to the best the search of a design must come, as a part of it
    gap: float
    #: most skeletons whose layouts are searched; None: no limit
    work_limit: int | None


def free_mapping(file: StudyFile, framework: Framework, *, of_wafers: bool) -> FreeMapping | None:
    """The free mappings a study asks for; None if it asks for named strategies."""
    part, search = file.plans, file.search
    if search.gap and (len(file.objectives) > 1 or search.method != "exact"):
        fix = "give one objective and the method exact, or leave it out"
        raise InputError("search.gap", "is about the best of one objective", fix)
    if part.strategy == "named":
        for name in ("gap", "work_limit"):
            if getattr(part, name) is not None:
                raise InputError(f"plans.{name}", "is about free mappings", "set plans.strategy to free")
        return None
    if not of_wafers:
        raise InputError("plans.strategy", "free is for spaces of wafers", "give hardware.wafer, or set it to named")
    if not framework.layouts:
        what = f"{framework.name} runs only named strategies"
        raise InputError("cluster.framework", what, "use wafer or ideal, or set plans.strategy to named")
    _check_alone(part)
    return FreeMapping(search.gap if part.gap is None else part.gap, part.work_limit)


def _check_alone(part: StudyPlansPart) -> None:
    """Refuses fields that only plans of named strategies have."""
    for name, values in part:
        if values is not None and name not in FREE_FIELDS:
            raise InputError(f"plans.{name}", "cannot be combined with the strategy free", "leave it out")


def mapping_words(framework: Framework) -> str:
    """The free mappings of a design, in words; what they leave out is part of the space."""
    stages = [str(stage) for stage in ZERO_STAGES if stage in framework.zero_stages_with_pipeline]
    schedules = [name for name in SCHEDULES if name in framework.pipeline_schedules]
    return (
        "every operator sharded freely along the axes of equal tiles, tokens of a layer as sequences or as positions "
        f"along one axis, products that read one tensor alike, schedules {' and '.join(schedules)}, "
        f"ZeRO {' and '.join(stages)}, recompute by block"
    )
