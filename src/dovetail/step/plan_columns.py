"""Plans and what they are made of as columns of numbers: what the compiled kernels take."""

from __future__ import annotations

from typing import NamedTuple

from dovetail.arrays import Floats, Ints
from dovetail.frameworks import ParameterBytes
from dovetail.step.formulas import UpdateRates


class LayerColumns(NamedTuple):
    """Layer rows × classes: seconds of a micro-batch; bytes it saves, takes beyond them and leaves on the host."""

    forward_s: Floats
    input_gradient_s: Floats
    weight_gradient_s: Floats
    saved: Floats
    working: Floats
    offloaded: Floats


class ProfileColumns(NamedTuple):
    """Layer profiles × classes: parameters of one chip (tied ones by weight) and bytes of losses."""

    untied: Floats
    tied: Floats
    whole: Floats
    #: untied and tied ones with a gradient; no columns where all have one
    trained: Floats
    tied_trained: Floats
    dense: Floats
    #: the largest weight, and the next
    largest: Floats
    second: Floats
    largest_trained: Floats
    loss: Floats
    #: by profile: bytes a stage hands on
    stream: Floats


class StateColumns(NamedTuple):
    """State rows × classes: parameters whose state a chip has, seconds of reduction and gathering a step."""

    untied: Floats
    tied: Floats
    #: untied ones with a gradient; no columns where all have one
    trained: Floats
    reduction_s: Floats
    gathering_s: Floats
    #: of the untied ones, those with more state than matrices; and FLOPs of the iterations on matrices (Muon)
    vectors: Floats
    flops: Floats

    @property
    def updated(self) -> Floats:
        """Parameters that the optimizer updates, without tied ones."""
        return self.trained if self.trained.shape[1] else self.untied


class PartitionColumns(NamedTuple):
    """Layers on stages: every partition has stage contents (classes × count) without repetition, and chunk contents."""

    #: rows × classes; those of partition i begin at row `first_content[i]`
    contents: Ints
    first_content: Ints
    #: by stage: which of the partition's contents; those of partition i begin at `first_stage[i]`
    stage_content: Ints
    first_stage: Ints
    #: by place along the model: which of the partition's chunk contents; and those contents
    chunks: Ints
    first_chunk: Ints
    place_chunk: Ints
    first_place: Ints


class FrameworkColumns(NamedTuple):
    """A framework's bytes per parameter and overlaps, with one stage (0) and with several (1)."""

    alone: ParameterBytes
    staged: ParameterBytes
    hidden_reduction: Floats
    hidden_gathering: Floats
    min_overlap_s: float
    update: UpdateRates
    #: bytes per parameter that hosts hold, whether they hold activations, and what they hold of each chip at most
    hosted: float
    hosts_activations: bool
    host_bytes: float
    context_bytes: float
    allocator: float


class PlanColumns(NamedTuple):
    """Plans as numbers of rows, and their pipelines."""

    layer: Ints
    profile: Ints
    state: Ints
    partition: Ints
    schedule: Ints
    stages: Ints
    microbatches: Ints
    chunks: Ints
    #: interleaved: micro-batches that pass a chunk before the next one's turn
    group: Ints
    #: the stage in effect
    zero_stage: Ints
    #: seconds a stage spends on sending, and seconds its receiver waits
    sending_s: Floats
    delay_s: Floats

    def take(self, rows: Ints) -> PlanColumns:
        """Some of them."""
        return PlanColumns._make(part[rows] for part in self)
