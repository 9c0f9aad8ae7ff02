"""Whether a plan, such as a published one, is in the space that is searched; where not, what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from dovetail.errors import InputError
from dovetail.frameworks import Framework
from dovetail.graph import LayerGraph, ModelGraph
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.partitions import is_free, listed_partitions
from dovetail.plans.plan import Plan
from dovetail.plans.runs import check_runs
from dovetail.plans.space import BY_BLOCK, Choice, Space, listed
from dovetail.profile.modules import MODULES, Module

#: A sentence that lists more values than this is no help.
_LISTED_AT_MOST = 12


def missing_feature(plan: Plan, job: Job, cluster: Cluster, framework: Framework) -> str | None:
    """What the space is missing to hold a plan; None where it holds it, or one that is the same by the model.

    Where every block has its own policy, the space holds whatever blocks recompute: the partition solver chooses no
    worse, up to rounding a share to whole blocks.
    """
    space = Space().resolve(job, cluster, framework)
    return next(_missing(canonical(plan, job, cluster, framework), job, cluster, framework, space), None)


def _missing(plan: Plan, job: Job, cluster: Cluster, framework: Framework, space: Space) -> Iterator[str]:
    if plan.chips != cluster.chips:
        yield f"{plan.chips} of {cluster.chips} chips are used"
    yield from _values(plan, space)
    if any("experts" in layer.sizes for layer in job.graph().layers.values()):
        yield from _expert_chips(plan, space)
    yield from _partition(plan, framework, space)
    if space.recompute != (BY_BLOCK,):
        yield from _recompute(plan, framework, space)
    try:
        check_runs(plan, job, cluster)
        # where each block has its own policy, the partition solver chooses what it recomputes
        blank = replace(plan, recompute=(), recompute_share=1.0, recompute_by_block=None)
        check_runs(blank if space.recompute == (BY_BLOCK,) else plan, job, cluster, framework)
    except InputError as error:
        yield f"{error.where.removeprefix('plan: ')} {error.what}"


def canonical(plan: Plan, job: Job, cluster: Cluster, framework: Framework) -> Plan:
    """The plan of the space that is the same by the model, where there is one."""
    p, d = plan.pipeline_parallel, plan.data_parallel
    same = _shared_state(plan, framework)
    if p == 1:
        # the micro-batches of one stage follow each other in every schedule; 1f1b saves the fewest of them
        same = replace(same, pipeline_schedule="1f1b", virtual_stages=1)
    if p == 1 or d == 1 or len(cluster.tiers) < 2:
        same = replace(same, axis_order="tp-cp-dp-pp")
    return same if "operators" in framework.recompute else _of_the_menu(same, job.graph(), framework)


def _shared_state(plan: Plan, framework: Framework) -> Plan:
    """State sharded as the framework calls it: of a pipeline, stages 1 and 2 are one; over one chip, none of both."""
    stage, staged = plan.zero_stage, plan.pipeline_parallel > 1
    optimizer_alone = stage == 1 or (stage == 2 and staged)
    if optimizer_alone and plan.zero_group == 1:
        return replace(plan, zero_stage=0, zero_group=plan.data_parallel * plan.context_parallel)
    if optimizer_alone and staged and stage not in framework.zero_stages_with_pipeline:
        return replace(plan, zero_stage=3 - stage)
    return plan


def _of_the_menu(plan: Plan, graph: ModelGraph, framework: Framework) -> Plan:
    """What is recomputed, in the words of the framework's menu."""
    choices = plan.recompute_choices
    if len(choices) != 1:
        return plan
    choice = _menu_choice(choices[0], graph, framework)
    share = 1.0 if choice == "none" else plan.recompute_share
    return replace(plan, recompute=choice, recompute_share=share, recompute_by_block=None)


def _menu_choice(choice: Choice, graph: ModelGraph, framework: Framework) -> Choice:
    """A choice by its modules: in the order of the menu, operators of a whole module by the module's name."""
    if isinstance(choice, str):
        return choice
    named, layers = set(choice), tuple(graph.layers.values())
    for name in framework.recompute_modules:
        if name in MODULES and not MODULES[name].whole:
            operators = _operators_by_name(MODULES[name], layers)
            if operators and operators <= named:
                named = (named - operators) | {name}
    ordered = [name for name in framework.recompute_modules if name in named]
    modules = (*ordered, *sorted(named.difference(ordered)))
    if modules == ("core_attn",) and "selective" in framework.recompute:
        return "selective"
    return modules or "none"


def _operators_by_name(module: Module, layers: tuple[LayerGraph, ...]) -> frozenset[str]:
    """Operators that name a module as a whole; none where one of them is in some layer without being the module's."""
    owned = frozenset(name for layer in layers for name in module.operators(layer))
    alike = all({o.name for o in layer.operators} & owned == set(module.operators(layer)) for layer in layers)
    return owned if alike else frozenset()


def _values(plan: Plan, space: Space) -> Iterator[str]:
    """Values that the space does not list, or does not join."""
    for name, each in listed().items():
        # the degree of experts may be left open; recompute and partition have checks of their own; of switches that
        # the framework decides, the space has the fastest it permits
        if name == "expert_tensor_parallel" or each.alike or each.about.searched in ("recompute", "partition"):
            continue
        value, values = getattr(plan, name), getattr(space, name)
        if value not in values and (each.about.matters is None or each.about.matters(plan)):
            yield f"{name} {value} is none of {_list(values)}"
    if plan.zero_stage and plan.zero_group == 1:
        yield f"zero_stage {plan.zero_stage} with zero_group 1 shards over one chip"


def _expert_chips(plan: Plan, space: Space) -> Iterator[str]:
    """Experts sharded over other chips than the space shards them over."""
    inner, t, listed = plan.expert_tensor_parallel, plan.tensor_parallel, space.expert_tensor_parallel
    if t % inner:
        yield f"expert_tensor_parallel {inner} does not divide tensor_parallel {t}"
    elif listed is None and inner not in (1, t):
        yield f"expert_tensor_parallel {inner} is neither 1 nor tensor_parallel {t}"
    elif listed is not None and inner not in listed:
        yield f"expert_tensor_parallel {inner} is none of {_list(listed)}"
    if plan.stages_inside and inner * plan.expert_parallel > t * plan.context_parallel:
        yield f"axis_order {plan.axis_order} with experts spread over replicas"


def _partition(plan: Plan, framework: Framework, space: Space) -> Iterator[str]:
    """A partition that is neither listed nor found by the partition solver."""
    layers, p, schedule = plan.layers_per_stage, plan.pipeline_parallel, plan.pipeline_schedule
    uneven = framework.uneven_stages
    listed = listed_partitions(sum(layers), p, plan.virtual_stages, schedule, space.partition, uneven)
    if layers in listed or is_free(schedule, space.partition, p):
        return
    runs = [(size, len(list(run))) for size, run in groupby(layers)]
    blocks = ", ".join(f"{count} × {size}" if count > 1 else f"{size}" for size, count in runs)
    if space.partition == "even" or schedule == "dualpipe":
        yield f"stages of {blocks} blocks are not even"
    else:
        size_between = -(-sum(layers) // len(layers))
        yield f"chunks of {blocks} blocks are not {size_between} or {size_between + 1} each between ends no larger"


def _recompute(plan: Plan, framework: Framework, space: Space) -> Iterator[str]:
    """What is recomputed that the menu does not offer."""
    choice, share = plan.recompute, plan.recompute_share
    if plan.recompute_by_block is not None:
        yield "blocks that recompute different things"
        return
    if choice not in space.recompute:
        names = (choice,) if isinstance(choice, str) else choice
        others = [name for name in names if name not in framework.recompute_modules]
        yield f"recompute of {', '.join(others or names)} is not on the menu"
    if share == 1:
        return
    if choice != "full":
        yield f"share {share:g} of another recompute than full"
    elif not framework.recompute_some_layers:
        yield f"share {share:g} where blocks are recomputed all or none"
    elif share not in space.recompute_share:
        yield f"share {share:g} is no eighth"


def _list(values: tuple[object, ...]) -> str:
    shown = ", ".join(map(str, values[:_LISTED_AT_MOST]))
    return shown if len(values) <= _LISTED_AT_MOST else f"{shown}, … {values[-1]}"
