"""A plan back into a plan file: what `load_task` reads from it takes exactly as long."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail import hardware, models
from dovetail.documents import MAX_YAML_BYTES, to_yaml, write_text
from dovetail.errors import InputError
from dovetail.hardware import Cluster
from dovetail.hardware.defect_file import defects_document
from dovetail.hardware.write import chip_document, tier_documents
from dovetail.models import AnyModel, Job
from dovetail.models.catalogue import document_of
from dovetail.plans.declaration import declared
from dovetail.plans.fields import PlanFields
from dovetail.plans.file_types import plain
from dovetail.plans.plan import Plan


def plan_document(plan: Plan, job: Job, cluster: Cluster, framework: str) -> dict[str, Any]:
    """The three parts of a plan file; what is not in the catalogue is written in full.

    `framework` is a name of the catalogue, or the path of a framework file from the plan file's folder.
    """
    return {
        "job": job_part(job),
        "cluster": cluster_part(cluster) | {"framework": framework},
        "plan": plan_part(plan),
    }


def write_plan_file(path: Path, document: Mapping[str, Any]) -> tuple[Path, ...]:
    """Writes a plan file; a model that is too long for YAML is a model file beside it. Returns what is written."""
    text, model = to_yaml(document), document["job"]["model"]
    if len(text.encode()) <= MAX_YAML_BYTES or isinstance(model, str):
        write_text(path, text)
        return (path,)
    beside = path.with_name(f"{path.stem}.model.json")
    write_text(beside, json.dumps(model) + "\n")
    write_text(path, to_yaml({**document, "job": {**document["job"], "model": beside.name}}))
    return path, beside


def job_part(job: Job) -> dict[str, Any]:
    """The `job` part."""
    part = {
        "model": job.model.name if _in_catalogue(job.model) else document_of(job.model),
        "seq_len": job.seq_len,
        "global_batch": job.global_batch,
        "precision": job.precision,
        "optimizer": job.optimizer,
        "attention": "fused" if job.fused_attention else "unfused",
    }
    return part if job.adapters is None else part | {"adapters": job.adapters.document()}


def cluster_part(cluster: Cluster) -> dict[str, Any]:
    """The `cluster` part without its framework: by name where the catalogue has it, otherwise in full."""
    return _whole_part(cluster) | (
        {"defects": [defects_document(each) for each in cluster.defects]} if cluster.defects else {}
    )


def _whole_part(cluster: Cluster) -> dict[str, Any]:
    chip, chips = cluster.chip, cluster.chips
    # several wafers are called after one of them and their number
    for name in (cluster.name, cluster.name.rpartition("-")[0]):
        if name in (*hardware.cluster_names(), *hardware.wafer_names()) and _alike(cluster, name):
            return {"name": name, "chips": chips}
    in_catalogue = chip.name in hardware.chip_names() and hardware.chip(chip.name) == chip
    if in_catalogue and _alike(cluster, chip.name):
        return {"chip": chip.name, "chips": chips}
    tiers: dict[str, Any] = {"tiers": tier_documents(cluster)} if cluster.tiers else {}
    if cluster.store is not None:
        tiers["store"] = {"bytes": cluster.store.bytes, "bytes_per_s": cluster.store.bytes_per_s}
    return {"chip": chip.name if in_catalogue else chip_document(chip), "chips": chips} | tiers


def plan_fields(plan: Plan) -> dict[str, Any]:
    """All fields of a plan, as answers have them: as in a plan file, with those it leaves out.

    What is empty by default is left out, as parts for wafers are.
    """
    fields: dict[str, Any] = {}
    for name, each in declared(PlanFields).items():
        value = getattr(plan, name)
        if value == each.default == ():
            continue
        if value is not None:
            fields[name] = (each.about.write or plain)(value)
        elif name not in ("layouts", "wafer"):
            fields[name] = None
    return fields


def plan_part(plan: Plan) -> dict[str, Any]:
    """The `plan` part, all fields of it; one that is None is left out."""
    part: dict[str, Any] = {}
    for name, each in declared(PlanFields).items():
        value = getattr(plan, name)
        if each.about.written and value is not None and not value == each.default == ():
            part[name] = (each.about.write or plain)(value)
    return part


def _in_catalogue(model: AnyModel) -> bool:
    return model.name in models.names() and models.from_catalogue(model.name) == model


def _alike(cluster: Cluster, name: str) -> bool:
    """Whether the catalogue has the same chips and network under a name."""
    try:
        listed = hardware.cluster(name, cluster.chips)
    except InputError:
        return False
    return (listed.chip, listed.tiers, listed.store) == (cluster.chip, cluster.tiers, cluster.store)
