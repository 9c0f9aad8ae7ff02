"""Plan files: job, cluster and plan in one YAML; command-line flags fill what is absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field

from dovetail import frameworks, hardware, models
from dovetail.cost.units import chip_units
from dovetail.documents import Spec, read_document, validate
from dovetail.errors import InputError, quoted
from dovetail.frameworks import Framework
from dovetail.frozen import frozen
from dovetail.hardware import Cluster, Store
from dovetail.hardware.catalogue import cluster_from
from dovetail.hardware.fields import SomeBytes, SomeBytesPerS
from dovetail.models import AnyModel, Job, Model, TracedModel
from dovetail.models.adapters import Adapters
from dovetail.plans.declaration import Text
from dovetail.plans.plan import Plan, PlanSpec, resolve_plan
from dovetail.plans.runs import check_runs
from dovetail.plans.stage_tiles import damaged
from dovetail.plans.wafer_part import DefectsByWafer, defect_maps

Count = Annotated[int, Field(ge=1, le=2**40)]


def _name_or_model(value: object) -> object:
    """A model written out is read here, so that a mistake in it is named by its own field."""
    if isinstance(value, str | Model | TracedModel):
        return value
    if not isinstance(value, Mapping):
        raise InputError("", f"is {quoted(value)}", "it should be a name of the catalogue, a path, or a model")
    try:
        return models.model_from(cast("Mapping[str, Any]", value), "model")
    except InputError as error:
        raise InputError(error.where.removeprefix("model").removeprefix(": "), error.what, error.fix) from None


class JobSpec(Spec):
    """The `job` part."""

    model: Annotated[Text | Model | TracedModel, BeforeValidator(_name_or_model)]
    """a name of the catalogue, the path of a model file (from the plan file's folder), or a model itself"""
    seq_len: Count
    global_batch: Count
    precision: Literal["bf16", "fp16", "fp8", "fp4", "fp32"] = "bf16"
    optimizer: Text = "adamw"
    attention: Literal["fused", "unfused"] = "fused"
    adapters: Adapters | None = None
    """LoRA: adapters are trained and the model's own weights are frozen; left out, all weights are trained"""


class StoreSpec(Spec):
    """Memory off a wafer that it streams from."""

    bytes: SomeBytes
    bytes_per_s: SomeBytesPerS

    def store(self) -> Store:
        """The same for use."""
        return Store(self.bytes, self.bytes_per_s)


class ClusterPart(Spec):
    """The `cluster` part: a cluster or chip of the catalogue, or a cluster in full."""

    name: Text | None = None
    """a cluster of the catalogue, or the path of a cluster file"""
    chip: Text | dict[str, Any] | None = None
    """a chip of the catalogue, or a chip in full"""
    chips: Count | None = None
    tiers: Annotated[tuple[dict[str, Any], ...], Field(strict=False, max_length=8)] | None = None
    network: Text | None = None
    """instead of tiers: a network of the catalogue, or the path of a network file"""
    framework: Text = "megatron"
    store: StoreSpec | None = None
    """of each wafer, where the tiers are those of wafers"""
    defects: DefectsByWafer | None = None
    """dead dies and links of one wafer or of each, instead of those in a wafer file"""


class PlanFile(Spec):
    """A plan file."""

    job: JobSpec
    cluster: ClusterPart
    plan: PlanSpec = PlanSpec.unchecked()


@frozen
class Task:
    """What a plan file asks: everything resolved."""

    job: Job
    cluster: Cluster
    framework: Framework
    plan: Plan


@frozen
class Question:
    """A task whose plan is asked for: what is trained, on what, by which framework."""

    job: Job
    cluster: Cluster
    framework: Framework


def load_task(path: Path | str) -> Task:
    """The task a plan file describes."""
    path = Path(path)
    return task_of(read_document(path), str(path), path.parent)


def task_of(document: Mapping[str, Any], where: str, folder: Path = Path()) -> Task:
    """The same for a document that is already a mapping."""
    file = validate(PlanFile, document, where)
    try:
        return _task(file, folder)
    except InputError as error:
        raise InputError(f"{where}: {_field(error.where)}", error.what, error.fix) from None


def plan_of_document(document: Mapping[str, Any], job: Job, cluster: Cluster, where: str) -> Plan:
    """The plan of a plan file, for a job and a cluster that are given: only its `plan` part is read."""
    try:
        spec = validate(PlanSpec, document.get("plan") or {}, "plan")
        return resolve_plan(spec, chips=cluster.chips, global_batch=job.global_batch, num_layers=job.model.num_layers)
    except InputError as error:
        raise InputError(f"{where}: {_field(error.where)}", error.what, error.fix) from None


def question_of(document: Mapping[str, Any], where: str, folder: Path = Path()) -> Question:
    """What a document asks, whatever its plan."""
    file = validate(PlanFile, document, where)
    try:
        return _question(file, folder)
    except InputError as error:
        raise InputError(f"{where}: {_field(error.where)}", error.what, error.fix) from None


def _question(file: PlanFile, folder: Path) -> Question:
    framework = frameworks.load(relative_to(file.cluster.framework, folder))
    return Question(job_of(file.job, folder), _cluster(file.cluster, folder), framework)


def _task(file: PlanFile, folder: Path) -> Task:
    asked = _question(file, folder)
    job, cluster, framework = asked.job, asked.cluster, asked.framework
    plan = resolve_plan(
        file.plan,
        chips=cluster.chips,
        global_batch=job.global_batch,
        num_layers=job.model.num_layers,
    )
    check_runs(plan, job, cluster, framework)
    return Task(job, cluster, framework, plan)


#: What catalogues call a name they do not have, and its field.
_NAMES = {
    "model": "job.model",
    "cluster": "cluster.name",
    "chip": "cluster.chip",
    "chips": "cluster.chips",
    "technology": "cluster.chip.technology",
    "framework": "cluster.framework",
}


def _field(where: str) -> str:
    """A field as the plan file has it (job.seq_len, plan.zero_group); places in other files stay as they are."""
    part, _, rest = where.partition(": ")
    if part in PlanFile.model_fields and rest:
        return f"{part}.{rest.replace(': ', '.')}"
    return _NAMES.get(where, where)


def job_of(spec: JobSpec, folder: Path) -> Job:
    """The job a spec describes; the path of a model file begins at `folder`."""
    model: AnyModel = models.load(relative_to(spec.model, folder)) if isinstance(spec.model, str) else spec.model
    return Job(
        model,
        seq_len=spec.seq_len,
        global_batch=spec.global_batch,
        precision=spec.precision,
        optimizer=spec.optimizer,
        fused_attention=spec.attention == "fused",
        adapters=spec.adapters,
    )


def _cluster(part: ClusterPart, folder: Path) -> Cluster:
    cluster = _described(part, folder)
    if part.store is not None:
        cluster = replace(cluster, store=part.store.store())
    if part.defects is not None:
        cluster = damaged(cluster, defect_maps(part.defects), "cluster: defects")
    if cluster.chip.technology is not None:
        hardware.technology(cluster.chip.technology)
    chip_units(cluster.chip, "bf16")
    return cluster


def _described(part: ClusterPart, folder: Path) -> Cluster:
    if (part.name is None) == (part.chip is None):
        raise InputError("cluster: name", "and chip exclude each other and one is needed", "give exactly one of them")
    if part.name is not None:
        for field in ("tiers", "network"):
            if getattr(part, field) is not None:
                what, fix = "cannot be combined with a named cluster", f"give chip, chips and {field} instead"
                raise InputError(f"cluster: {field}", what, fix)
        return hardware.cluster(relative_to(part.name, folder), part.chips)
    if part.chips is None:
        raise InputError("cluster: chips", "is missing", "say how many chips the cluster has")
    chip: object = part.chip
    if isinstance(chip, str) and part.tiers is None and part.network is None:
        return hardware.cluster(hardware.chip(relative_to(chip, folder)), part.chips)
    if isinstance(chip, str) and is_path(chip):
        chip = read_document(relative_to(chip, folder))
    document: dict[str, Any] = {"name": "described", "chip": chip, "chips": part.chips}
    if part.tiers is not None:
        document["tiers"] = list(part.tiers)
    if part.network is not None:
        document["network"] = part.network
    return cluster_from(document, "cluster", folder=folder)


def is_path(name: str) -> bool:
    """Whether a name is that of a file and not of a catalogue."""
    return Path(name).suffix in (".yaml", ".yml", ".json")


def relative_to(name: str, folder: Path) -> str:
    """A path is taken from the plan file's folder; a catalogue name stays as it is."""
    return str(folder / name) if is_path(name) else name


def schema() -> dict[str, Any]:
    """The JSON Schema of a plan file."""
    return PlanFile.model_json_schema()
