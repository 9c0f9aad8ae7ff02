"""What each field of a plan is, from what a plan file says of it and of the others; contradictions are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dovetail.errors import InputError
from dovetail.layout.encoding import TileLayouts
from dovetail.plans.pipeline_schedule import Pipeline, PipelineSchedule
from dovetail.plans.wafer_part import WaferPart


class Given:
    """What a file says (None where it says nothing), for so many chips, sequences a step and layers.

    `resolved` has a field as the plan has it: a field may follow from others, in any order.
    """

    def __init__(
        self,
        said: Mapping[str, Any],
        resolve: Mapping[str, Callable[[Given], Any]],
        *,
        chips: int,
        global_batch: int,
        num_layers: int,
    ) -> None:
        self.said = said
        self.chips = chips
        self.global_batch = global_batch
        self.num_layers = num_layers
        self._resolve = resolve
        self._resolved: dict[str, Any] = {}

    def resolved(self, name: str) -> Any:
        """A field as the plan has it."""
        if name not in self._resolved:
            self._resolved[name] = self._resolve[name](self) if name in self._resolve else self.said[name]
        return self._resolved[name]

    def __getattr__(self, name: str) -> Any:
        """A field as the file has it."""
        return self.said[name]


def layouts(spec: Given) -> TileLayouts | None:
    """Layouts of a plan whose degrees say no more than how many chips a stage has; chips may be left over."""
    if spec.layouts is None:
        return None
    tile: TileLayouts = spec.layouts.layouts()
    if spec.tensor_parallel != tile.chips:
        fix = f"it should be {tile.chips}, all dies of the tile"
        raise InputError("plan: tensor_parallel", f"is {spec.tensor_parallel} with layouts", fix)
    for field in ("data_parallel", "context_parallel", "expert_parallel"):
        if getattr(spec, field) not in (None, 1):
            raise InputError(
                f"plan: {field}", "cannot be combined with layouts", "leave it out: layouts shard everything"
            )
    if spec.sequence_parallel:
        raise InputError("plan: sequence_parallel", "cannot be combined with layouts", "leave it out")
    if spec.zero_stage == 2:
        raise InputError("plan: zero_stage", "is 2 with layouts", "it should be 0, 1 or 3")
    if tile.chips * spec.pipeline_parallel > spec.chips:
        what = f"has {tile.chips} dies for each of {spec.pipeline_parallel} stages, of {spec.chips} in all"
        raise InputError("plan: layouts.tile", what, "use smaller tiles or fewer stages")
    return tile


def wafer(spec: Given) -> WaferPart | None:
    """What a plan says of its wafer; nothing where that is empty."""
    if spec.wafer is None:
        return None
    part: WaferPart = spec.wafer.part()
    return None if part == WaferPart() else part


def expert_tensor_parallel(spec: Given) -> int:
    """Chips that share an expert: as many as share other weights where a file does not say."""
    return spec.tensor_parallel if spec.said["expert_tensor_parallel"] is None else spec.said["expert_tensor_parallel"]


def sequence_parallel(spec: Given) -> bool:
    """Whether norms and dropouts share the sequence."""
    if spec.sequence_parallel and spec.tensor_parallel == 1:
        raise InputError("plan: sequence_parallel", "needs tensor_parallel above 1", "leave it out")
    return spec.sequence_parallel


def data_parallel(spec: Given) -> int:
    """Replicas of the model: the chips that the other degrees leave."""
    if spec.resolved("layouts") is not None:
        return 1
    chips = spec.chips
    model_chips = spec.tensor_parallel * spec.pipeline_parallel * spec.context_parallel
    if chips % model_chips:
        raise InputError(
            "plan: tensor_parallel × pipeline_parallel × context_parallel",
            f"is {model_chips}, which does not divide {chips} chips",
            "choose degrees whose product divides the number of chips",
        )
    data = chips // model_chips if spec.data_parallel is None else spec.data_parallel
    if data * model_chips != chips:
        fix = f"it should be {chips // model_chips}, or be left out"
        raise InputError(
            "plan: data_parallel", f"{data} with the other degrees makes {data * model_chips} chips of {chips}", fix
        )
    return data


def num_microbatches(spec: Given) -> int:
    """Micro-batches of a replica in a step."""
    data, global_batch = spec.resolved("data_parallel"), spec.global_batch
    per_microbatch = spec.micro_batch * data
    if global_batch % per_microbatch:
        raise InputError(
            "plan: micro_batch",
            f"{spec.micro_batch} × data_parallel {data} does not divide the global batch {global_batch}",
            "choose a micro_batch that does",
        )
    return global_batch // per_microbatch


#: What a pipeline calls the fields of a plan.
_PIPELINE_FIELDS = {
    "num_stages": "pipeline_parallel",
    "num_chunks": "virtual_stages",
    "num_microbatches": "micro_batch",
}


def pipeline_schedule(spec: Given) -> str:
    """The schedule, which stages, virtual stages and micro-batches must suit."""
    microbatches: int = spec.resolved("num_microbatches")
    p, v = spec.pipeline_parallel, spec.virtual_stages
    schedule: str = spec.pipeline_schedule or ("interleaved" if v > 1 else "1f1b")
    if v > 1 and schedule != "interleaved":
        raise InputError("plan: virtual_stages", f"is {v} with {schedule}", "set pipeline_schedule to interleaved")
    if v > 1 and p == 1:
        raise InputError("plan: virtual_stages", f"is {v} with one stage", "leave it out, or use more stages")
    try:
        Pipeline(PipelineSchedule(schedule), p, microbatches, v)
    except InputError as error:
        field = _PIPELINE_FIELDS[error.where]
        what = f"makes {microbatches} micro-batches: {error.what}" if field == "micro_batch" else error.what
        raise InputError(f"plan: {field}", what, error.fix) from None
    return schedule


def zero_group(spec: Given) -> int:
    """Chips that share one copy of the sharded state."""
    ranks: int = spec.resolved("data_parallel") * spec.context_parallel
    group: int = ranks if spec.zero_group is None else spec.zero_group
    if ranks % group:
        raise InputError(
            "plan: zero_group", f"{group} does not divide the {ranks} data-parallel chips", "it should divide them"
        )
    if group < ranks and not spec.zero_stage:
        raise InputError("plan: zero_group", f"is {group} with zero_stage 0", "shard something or leave it out")
    return group


def recompute_by_block(spec: Given) -> tuple[tuple[int, str | tuple[str, ...]], ...] | None:
    """Runs of blocks, and what each recomputes."""
    num_layers = spec.num_layers
    if spec.recompute_by_block is None:
        return None
    if spec.recompute != "none" or spec.recompute_share < 1:
        raise InputError(
            "plan: recompute_by_block", "cannot be combined with recompute or its share", "leave those out"
        )
    blocks = sum(run.blocks for run in spec.recompute_by_block)
    if blocks != num_layers:
        raise InputError("plan: recompute_by_block", f"is for {blocks} blocks", f"it should be for {num_layers}")
    return tuple((run.blocks, run.recompute) for run in spec.recompute_by_block)


def layers_per_stage(spec: Given) -> tuple[int, ...]:
    """Blocks of each stage and virtual stage."""
    parts, num_layers = spec.pipeline_parallel * spec.virtual_stages, spec.num_layers
    if spec.layers_per_stage is None:
        # the first and last part may hold nothing but embedding and head
        if parts > num_layers + 2:
            raise InputError(
                "plan: pipeline_parallel", f"makes {parts} parts of {num_layers} layers", "use fewer stages"
            )
        return even_layers(parts, num_layers)
    if len(spec.layers_per_stage) != parts or sum(spec.layers_per_stage) != num_layers:
        raise InputError(
            "plan: layers_per_stage",
            f"has {len(spec.layers_per_stage)} entries of {sum(spec.layers_per_stage)} layers in all",
            f"it should have {parts} entries that add up to {num_layers}",
        )
    if not all(spec.layers_per_stage[1:-1]):
        raise InputError(
            "plan: layers_per_stage", "has 0 between the first and the last", "only embedding or head may be alone"
        )
    return spec.layers_per_stage


def even_layers(parts: int, num_layers: int) -> tuple[int, ...]:
    """Layers dealt evenly; embedding and head make the first and last part heavier, so spare ones go to the middle."""
    base, more = divmod(num_layers, parts)
    order = sorted(range(parts), key=lambda i: (min(i, parts - 1 - i) == 0, i))
    extra = set(order[:more])
    return tuple(base + (i in extra) for i in range(parts))
