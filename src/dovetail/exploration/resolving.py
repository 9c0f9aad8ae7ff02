"""From a study file to a study: every name looked up, every limit a formula of its design space."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeVar, cast

from dovetail import frameworks
from dovetail.digests import digest
from dovetail.documents import validate
from dovetail.errors import InputError
from dovetail.exploration.free_mapping import FREE_FIELDS, free_mapping
from dovetail.exploration.job_mean import JobMean
from dovetail.exploration.limits import limited
from dovetail.exploration.objective import Objective, formula_objective, named_objective
from dovetail.exploration.position import Position
from dovetail.exploration.resolved import ResolvedStudy, Scenario, StudyJob, check_simulated
from dovetail.exploration.scores import check_objectives
from dovetail.exploration.study_file import (
    Document,
    HardwarePart,
    SearchPart,
    StudyClusterPart,
    StudyFile,
    StudyJobSpec,
    StudyPlansPart,
)
from dovetail.frameworks import Framework
from dovetail.hardware import Cluster, Tier
from dovetail.hardware.catalogue import chip, network, space_document, space_from
from dovetail.hardware.cluster import check_chips
from dovetail.hardware.design_space.space import DesignSpace
from dovetail.hardware.network import TierSpec
from dovetail.hardware.network_file import ClusterNetwork
from dovetail.models import Job
from dovetail.plans.narrowed_space import within
from dovetail.plans.plan_file import job_of, relative_to
from dovetail.plans.runs import check_job
from dovetail.plans.space import Space

T = TypeVar("T")

#: Fields of hardware that its design space does not have.
_NOT_OF_SPACE = ("space", "name", "calibrated_as")
#: What of the hardware a scenario may change.
_OF_HARDWARE = ("technology", "coefficients", "calibrated_as")

#: Where batches run, how long, and where results go does not change the answer of a study.
_NOT_ASKED = {"executor": True, "output": True, "search": {"time_limit_s"}}


def study_of(document: Mapping[str, Any], where: str, folder: Path = Path()) -> ResolvedStudy:
    """The study a document describes; paths in it are relative to `folder`."""
    file = validate(StudyFile, document, where)
    try:
        study = _study(file, where, folder)
        if not file.scenarios:
            return study
        return replace(study, scenarios=(Scenario("as given", study), *_scenarios(file, where, folder)))
    except InputError as error:
        place = error.where if error.where.startswith(where) else f"{where}: {error.where}"
        raise InputError(place, error.what, error.fix) from None


def _scenarios(file: StudyFile, where: str, folder: Path) -> list[Scenario]:
    """The study under every scenario."""
    scenarios: list[Scenario] = []
    for number, spec in enumerate(file.scenarios):
        given = {name: value for name, value in spec if name in _OF_HARDWARE and value is not None}
        kinds = tuple(part.model_copy(update=given) for part in file.kinds)
        changed = file.model_copy(update={"hardware": kinds, "scenarios": ()})
        if spec.prices is not None:
            changed = changed.model_copy(update={"prices": spec.prices})
        try:
            scenarios.append(Scenario(spec.name, _study(changed, where, folder, given)))
        except InputError as error:
            raise InputError(f"scenarios.{number}: {error.where}", error.what, error.fix) from None
    return scenarios


def _study(file: StudyFile, where: str, folder: Path, of_chips: Document | None = None) -> ResolvedStudy:
    """A study of one scenario; `of_chips` are fields that a scenario gives to chips to compare with too."""
    jobs = _jobs(file.jobs, folder)
    framework = _named("cluster.framework", lambda: frameworks.load(relative_to(file.cluster.framework, folder)))
    for job in jobs:
        try:
            check_job(job.job, framework)
        except InputError as error:
            raise InputError(f"jobs.{job.name}.{error.where.removeprefix('job: ')}", error.what, error.fix) from None
    positions = _positions(file, where, folder, of_chips or {})
    mean = JobMean(file.over_jobs.mean, tuple(job.weight for job in jobs), (1.0,) * len(jobs))
    study = ResolvedStudy(
        name=file.name,
        jobs=jobs,
        mean=mean,
        relative_to=file.over_jobs.relative_to,
        positions=positions,
        framework=framework,
        plans=Space(),
        mapping=free_mapping(file, framework, of_wafers=positions[0].of_wafers),
        scored=tuple(_objective(file, asked) for asked in file.objectives),
        prices=file.prices,
        search=file.search,
        executor=file.executor,
        seed=file.seed,
        output=file.output,
        document={},
    )
    check_objectives(study)
    if file.search.simulate_top is not None:
        check_simulated(study.objectives, file.search.method)
    if file.over_jobs.relative_to is not None:
        scored = tuple(_relative(objective) for objective in study.scored)
        study = replace(study, scored=scored)
    study = replace(study, plans=_plans(file.plans, study))
    asked = file.model_dump(mode="json", exclude_none=True, exclude=_NOT_ASKED)
    return replace(study, document={**asked, "content": _content(study)})


def _objective(file: StudyFile, asked: Any) -> Objective:
    """An objective by its name, or that of a formula."""
    if isinstance(asked, str):
        return named_objective(asked, energy_priced=file.prices.usd_per_kwh > 0)
    return formula_objective(asked.name, asked.formula, asked.unit, asked.better)


def _relative(objective: Objective) -> Objective:
    """An objective as it is called where step times are multiples of others."""
    if objective.name != "step_time":
        return objective
    return replace(objective, title="relative step time", unit="")


def _positions(file: StudyFile, where: str, folder: Path, of_chips: Document) -> tuple[Position, ...]:
    """Designs of every kind of hardware in every number with every network, and last the chips to compare with."""
    spaces: dict[str, DesignSpace] = {}
    for number, part in enumerate(file.kinds):
        at = "hardware" if len(file.kinds) == 1 else f"hardware.{number}"
        of_base = part.base if isinstance(part.base, str) and len(file.kinds) > 1 else file.name
        space = _space(part, part.name or of_base, f"{where}: {at}", folder)
        name = part.name or space.name
        if name in spaces:
            raise InputError(f"{at}.name", f"is {name!r:.60}, as that of another", "give each kind of hardware its own")
        spaces[name] = space
    _check_kinds(file, list(spaces.values()))
    tiers = _tiers(file)
    references = {name: _reference(name, folder, of_chips) for name in file.candidates}
    counts = _counts(file, next(iter(spaces.values())))
    positions: list[Position] = []
    kinds = [*((name, space, False) for name, space in spaces.items()), *((n, s, True) for n, s in references.items())]
    for (name, space, reference), count, joined in product(kinds, counts, _networks(file, folder)):
        within_limits, is_limited = space, True
        try:
            within_limits = limited(space, file.limits, count)
        except InputError:
            if not reference:
                raise
            is_limited = False  # nobody knows its area and power as we estimate them
        position = Position(name, within_limits, count, tiers, joined, reference, is_limited)
        if _in_domain(position, file.limits.domain_chips):
            positions.append(position)
    if not any(not position.reference for position in positions):
        what = f"is {file.limits.domain_chips}"
        raise InputError("limits.domain_chips", what, "it should allow at least one network of the cluster")
    return tuple(positions)


def _in_domain(position: Position, most: int | None) -> bool:
    """Whether the innermost tier of a cluster is within the limit of scale-up domains."""
    if most is None:
        return True
    tiers = position.cluster(position.space.base).tiers
    return not tiers or tiers[0].size <= most


def _reference(name: str, folder: Path, fields: Document) -> DesignSpace:
    """A chip to compare with, as a space of one design: figures of designs and chips are then estimated alike."""
    where = f"candidates: {name}"
    found = _named(where, lambda: chip(relative_to(name, folder)))
    part = HardwarePart.model_validate({"base": name, "vary": {"tensor_cores": [found.tensor_cores]}, **fields})
    return _space(part, found.name, where, folder)


def _check_kinds(file: StudyFile, spaces: Sequence[DesignSpace]) -> None:
    """Raises an error for what spaces of wafers are not combined with."""
    if not any(space.wafer is not None for space in spaces):
        return
    if len(spaces) > 1:
        raise InputError("hardware", "has wafers and other hardware", "give wafers a study of their own")
    if file.candidates:
        raise InputError("candidates", "are chips, and designs wafers", "leave them out")
    if file.cluster.networks is not None:
        what = "cannot be combined with a space of wafers, whose grids are their networks"
        raise InputError("cluster.networks", what, "leave it out")
    for limit in ("rack_power_w", "rack_chips", "domain_chips"):
        if getattr(file.limits, limit) is not None:
            raise InputError(f"limits.{limit}", "is about chips, and designs are wafers", "leave it out")


def _networks(file: StudyFile, folder: Path) -> Sequence[ClusterNetwork | None]:
    """The networks to choose from; None: the tiers given, or the links of each design."""
    names = file.cluster.networks
    if names is None:
        return [None]
    found = [_named("cluster.networks", partial(network, relative_to(name, folder))) for name in names]
    if len({each.name for each in found}) < len(found):
        raise InputError("cluster.networks", "has one twice", "give each once")
    return found


def _tiers(file: StudyFile) -> tuple[Tier, ...] | None:
    if file.cluster.tiers is None:
        return None
    return tuple(validate(TierSpec, t, f"cluster.tiers.{n}").tier() for n, t in enumerate(file.cluster.tiers))


def _counts(file: StudyFile, space: DesignSpace) -> tuple[int, ...]:
    """Numbers of chips, or of wafers if designs are wafers."""
    of_wafers = space.wafer is not None
    word, other = ("wafers", "chips") if of_wafers else ("chips", "wafers")
    for part, name in ((file.cluster, "cluster"), (file.limits, "limits")):
        if getattr(part, other) is not None:
            what = f"cannot be combined with {space.name}, a space of {word}"
            raise InputError(f"{name}.{other}", what, f"use {name}.{word}")
    if of_wafers:
        _check_wafers(file.cluster, file.search)
    elif file.limits.least_yield is not None:
        what = f"cannot be combined with {space.name}, a space of chips"
        raise InputError("limits.least_yield", what, "use it only for wafers")
    asked = getattr(file.cluster, word) or ((1,) if of_wafers else None)
    if asked is None:
        raise InputError("cluster.chips", "is missing", "add this field")
    most = getattr(file.limits, word)
    counts = tuple(sorted({_named(f"cluster.{word}", partial(check_chips, count)) for count in asked}))
    counts = tuple(count for count in counts if most is None or count <= most)
    if not counts:
        raise InputError(f"limits.{word}", f"is {most}", f"it should allow at least one number of cluster.{word}")
    return counts


def _check_wafers(cluster: StudyClusterPart, search: SearchPart) -> None:
    """Raises an error for options that studies of wafers do not have."""
    if cluster.tiers is not None:
        what = "cannot be combined with a space of wafers, whose grids are their networks"
        raise InputError("cluster.tiers", what, "leave it out: link_port_bytes_per_s and edge_bytes_per_s vary them")
    if search.method != "exact":
        # such a search compares with an ideal wafer, which would combine the best of every grid
        raise InputError("search.method", f"{search.method} is for spaces of chips", "set it to exact")


def _named(where: str, read: Callable[[], T]) -> T:
    """The result of `read`, or its error with the field of the study."""
    try:
        return read()
    except InputError as error:
        raise InputError(where, error.what, error.fix) from None


def _plans(part: StudyPlansPart, study: ResolvedStudy) -> Space:
    """The plan space; each value must be possible for some job on some number of chips, or on some grid."""
    cases = [(job.job, cluster) for job in study.jobs for cluster in study.usual_clusters]
    fields: dict[str, Any] = {}
    for field, values in part:
        if values is None or field in FREE_FIELDS:
            continue
        if field == "partition":
            fields[field] = _settled(field, values, cases, study.framework)
        else:
            fields[field] = tuple(_settled(field, (value,), cases, study.framework)[0] for value in values)
    plans = Space(**fields)
    # a grid of a wafer may have no plan: then its designs have none
    for job, cluster in cases if not study.of_wafers else ():
        _named("plans", lambda job=job, cluster=cluster: within(plans, job, cluster, study.framework, leave_out=True))
    return plans


def _settled(field: str, value: Any, cases: Sequence[tuple[Job, Cluster]], framework: Framework) -> Any:
    """A value as resolved by the first case that accepts it."""
    refused = InputError("", "", "")
    for job, cluster in cases:
        try:
            return getattr(within(Space(**{field: value}), job, cluster, framework), field)
        except InputError as error:
            refused = error
    raise InputError(f"plans.{field}", refused.what, refused.fix)


def _jobs(specs: Sequence[StudyJobSpec], folder: Path) -> tuple[StudyJob, ...]:
    total = sum(spec.weight for spec in specs)
    jobs: list[StudyJob] = []
    for position, spec in enumerate(specs):
        try:
            job = job_of(spec, folder)
        except InputError as error:
            field = error.where.removeprefix("job: ")
            place = field if field in StudyJobSpec.model_fields else f"model: {field}"
            raise InputError(f"jobs.{position}.{place}", error.what, error.fix) from None
        jobs.append(StudyJob(spec.name or job.model.name, job, spec.weight / total))
    names = [job.name for job in jobs]
    for name in names:
        if names.count(name) > 1:
            raise InputError("jobs", f"has {name} more than once", "give each job its own `name`")
    return tuple(jobs)


def _space(part: HardwarePart, name: str, where: str, folder: Path) -> DesignSpace:
    """The design space of a part, calibrated as it says."""
    space = _space_as_written(part, name, where, folder)
    if part.calibrated_as is None:
        return space
    if space.wafer is not None:
        raise InputError(f"{where}.calibrated_as", "is for spaces of chips", "leave it out")
    followed = _named(f"{where}.calibrated_as", lambda: chip(relative_to(part.calibrated_as or "", folder)))
    base = replace(space.base, calibrated_as=followed, calibration=None)
    return replace(space, fixed=replace(space.fixed, base=base))


def _space_as_written(part: HardwarePart, name: str, where: str, folder: Path) -> DesignSpace:
    """The design space of a name, path or fields; fields given with a name are added to it."""
    added = {field: value for field, value in part if value is not None and field not in _NOT_OF_SPACE}
    if "limits" in added:
        added["limits"] = list(added["limits"])
    if part.space is None:
        return space_from({"name": name, **added}, where, folder)
    source = relative_to(part.space, folder)
    document, label, folder_of = _named(f"hardware.space: {source}", lambda: space_document(source))
    if not added:
        return space_from(document, label, folder_of)
    merged = dict(document)
    for field, value in added.items():
        present: object = merged.get(field)
        if isinstance(value, dict) and isinstance(present, Mapping):
            merged[field] = {**cast("Mapping[str, Any]", present), **cast("dict[str, Any]", value)}
        elif isinstance(value, list) and isinstance(present, Sequence):
            merged[field] = [*cast("Sequence[Any]", present), *cast("list[Any]", value)]
        else:
            merged[field] = value
    return space_from(merged, where, folder_of)


def _content(study: ResolvedStudy) -> dict[str, str]:
    """Digests of what names and paths refer to, so that we notice if a file changed during a run."""
    spaces = [position.space for position in study.positions]
    parts: dict[str, object] = {
        "jobs": study.jobs,
        "framework": study.framework,
        "space": [(space.fixed, space.axes, _texts(space), space.shares_cores) for space in spaces],
        "tiers": [(position.count, position.tiers, position.network) for position in study.positions],
        "technology": [(space.formulas.references, space.formulas.technology, space.formulas.end) for space in spaces],
    }
    return {name: digest(part) for name, part in parts.items()}


def _texts(space: DesignSpace) -> list[object]:
    """The expressions of a space as written."""
    formulas = space.formulas
    named = [(name, expression.text) for name, expression in (*formulas.derived, *formulas.defined.items())]
    return [space.name, named, [limit.text for limit in space.limits]]
