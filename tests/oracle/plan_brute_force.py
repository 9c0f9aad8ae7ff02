"""Every plan of a space by plain loops, and the best of them: written apart from the search, from the space's words.

Of the search only the lists of the space are shared. Whether a plan runs is asked of `check_runs` alone, and what it
takes of the evaluation. A *choice* is everything of a plan but its cut; a space counts choices that have a cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

from dovetail.errors import InputError
from dovetail.frameworks import Framework
from dovetail.frameworks.framework import AxisOrder
from dovetail.hardware import Cluster
from dovetail.layout.strategy import ContextKind
from dovetail.models import Job
from dovetail.plans.pipeline_schedule import Pipeline, PipelineSchedule
from dovetail.plans.plan import Plan, PlanSpec, resolve_plan
from dovetail.plans.runs import check_runs
from dovetail.plans.space import Space
from dovetail.step.evaluate import evaluate
from dovetail.step.evaluation import Evaluation

#: Some fields of a plan by name.
Fields = dict[str, Any]
Cut = tuple[int, ...]


def best(job: Job, cluster: Cluster, framework: Framework, space: Space | None) -> Evaluation | None:
    """The fastest of all plans that fit; None where none does."""
    answers = (evaluate(p, job, cluster, framework, energy=False) for p in every_plan(job, cluster, framework, space))
    fitting = (answer for answer in answers if keeps_risk(answer, cluster, framework))
    return min(fitting, key=lambda a: a.step_time_s, default=None)


def keeps_risk(answer: Evaluation, cluster: Cluster, framework: Framework) -> bool:
    """Whether a plan fits as surely as searched plans have to: 98 in 100 runs of it."""
    parts = answer.memory_by_stage[answer.fullest_stage]
    inside = answer.peak_bytes - parts["context"] - parts["workspaces"]
    exceeded = framework.memory_error.value * math.log(0.98 / 0.02)
    on_host = answer.host_bytes <= answer.host_limit_bytes
    return on_host and answer.peak_bytes + inside * exceeded <= cluster.chip.usable_bytes


def count(job: Job, cluster: Cluster, framework: Framework, space: Space | None) -> int:
    """Choices that have at least one cut."""
    return len({choice_of(plan) for plan in every_plan(job, cluster, framework, space)})


def choice_of(plan: Plan) -> Plan:
    """A plan without its cut."""
    return replace(plan, layers_per_stage=())


def every_plan(job: Job, cluster: Cluster, framework: Framework, space: Space | None) -> Iterator[Plan]:
    """Every plan of the space, once for each of its cuts."""
    where = (job, cluster, framework)
    whole = (space or Space()).resolve(*where)
    for choice in _choices(job, cluster, whole):
        shares = _list(whole.recompute_share) if choice.recompute == "full" else (1.0,)
        for share, cut in product(shares, _cuts(choice, job.model.num_layers, whole)):
            plan = replace(choice, recompute_share=share, layers_per_stage=cut)
            if runs(plan, *where) and not _is_another(plan, whole, *where):
                yield plan


def runs(plan: Plan, job: Job, cluster: Cluster, framework: Framework | None = None) -> bool:
    """Whether a plan runs; without a framework, whether chips can share the model so."""
    try:
        check_runs(plan, job, cluster, framework)
    except InputError:
        return False
    return True


def _is_another(plan: Plan, space: Space, job: Job, cluster: Cluster, framework: Framework) -> bool:
    """A pipeline keeps its gradients whole until it reduces them: stage 2 is another word for stage 1."""
    if plan.pipeline_parallel == 1 or plan.zero_stage != 2 or 1 not in _list(space.zero_stage):
        return False
    return runs(replace(plan, zero_stage=1), job, cluster, framework)


def _choices(job: Job, cluster: Cluster, space: Space) -> Iterator[Plan]:
    """Choices with the even cut and whole recompute, of degrees that chips can share the model with."""
    for degrees in _degrees(job, cluster, space):
        pipelines = list(_pipelines(degrees, job, space))
        inside = product(
            _sequence_parallel(degrees, space),
            _context_kinds(degrees, space),
            _experts(degrees, job, space),
            _states(degrees, space),
            _axis_orders(degrees, cluster, space),
        )
        for sequence, kind, experts, state, order in inside if pipelines else ():
            # neither schedule nor recompute has a say in that
            shared = Plan(
                **degrees, **pipelines[0], **experts, **state, sequence_parallel=sequence, context_kind=kind,
                axis_order=order,
            )  # fmt: skip
            if runs(shared, job, cluster):
                for pipeline, again, said in product(pipelines, _list(space.recompute), _said(space)):
                    yield replace(shared, **pipeline, recompute=again, **said)


def _said(space: Space) -> Iterator[Fields]:
    """What plans say of overlaps and of options of the launch format."""
    names = (
        "overlap_tensor_parallel", "overlap_expert_parallel", "overlap_gradients", "overlap_parameters", "dispatcher",
        "cuda_graphs", "fp8_recipe", "offload",
    )  # fmt: skip
    for values in product(*(_list(getattr(space, name)) for name in names)):
        yield dict(zip(names, values, strict=True))


def _list(values: tuple[Any, ...] | None) -> tuple[Any, ...]:
    assert values is not None, "the whole space leaves no field open that is asked for"
    return values


def _degrees(job: Job, cluster: Cluster, space: Space) -> Iterator[Fields]:
    """Degrees whose product is the number of chips, and microbatches that make up the global batch."""
    lists = (space.tensor_parallel, space.context_parallel, space.pipeline_parallel, space.micro_batch)
    for t, c, p, micro_batch in product(*map(_list, lists)):
        if cluster.chips % (t * c * p):
            continue
        d = cluster.chips // (t * c * p)
        if job.global_batch % (micro_batch * d):
            continue
        yield {
            "tensor_parallel": t,
            "context_parallel": c,
            "pipeline_parallel": p,
            "data_parallel": d,
            "micro_batch": micro_batch,
            "num_microbatches": job.global_batch // (micro_batch * d),
        }


def _pipelines(degrees: Fields, job: Job, space: Space) -> Iterator[Fields]:
    """Schedules and their chunks per stage, with the even cut."""
    p, blocks = degrees["pipeline_parallel"], job.model.num_layers
    if p == 1:
        yield {"pipeline_schedule": "1f1b", "virtual_stages": 1, "layers_per_stage": (blocks,)}
        return
    for schedule in _list(space.pipeline_schedule):
        several = [v for v in _list(space.virtual_stages) if v > 1]
        for v in several if schedule == "interleaved" else [1]:
            if p * v <= blocks + 2 and _is_pipeline(schedule, p, degrees["num_microbatches"], v):
                cut = even_cut(p, v, blocks)
                yield {"pipeline_schedule": schedule, "virtual_stages": v, "layers_per_stage": cut}


def _is_pipeline(schedule: str, stages: int, microbatches: int, chunks: int) -> bool:
    try:
        Pipeline(PipelineSchedule(schedule), stages, microbatches, chunks)
    except InputError:
        return False
    return True


def _sequence_parallel(degrees: Fields, space: Space) -> tuple[bool, ...]:
    return _list(space.sequence_parallel) if degrees["tensor_parallel"] > 1 else (False,)


def _context_kinds(degrees: Fields, space: Space) -> tuple[ContextKind, ...]:
    return _list(space.context_kind) if degrees["context_parallel"] > 1 else ("all_gather",)


def _experts(degrees: Fields, job: Job, space: Space) -> Iterator[Fields]:
    t = degrees["tensor_parallel"]
    if not any("experts" in layer.sizes for layer in job.graph().layers.values()):
        yield {"expert_parallel": 1, "expert_tensor_parallel": t}
        return
    for e, inner in product(_list(space.expert_parallel), _list(space.expert_tensor_parallel)):
        yield {"expert_parallel": e, "expert_tensor_parallel": inner}


def _states(degrees: Fields, space: Space) -> Iterator[Fields]:
    """Which state is sharded, and over how many chips."""
    ranks = degrees["data_parallel"] * degrees["context_parallel"]
    for stage in _list(space.zero_stage):
        if stage == 0:
            yield {"zero_stage": 0, "zero_group": ranks}
            continue
        # over one chip nothing is sharded
        yield from ({"zero_stage": stage, "zero_group": n} for n in _list(space.zero_group) if n > 1 and ranks % n == 0)


def _axis_orders(degrees: Fields, cluster: Cluster, space: Space) -> tuple[AxisOrder, ...]:
    """Rank orders where there is something to order."""
    several = degrees["pipeline_parallel"] > 1 and degrees["data_parallel"] > 1 and len(cluster.tiers) > 1
    return tuple(sorted(set(_list(space.axis_order)))) if several else ("tp-cp-dp-pp",)


# How blocks are dealt to stages.


def _cuts(plan: Plan, blocks: int, space: Space) -> tuple[Cut, ...]:
    p, v = plan.pipeline_parallel, plan.virtual_stages
    if p == 1:
        return ((blocks,),)
    if plan.pipeline_schedule == "dualpipe":
        return (even_cut(p, v, blocks),)
    if space.partition == "ends" or (space.partition == "any" and plan.pipeline_schedule == "interleaved"):
        return cuts_alike_inside(p, v, blocks)
    if space.partition == "any":
        return every_cut(p, blocks)
    return (even_cut(p, v, blocks),)


@cache
def even_cut(stages: int, chunks: int, blocks: int) -> Cut:
    """The cut a plan has that names none."""
    spec = PlanSpec(pipeline_parallel=stages, virtual_stages=chunks)
    # one microbatch a stage is a pipeline of either schedule
    return resolve_plan(spec, chips=stages, global_batch=stages, num_layers=blocks).layers_per_stage


@cache
def cuts_alike_inside(stages: int, chunks: int, blocks: int) -> tuple[Cut, ...]:
    """The even cut, and those whose first and last part hold no more than the others, which are alike."""
    parts = stages * chunks
    fewest = -(-blocks // parts)
    found = {even_cut(stages, chunks, blocks)}
    for inside in (fewest, fewest + 1):
        for first, last in product(range(inside + 1), repeat=2):
            if first + (parts - 2) * inside + last == blocks:
                found.add((first, *[inside] * (parts - 2), last))
    return tuple(sorted(found))


@cache
def every_cut(stages: int, blocks: int) -> tuple[Cut, ...]:
    """Every cut whose stages between the first and the last hold a block or more."""
    ends = product(range(blocks + 1), repeat=2)
    return tuple(
        (first, *inside, last) for first, last in ends for inside in _shared_out(blocks - first - last, stages - 2)
    )


def _shared_out(blocks: int, stages: int) -> Iterator[Cut]:
    """Every way to give so many stages a block or more each, with none left."""
    if stages == 0:
        if blocks == 0:
            yield ()
        return
    for first in range(1, blocks - stages + 2):
        yield from ((first, *rest) for rest in _shared_out(blocks - first, stages - 1))
