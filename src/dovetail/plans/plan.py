"""A plan: the complete mapping of a job onto a cluster, nothing left to guess."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field, create_model

from dovetail.documents import Spec
from dovetail.frozen import frozen
from dovetail.layout.axes import Degrees
from dovetail.plans.declaration import declared
from dovetail.plans.derive import Given
from dovetail.plans.fields import PlanFields

if TYPE_CHECKING:

    class PlanSpec(Spec):
        """The `plan` part of a plan file; what is left out is derived where it can be."""

        def __init__(self, **fields: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...

else:
    PlanSpec = create_model(
        "PlanSpec",
        __base__=Spec,
        __doc__="The `plan` part of a plan file; what is left out is derived where it can be.",
        **{
            each.name: (
                each.file_type,
                Field(default=None if each.derived else each.default, description=each.about.doc or None),
            )
            for each in declared(PlanFields).values()
            if each.about.written
        },
    )


@frozen(kw_only=True)
class Plan(PlanFields):
    """A plan with all fields resolved."""

    @property
    def stages_inside(self) -> bool:
        """Whether a pipeline's stages are neighbours: rank order TP-CP-PP-DP."""
        return self.axis_order == "tp-cp-pp-dp"

    @property
    def recompute_choices(self) -> tuple[str | tuple[str, ...], ...]:
        """Every choice that some block makes, once."""
        if self.recompute_by_block is None:
            return (self.recompute,)
        return tuple(dict.fromkeys(choice for _, choice in self.recompute_by_block))

    @property
    def chips(self) -> int:
        """Chips the plan uses."""
        return self.data_parallel * self.tensor_parallel * self.pipeline_parallel * self.context_parallel

    @property
    def stream_replicas(self) -> int:
        """Chips of a replica's stage with the same part of what it hands on: each sends a share of that."""
        if self.layouts is not None:
            return self.layouts.stream_replicas
        return 1 if self.sequence_parallel else self.tensor_parallel

    def degrees(self, kv_heads: int) -> Degrees:
        """The degrees inside one stage."""
        return Degrees(
            tensor=self.tensor_parallel,
            context=self.context_parallel,
            data=self.data_parallel,
            expert=self.expert_parallel,
            expert_tensor=self.expert_tensor_parallel,
            zero_group=self.zero_group,
            kv_heads=kv_heads,
        )


def resolve_plan(spec: PlanSpec, *, chips: int, global_batch: int, num_layers: int) -> Plan:
    """The plan a spec means for so many chips, sequences a step and layers; contradictions are refused."""
    table = declared(PlanFields)
    said = {name: getattr(spec, name) if each.about.written else None for name, each in table.items()}
    resolve = {name: each.about.resolve for name, each in table.items() if each.about.resolve is not None}
    given = Given(said, resolve, chips=chips, global_batch=global_batch, num_layers=num_layers)
    return Plan(**{name: given.resolved(name) for name in table})
