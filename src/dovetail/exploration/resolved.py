"""A study, resolved: candidates are designs × numbers of chips or wafers, with fixed numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import numpy as np

from dovetail import frameworks
from dovetail.arrays import Floats, Ints
from dovetail.digests import digest
from dovetail.documents import validate
from dovetail.errors import InputError
from dovetail.exploration import wafers
from dovetail.exploration.free_mapping import FREE_FIELDS, FreeMapping, free_mapping
from dovetail.exploration.limits import check_estimate, limited
from dovetail.exploration.study_file import (
    ExecutorPart,
    HardwarePart,
    SearchPart,
    StudyClusterPart,
    StudyFile,
    StudyJobSpec,
    StudyPlansPart,
)
from dovetail.frameworks import Framework
from dovetail.frozen import frozen
from dovetail.hardware import Chip, Cluster, Tier
from dovetail.hardware.catalogue import space_document, space_from
from dovetail.hardware.cluster import check_chips
from dovetail.hardware.design_space.space import DesignSpace
from dovetail.hardware.network import TierSpec, fit_tiers
from dovetail.models import Job
from dovetail.plans.narrowed_space import within
from dovetail.plans.plan_file import job_of, relative_to
from dovetail.plans.runs import check_job
from dovetail.plans.space import Space
from dovetail.search.simulated import MOST

T = TypeVar("T")

#: Where batches run, how long, and where results go does not change the answer of a study.
_NOT_ASKED = {"executor": True, "output": True, "search": {"time_limit_s"}}

#: Batches that go ahead of what is known, by default: named strategies, and free mappings.
_WINDOW, _FREE_WINDOW = 16, 2


@frozen
class StudyJob:
    """A job and its normalised weight."""

    name: str
    job: Job
    weight: float


@dataclass(frozen=True)
class ResolvedStudy:
    """A study with all names looked up."""

    name: str
    jobs: tuple[StudyJob, ...]
    space: DesignSpace
    #: numbers of chips or wafers, and the space with the limits for each
    counts: tuple[int, ...]
    spaces: tuple[DesignSpace, ...]
    #: None: the links of each design
    tiers: tuple[Tier, ...] | None
    framework: Framework
    plans: Space
    #: None: named strategies
    mapping: FreeMapping | None
    objectives: tuple[str, ...]
    search: SearchPart
    executor: ExecutorPart
    seed: int
    output: str | None
    #: everything above that determines the answer, as JSON
    document: Mapping[str, Any]

    @property
    def size(self) -> int:
        """Candidates before any limit."""
        return len(self.counts) * self.space.size

    @cached_property
    def weights(self) -> Floats:
        """Weights of the jobs; their sum is 1."""
        return np.array([job.weight for job in self.jobs])

    @property
    def tokens(self) -> float:
        """Tokens of a step, weighted like step times."""
        return sum(job.weight * job.job.tokens_per_step for job in self.jobs)

    @property
    def window(self) -> int:
        """How many batches go ahead of what is known."""
        return self.search.window or (_WINDOW if self.mapping is None else _FREE_WINDOW)

    def to_beat(self, front: Floats) -> Floats:
        """The points that a design must beat to matter: those of a front, less the gap the study leaves."""
        return front / (1 + self.search.gap)

    @property
    def of_wafers(self) -> bool:
        """Whether designs are wafers."""
        return self.space.wafer is not None

    def candidates(self, codes: Ints) -> list[tuple[int, Ints, Ints]]:
        """Candidates grouped by number of chips: its position, the rows that have it, and their designs."""
        positions, designs = np.divmod(np.asarray(codes, np.int64), self.space.size)
        by_position = [(p, np.nonzero(positions == p)[0]) for p in range(len(self.counts))]
        return [(position, rows, designs[rows]) for position, rows in by_position if len(rows)]

    def codes(self, position: int, designs: Ints) -> Ints:
        """Candidates with one number of chips."""
        return position * self.space.size + designs

    def cluster(self, chip: Chip, count: int) -> Cluster:
        """A cluster of a number of one chip."""
        tiers = chip.tiers if self.tiers is None else self.tiers
        return Cluster(f"{count} {chip.name}", chip, count, fit_tiers(tiers, count, "cluster.chips"))

    def clusters(self, position: int, designs: Sequence[int] | Ints) -> list[Cluster]:
        """The clusters of designs with one number of chips or wafers."""
        space, count = self.spaces[position], self.counts[position]
        if self.of_wafers:
            return wafers.clusters_of(space, designs, count)
        return [self.cluster(chip, count) for chip in space.chips(designs)]

    def cluster_of(self, code: int) -> Cluster:
        """The cluster of a candidate."""
        position, design = divmod(code, self.space.size)
        return self.clusters(position, [design])[0]

    def code_of(self, point: Mapping[str, Any]) -> int:
        """The candidate of a point of a result."""
        count = point["wafers" if self.of_wafers else "chips"]
        return self.counts.index(count) * self.space.size + int(point["design"])

    def numbers_of(self, code: int) -> dict[str, int]:
        """A candidate as named in points of results; the chips of wafers are the dies that plans use."""
        position, design = divmod(code, self.space.size)
        if not self.of_wafers:
            return {"design": design, "chips": self.counts[position]}
        dies = int(wafers.wafer_designs(self.space, [design]).planned_dies[0])
        return {"design": design, "chips": self.counts[position] * dies, "wafers": self.counts[position]}

    @cached_property
    def usual_clusters(self) -> tuple[Cluster, ...]:
        """The base design with every number of chips, or on every grid: used to check and describe the plan space."""
        if self.of_wafers:
            return tuple(cluster for count in self.counts for cluster in wafers.grid_clusters(self.space, count))
        return tuple(self.cluster(self.space.base, count) for count in self.counts)

    def simulating(self, top: int) -> Self:
        """The same study with a number of leading designs simulated."""
        if not 1 <= top <= MOST:
            raise InputError("simulate_top", f"is {top}", f"it should be from 1 to {MOST}")
        check_simulated(self.objectives, self.search.method)
        search = self.search.model_copy(update={"simulate_top": top})
        document = {**self.document, "search": {**self.document["search"], "simulate_top": top}}
        return replace(self, search=search, document=document)


def check_simulated(objectives: Sequence[str], method: str) -> None:
    """Raises an error if simulation cannot decide or bound anything in this study."""
    if tuple(objectives) != ("step_time",):
        what = f"cannot be combined with the objectives {', '.join(objectives)}"
        raise InputError("search.simulate_top", what, "set objectives to [step_time], or leave it out")
    if method != "exact":
        what = f"cannot be combined with the method {method}"
        raise InputError("search.simulate_top", what, "set search.method to exact, or leave it out")


def study_of(document: Mapping[str, Any], where: str, folder: Path = Path()) -> ResolvedStudy:
    """The study a document describes; paths in it are relative to `folder`."""
    file = validate(StudyFile, document, where)
    try:
        return _study(file, where, folder)
    except InputError as error:
        place = error.where if error.where.startswith(where) else f"{where}: {error.where}"
        raise InputError(place, error.what, error.fix) from None


def _study(file: StudyFile, where: str, folder: Path) -> ResolvedStudy:
    jobs = _jobs(file.jobs, folder)
    framework = _named("cluster.framework", lambda: frameworks.load(relative_to(file.cluster.framework, folder)))
    for job in jobs:
        try:
            check_job(job.job, framework)
        except InputError as error:
            raise InputError(f"jobs.{job.name}.{error.where.removeprefix('job: ')}", error.what, error.fix) from None
    space = _space(file.hardware, file.name, f"{where}: hardware", folder)
    counts = _counts(file, space)
    tiers = None
    if file.cluster.tiers is not None:
        tiers = tuple(validate(TierSpec, t, f"cluster.tiers.{n}").tier() for n, t in enumerate(file.cluster.tiers))
    study = ResolvedStudy(
        name=file.name,
        jobs=jobs,
        space=space,
        counts=counts,
        spaces=tuple(limited(space, file.limits, count) for count in counts),
        tiers=tiers,
        framework=framework,
        plans=Space(),
        mapping=free_mapping(file, framework, of_wafers=space.wafer is not None),
        objectives=file.objectives,
        search=file.search,
        executor=file.executor,
        seed=file.seed,
        output=file.output,
        document={},
    )
    for name in file.objectives:
        check_estimate(space, name)
    if file.search.simulate_top is not None:
        check_simulated(file.objectives, file.search.method)
    study = replace(study, plans=_plans(file.plans, study))
    asked = file.model_dump(mode="json", exclude_none=True, exclude=_NOT_ASKED)
    return replace(study, document={**asked, "content": _content(study)})


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
    """The design space of a name, path or fields; fields given with a name are added to it."""
    added = {field: value for field, value in part if value is not None and field != "space"}
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
    space = study.space
    formulas = space.formulas
    parts: dict[str, object] = {
        "jobs": study.jobs,
        "framework": study.framework,
        "space": (space.fixed, space.axes, _texts(space), space.shares_cores),
        "tiers": study.tiers,
        "technology": (formulas.references, formulas.technology, formulas.end),
    }
    return {name: digest(part) for name, part in parts.items()}


def _texts(space: DesignSpace) -> list[object]:
    """The expressions of a space as written."""
    formulas = space.formulas
    named = [(name, expression.text) for name, expression in (*formulas.derived, *formulas.defined.items())]
    return [space.name, named, [limit.text for limit in space.limits]]
