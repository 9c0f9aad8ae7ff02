"""Damage of the tiles of a plan's stages, each kind once: layers are profiled for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.frozen import frozen
from dovetail.hardware import Cluster
from dovetail.plans.plan import Plan
from dovetail.plans.stage_tiles import damage
from dovetail.plans.wafer_tiles import is_wafer

if TYPE_CHECKING:
    from dovetail.cost.mesh.damage import DamagedGroups


@frozen
class StageDamage:
    """Kinds of damage, and of every stage which one its tile has: 0 for none; empty where nothing is dead."""

    kinds: tuple[DamagedGroups, ...] = ()
    by_stage: tuple[int, ...] = ()


def stage_damage(plan: Plan, cluster: Cluster) -> StageDamage:
    """What the stages of a plan go around."""
    if plan.wafer is None or not plan.wafer.defects or not is_wafer(cluster):
        return StageDamage()
    found = [damage(plan, cluster, stage) for stage in range(plan.pipeline_parallel)]
    kinds = tuple(dict.fromkeys(each for each in found if each is not None))
    numbers = {kind: number for number, kind in enumerate(kinds, 1)}
    return StageDamage(kinds, tuple(0 if each is None else numbers[each] for each in found))
