"""Whether a plan is in the space of a question; where not, which field or rule says no."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from dovetail.errors import InputError
from dovetail.frameworks import Framework
from dovetail.frozen import frozen
from dovetail.graph import LayerGraph, ModelGraph
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.partitions import is_free, listed_partitions, runs_partition
from dovetail.plans.plan import Plan
from dovetail.plans.runs import check_runs
from dovetail.plans.space import BY_BLOCK, Choice, Space, listed
from dovetail.profile.modules import MODULES, Module

#: A sentence that lists more values than this is no help.
_LISTED_AT_MOST = 12


@frozen
class Coverage:
    """Whether a space has a plan."""

    #: why not; None where it has it
    reason: str | None
    #: the plan of the space that is the same by the model; the plan itself where it is not covered
    plan: Plan
    #: whether its partition is one that is tried or solved for; the others are covered by the bound of the framework
    partition_tried: bool

    @property
    def covered(self) -> bool:
        """Whether the space has the plan, or one that is the same by the model."""
        return self.reason is None


def covers(plan: Plan, job: Job, cluster: Cluster, framework: Framework, space: Space | None = None) -> Coverage:
    """Whether the plans of a framework, or a narrower space of them, have a plan.

    Where every block has its own policy, the space has whatever blocks recompute.
    """
    whole = (space or Space()).resolve(job, cluster, framework)
    try:
        check_runs(plan, job, cluster, framework)
    except InputError as error:
        return Coverage(f"{error.where.removeprefix('plan: ')} {error.what}", plan, partition_tried=False)
    if plan.chips != cluster.chips:
        return Coverage(f"{plan.chips} of {cluster.chips} chips are used", plan, partition_tried=False)
    same = canonical(plan, job, cluster, framework)
    reason = next(missing(same, whole, cluster), None)
    return Coverage(reason, same if reason is None else plan, _partition_tried(same, whole, framework))


def missing(plan: Plan, space: Space, cluster: Cluster) -> Iterator[str]:
    """Why a resolved space does not have a plan that the framework runs."""
    for name, each in listed().items():
        if each.about.searched == "partition" or (name.startswith("recompute") and BY_BLOCK in space.recompute):
            continue
        if name == "axis_order" and len(cluster.tiers) < 2:
            continue
        value, values = getattr(plan, name), getattr(space, name)
        if each.alike and values == (None,):
            continue  # left to the framework: the space has the fastest it permits
        if value not in values and (each.about.matters is None or each.about.matters(plan)):
            yield f"{name} {_word(value)} is none of {_list(values)}"
    layers = plan.layers_per_stage
    if not runs_partition(layers, "never" if space.partition == "even" else space.partition):
        yield f"stages of {_blocks(layers)} blocks are not {space.partition}"


def _partition_tried(plan: Plan, space: Space, framework: Framework) -> bool:
    """Whether a partition is listed, or found by the partition solver."""
    layers, p, schedule = plan.layers_per_stage, plan.pipeline_parallel, plan.pipeline_schedule
    tried = listed_partitions(sum(layers), p, plan.virtual_stages, schedule, space.partition, framework.uneven_stages)
    return layers in tried or is_free(schedule, space.partition, p)


def _blocks(layers: tuple[int, ...]) -> str:
    runs = [(size, len(list(run))) for size, run in groupby(layers)]
    return ", ".join(f"{count} × {size}" if count > 1 else f"{size}" for size, count in runs)


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
        if not MODULES[name].whole:
            operators = _operators_by_name(MODULES[name], layers)
            if operators and operators <= named:
                named = (named - operators) | {name}
    ordered = [name for name in (*framework.recompute_modules, *framework.recompute_policies) if name in named]
    modules = (*ordered, *sorted(named.difference(ordered)))
    if modules == (framework.selective,) and "selective" in framework.recompute:
        return "selective"
    return modules or "none"


def _operators_by_name(module: Module, layers: tuple[LayerGraph, ...]) -> frozenset[str]:
    """Operators that name a module as a whole; none where one of them is in some layer without being the module's."""
    owned = frozenset(name for layer in layers for name in module.operators(layer))
    alike = all({o.name for o in layer.operators} & owned == set(module.operators(layer)) for layer in layers)
    return owned if alike else frozenset()


def _word(value: object) -> str:
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _list(values: tuple[object, ...]) -> str:
    shown = ", ".join(map(_word, values[:_LISTED_AT_MOST]))
    return shown if len(values) <= _LISTED_AT_MOST else f"{shown}, … {_word(values[-1])}"
