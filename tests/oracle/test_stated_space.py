"""An enumeration of the space as an answer prints it finds the same optimum: it shares no code with the search.

Every combination of the printed values is made a plan; what does not run (`plans.runs`) is left out, and the rest is
estimated one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise, product
from math import ceil
from typing import Any

import pytest

from dovetail import frameworks, hardware, models
from dovetail.errors import InputError
from dovetail.models import Job
from dovetail.models.model import Model
from dovetail.plans.plan import Plan, PlanSpec, resolve_plan
from dovetail.plans.runs import check_runs
from dovetail.plans.space import Space
from dovetail.search.plan import plan
from dovetail.step.evaluate import evaluate

#: Printed fields that are no field of a plan.
ABOUT = ("coupled", "excluded", "narrowed_by_user", "partition", "digests")


def layered(name: str, layers: int, **changes: Any) -> Model:
    """A model of the catalogue with fewer layers, all as its last ones are."""
    model = models.load(name)
    part = model.layers[-1].model_copy(update={"repeat": layers // len(model.layers[-1].blocks)})
    return model.model_copy(update={"name": f"{name}-{layers}", "layers": (part,), **changes})


#: framework, model, layers, chips, batch, and fields that are fixed to keep the enumeration short
QUESTIONS: dict[str, tuple[str, str, int, int, int, dict[str, Any]]] = {
    "megatron-pipelines": ("megatron", "llama-3.2-1b", 4, 4, 4, {"context_parallel": (1,), "zero_stage": (0, 1)}),
    "megatron-context": ("megatron", "llama-3.2-1b", 2, 4, 4, {"pipeline_parallel": (1,)}),
    "megatron-shares": ("megatron", "llama-3.2-1b", 6, 2, 2, {"context_parallel": (1,)}),
    "megatron-experts": ("megatron", "mixtral-8x7b", 2, 4, 2, {"context_parallel": (1,), "zero_stage": (0, 1)}),
    "megatron-2022": ("megatron-2022", "llama-3.2-1b", 4, 4, 4, {}),
    "deepspeed": ("deepspeed", "llama-3.2-1b", 4, 4, 4, {}),
    "deepspeed-experts": ("deepspeed", "mixtral-8x7b", 2, 8, 8, {}),
    "fsdp": ("fsdp", "llama-3.2-1b", 4, 8, 8, {}),
    "megatron-deeper": ("megatron", "llama-3.2-1b", 5, 4, 4, {"tensor_parallel": (1,), "context_parallel": (1,)}),
    "megatron-fp8": ("megatron", "llama-3.2-1b", 3, 4, 4, {"pipeline_parallel": (2, 4), "context_parallel": (1,)}),
}


def partitions(space: dict[str, Any], layers: int, fields: dict[str, Any]) -> Iterator[tuple[int, ...] | None]:
    """Partitions that are tried: any for stages without virtual ones, chunks alike but the ends for the others."""
    parts = fields["pipeline_parallel"] * fields["virtual_stages"]
    yield None  # as even as can be
    if parts == 1 or space["partition"] == "even":
        return
    if fields["virtual_stages"] == 1 and space["partition"] == "any":
        for cuts in combinations(range(layers + parts - 1), parts - 1):
            ends = [-1, *cuts, layers + parts - 1]
            yield tuple(high - low - 1 for low, high in pairwise(ends))
        return
    for size in (ceil(layers / parts), ceil(layers / parts) + 1):
        both = layers - (parts - 2) * size
        for first in range(max(both + 1, 0)):
            if first <= size and both - first <= size:
                yield (first, *[size] * (parts - 2), both - first)


def plans(space: dict[str, Any], job: Job, cluster: hardware.Cluster) -> Iterator[Plan]:
    """All plans that the printed values make, as a plan file would be read; contradictions are left out."""
    fields = {name: values for name, values in space.items() if name not in ABOUT}
    sizes = {"chips": cluster.chips, "global_batch": job.global_batch, "num_layers": job.model.num_layers}
    for values in product(*fields.values()):
        chosen = dict(zip(fields, values, strict=True))
        stage = chosen["tensor_parallel"] * chosen["context_parallel"] * chosen["pipeline_parallel"]
        if cluster.chips % stage or (chosen["pipeline_parallel"] == 1 and chosen["pipeline_schedule"] != "1f1b"):
            continue
        for layers in partitions(space, job.model.num_layers, chosen):
            said = {name: value for name, value in chosen.items() if value is not None}
            try:
                yield resolve_plan(PlanSpec.model_validate({**said, "layers_per_stage": layers}), **sizes)
            except (InputError, ValueError):
                continue


def least_seconds(space: dict[str, Any], job: Job, cluster: hardware.Cluster, framework: str, limit: float) -> float:
    """The fastest of all plans that run and fit, estimated one by one."""
    known, least, seen = frameworks.load(framework), float("inf"), set[Plan]()
    for each in plans(space, job, cluster):
        if each in seen:
            continue
        seen.add(each)
        try:
            check_runs(each, job, cluster, known)
        except InputError:
            continue
        estimate = evaluate(each, job, cluster, known, energy=False)
        if estimate.peak_bytes <= limit:
            least = min(least, estimate.step_time_s)
    return least


def check(name: str, limit_bytes: float | None) -> None:
    framework, model, layers, chips, batch, fixed = QUESTIONS[name]
    precision = "fp8" if name.endswith("fp8") else "bf16"
    job = Job(layered(model, layers), seq_len=1024, global_batch=batch, precision=precision)
    cluster = hardware.cluster("h100-sxm", chips=chips)
    answer = plan(job, cluster, framework, space=Space(**fixed), memory_limit_bytes=limit_bytes, tie_margin=0.0)
    stated = dict(answer.certificate.space)
    limit = answer.certificate.memory_limit_bytes
    assert limit is not None
    assert answer.certificate.status == "optimal"
    assert answer.step_time_s == pytest.approx(least_seconds(stated, job, cluster, framework, limit), rel=1e-9)


def test_the_printed_space_has_the_same_optimum():
    check("deepspeed", None)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUESTIONS)
def test_printed_spaces_have_the_same_optimum(name):
    check(name, None)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["megatron-shares", "megatron-pipelines", "fsdp"])
def test_printed_spaces_have_the_same_optimum_where_memory_is_short(name):
    gigabytes = {"megatron-shares": 12e9, "megatron-pipelines": 8e9, "fsdp": 6e9}
    check(name, gigabytes[name])
