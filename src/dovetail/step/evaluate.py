"""THE FLOW: a plan, a job and a cluster in; time, memory and energy out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dovetail import __version__
from dovetail.arrays import Floats, summed
from dovetail.cost.calibration import Efficiencies, calibration
from dovetail.cost.operators import ChipUnits
from dovetail.cost.units import OPERANDS, chip_units
from dovetail.frameworks import Framework
from dovetail.graph import LayerGraph, Role
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.pipeline.in_flight import peak_saved_by_stage
from dovetail.pipeline.step_time import step_time
from dovetail.plans.arrange import arrange
from dovetail.plans.pipeline_schedule import Pipeline, PipelineSchedule
from dovetail.plans.plan import Plan
from dovetail.plans.zero_stage import effective_zero_stage
from dovetail.profile import LayerProfile, Recompute, recompute
from dovetail.step.facts import FrameworkFacts, plan_facts
from dovetail.step.formulas import allocator_bytes
from dovetail.step.memory import MemoryTables
from dovetail.step.profiles import Arrangements, JobProfiles, pricing_of, profile_job, rates_of
from dovetail.step.stages import (
    ChunkContent,
    Stage,
    chunk_contents,
    layer_variants,
    runs_per_chunk,
    stage_contents,
)
from dovetail.step.times import (
    busy_parts,
    chunk_times,
    end_of_step,
    layer_times,
    tied_seconds,
    transfer_seconds,
)

#: What the usable memory of a chip rests on.
_USABLE = {"read": "usable memory as programs report it", "assumed": "usable memory assumed"}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a plan takes."""

    plan: Plan
    fits: bool
    step_time_s: float
    #: 3 × forward matrix FLOPs, attention in full, over the dense peak of the job's precision
    mfu: float
    tokens_per_s_per_chip: float
    breakdown: Mapping[str, float]
    memory_by_stage: tuple[Mapping[str, float], ...]
    #: what programs get of a chip's memory
    usable_bytes: float
    #: None where neither energies of its technology nor a power are known
    energy_j: float | None
    provenance: Mapping[str, str]

    @property
    def peak_bytes(self) -> float:
        """Memory of the fullest stage's chips."""
        return max(sum(parts.values()) for parts in self.memory_by_stage)

    @property
    def headroom_bytes(self) -> float:
        """Usable memory that the fullest stage's chips leave free; less than 0 where the plan does not fit."""
        return self.usable_bytes - self.peak_bytes

    @property
    def missing_bytes(self) -> float:
        """Beyond what the fullest stage's chips have; 0 where the plan fits."""
        return max(-self.headroom_bytes, 0.0)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a plan: where its seconds go, and what they were added up from."""

    breakdown: Mapping[str, Floats]
    profiles: JobProfiles
    contents: tuple[ChunkContent, ...]
    stages: tuple[Stage, ...]
    recompute: Mapping[str, Recompute]
    pipeline: Pipeline
    tables: MemoryTables

    @property
    def seconds(self) -> Floats:
        """The whole step."""
        return summed(self.breakdown.values())


def evaluate(plan: Plan, job: Job, cluster: Cluster, framework: Framework, *, energy: bool = True) -> Evaluation:
    """Profiles → chunks → step time and memory → answer; energy takes a sixth of the time and can be left out."""
    facts = plan_facts(plan, framework, job)
    calibrated = calibration(cluster.chip, job.precision)
    step = step_of(plan, job, cluster, facts, calibrated.efficiencies, energy=energy)
    return evaluation_of(step, plan, job, cluster, facts, str(calibrated), energy=energy)


def least_step_s(plan: Plan, job: Job, cluster: Cluster, framework: Framework) -> float:
    """Seconds that no simulated step of the plan falls below (L1⁻)."""
    schedule, stages = plan.pipeline_schedule, plan.pipeline_parallel
    facts = plan_facts(plan, framework, job).at_least(schedule=schedule, stages=stages)
    return float(step_of(plan, job, cluster, facts, calibration(cluster.chip, job.precision).efficiencies).seconds)


def evaluation_of(
    step: Step, plan: Plan, job: Job, cluster: Cluster, facts: FrameworkFacts, basis: str, *, energy: bool = False
) -> Evaluation:
    """The answer a step gives: of several variants, the first's."""
    memory = _memory(plan, step, facts)
    seconds = {name: float(np.ravel(part)[0]) for name, part in step.breakdown.items()}
    joules = (None, "not asked for")
    if energy:
        joules = _energy(plan, step.profiles, step.contents, step.recompute, cluster, sum(seconds.values()))
    return _answer(plan, job, cluster, seconds, memory, joules, basis)


@dataclass(frozen=True, slots=True)
class ProfiledJob:
    """A job's layers on a cluster under the degrees of a plan: independent of its partition and recompute policy."""

    profiles: JobProfiles
    chip: ChipUnits
    #: width of gradients as they are reduced
    gradient_bytes: float
    cluster: Cluster
    facts: FrameworkFacts
    efficiencies: Efficiencies


def step_of(
    plan: Plan, job: Job, cluster: Cluster, facts: FrameworkFacts, efficiencies: Efficiencies, *, energy: bool = False
) -> Step:
    """The step at given efficiencies and overheads; arrays of them give arrays of seconds."""
    return step_from(plan, profiled_job(plan, job, cluster, facts, efficiencies, energy=energy))


def profiled_job(
    plan: Plan, job: Job, cluster: Cluster, facts: FrameworkFacts, efficiencies: Efficiencies, *, energy: bool = False
) -> ProfiledJob:
    """What the layers cost; of the plan only its degrees, micro-batch and state sharding matter."""
    gradient_bytes = facts.sharded_reduction_bytes if plan.zero_stage == 3 else facts.reduction_bytes
    chip = units_of(job, cluster, facts, efficiencies)
    arranged = Arrangements.of([arrange(plan, job.graph(), cluster)], [plan.micro_batch * plan.data_parallel])
    pricing = pricing_of(job, cluster, efficiencies, gradient_bytes, facts.gathered_weight_bytes)
    rates = rates_of(cluster) if energy else None
    profiles = profile_job(arranged, job, chip, pricing, rates, one_copy_per_node=facts.one_copy_per_node)
    return ProfiledJob(profiles, chip, gradient_bytes, cluster, facts, efficiencies)


def units_of(job: Job, cluster: Cluster, facts: FrameworkFacts, efficiencies: Efficiencies) -> ChipUnits:
    """The chip as operator models see it under a framework."""
    added = facts.overheads
    chip = chip_units(
        cluster.chip, job.precision, efficiencies, added.traffic, added.attention, synchronous=facts.synchronous
    )
    return replace(chip, loss_bytes=facts.loss_traffic)


def step_from(plan: Plan, job: ProfiledJob) -> Step:
    """The step of layers whose costs are known."""
    facts, cluster, efficiencies, added = job.facts, job.cluster, job.efficiencies, job.facts.overheads
    contents = chunk_contents(job.profiles.graph, plan)
    pipeline = pipeline_of(plan)
    stages = stage_contents(contents, pipeline)
    variants = layer_variants(job.profiles.graph, plan, contents)
    recomputed = {
        name: recompute_of(job.profiles, layer, choice, plan.recompute_share, facts)
        for name, (layer, choice) in variants.items()
    }
    profiles = replace(job.profiles, layers={name: job.profiles.layers[layer] for name, (layer, _) in variants.items()})
    layers = {n: layer_times(profiles.layers[n], recomputed[n], facts.overlaps, added.host_s) for n in profiles.layers}
    transfer = transfer_seconds(plan, profiles, cluster, efficiencies)
    sending = not facts.overlaps.transfers
    chunks = chunk_times(layers, contents, transfer, pipeline.num_links, sending=sending)
    pipelined = step_time(pipeline, chunks)
    parts = busy_parts(layers, stages, runs_per_chunk(pipeline))
    update_s = facts.update_bytes / job.chip.vector.memory_bytes_per_s
    tables = MemoryTables.of(profiles.layers, recomputed, loss_bytes(profiles.layers, facts))
    home = tables.parameters(*stages)[:, 1]
    reduction, gathering, update = end_of_step(profiles, stages, layers, facts.overlaps, pipeline, home, update_s)
    breakdown: dict[str, Floats] = {
        **parts,
        "pipeline bubble": np.maximum(pipelined - summed(parts.values()), 0.0),
        "gradient reduction": reduction,
        "updated weights": gathering,
        "tied embeddings": tied_seconds(plan, profiles, stages, cluster, efficiencies, job.gradient_bytes),
        "optimizer": update,
        "between steps": added.step_s,
    }
    return Step(breakdown, profiles, contents, stages, recomputed, pipeline, tables)


def _energy(
    plan: Plan,
    profiles: JobProfiles,
    contents: Sequence[ChunkContent],
    recomputed: Mapping[str, Recompute],
    cluster: Cluster,
    step_s: float,
) -> tuple[float | None, str]:
    """Joules of a step on all chips, and what the figure rests on."""
    if profiles.rates is None:
        power = cluster.chip.tdp_w
        return (None, "unknown: no TDP published") if power is None else (step_s * plan.chips * power, "TDP × time")
    total = 0.0
    for content in contents:
        for name, count in content.items():
            profile = profiles.layers[name]
            share = float(recomputed[name].added_s / profile.forward_s) if float(profile.forward_s) else 0.0
            microbatch = float(profile.forward_j) * (1 + min(share, 1.0)) + float(profile.backward_j)
            total += count * (plan.num_microbatches * microbatch + float(profile.step_j))
    idle = step_s * plan.chips * profiles.rates.leakage_w
    basis = f"operations, bytes and leakage at {profiles.rates.source}"
    return total * plan.chips / plan.pipeline_parallel + idle, basis


def recompute_of(
    profiles: JobProfiles, layer: str, choice: str | tuple[str, ...], share: float, facts: FrameworkFacts
) -> Recompute:
    """What a layer saves where a share of its class makes this choice and the rest saves everything."""
    graph, profile = profiles.graph.layers[layer], profiles.layers[layer]
    if not is_block(graph):
        # embedding and head are never recomputed (Narayanan et al. 2021, eq. 3 and its note), multiply in the wide
        # format, and hold the loss apart from what a micro-batch saves
        return recompute(graph, profile, "none")
    choice = facts.recomputed(choice)
    recomputed = recompute(graph, profile, choice, facts.operand_share, stops_early=facts.stops_early)
    return recomputed.mixed(recompute(graph, profile, "none", facts.operand_share), share)


def is_block(graph: LayerGraph) -> bool:
    """Whether a layer takes the stream and hands it on: neither embedding nor head."""
    takes_stream = any(tensor.name == "x" for tensor in graph.stream(graph.inputs))
    return takes_stream and not any(graph.tensors[name].role is Role.LOSS for name in graph.outputs)


def pipeline_of(plan: Plan) -> Pipeline:
    """The pipeline of a plan."""
    schedule = PipelineSchedule(plan.pipeline_schedule)
    return Pipeline(schedule, plan.pipeline_parallel, plan.num_microbatches, plan.virtual_stages)


def loss_bytes(layers: Mapping[str, LayerProfile], facts: FrameworkFacts) -> dict[str, Floats]:
    """Bytes of the losses at their peak, by the layers that have one."""
    return {
        name: profile.logits * facts.logits_bytes / facts.loss_chunks
        for name, profile in layers.items()
        if float(np.max(profile.logits))
    }


def _memory(plan: Plan, step: Step, facts: FrameworkFacts) -> tuple[dict[str, float], ...]:
    tables = step.tables
    zero_stage = effective_zero_stage(plan.zero_stage, plan.pipeline_parallel)
    activations = peak_saved_by_stage(step.pipeline, tables.saved_bytes(step.contents))
    by_stage = tables.parts(step.stages, facts.parameter_bytes, zero_stage, activations)
    for parts in by_stage:
        if zero_stage < 3:
            del parts["gathered weights"]
        parts["allocator"] = float(allocator_bytes(sum(parts.values()), facts.allocator_overhead))
        parts["context"] = facts.context_bytes
    return tuple(by_stage)


def _answer(
    plan: Plan,
    job: Job,
    cluster: Cluster,
    breakdown: Mapping[str, float],
    memory: tuple[Mapping[str, float], ...],
    energy: tuple[float | None, str],
    basis: str,
) -> Evaluation:
    step = sum(breakdown.values())
    chip = cluster.chip
    rates = chip.dense_flops.published()
    peak = rates.get(OPERANDS[job.precision], rates.get("bf16", rates.get("fp16", 0.0)))
    flops = float(job.graph().training_flops(job.global_batch, job.seq_len))
    fullest = max(sum(parts.values()) for parts in memory)
    return Evaluation(
        plan=plan,
        fits=fullest <= chip.usable_bytes,
        step_time_s=step,
        mfu=flops / (step * plan.chips * peak),
        tokens_per_s_per_chip=job.tokens_per_step / step / plan.chips,
        breakdown=breakdown,
        memory_by_stage=memory,
        usable_bytes=chip.usable_bytes,
        energy_j=energy[0],
        provenance={
            "version": __version__,
            "calibration": basis,
            "memory": _USABLE[chip.usable_basis],
            "energy": energy[1],
        },
    )
