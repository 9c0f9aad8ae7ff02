"""THE FLOW: a plan, a job and a cluster in; time, memory and energy out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from dovetail import __version__
from dovetail.arrays import Floats, summed
from dovetail.cost.calibration import Efficiencies, calibration
from dovetail.cost.operators import ChipUnits
from dovetail.cost.slowest import of_slowest
from dovetail.cost.units import OPERANDS, chip_units
from dovetail.frameworks import Framework
from dovetail.frozen import frozen
from dovetail.graph import LayerGraph, Role
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.models.traced import approximations, left_out
from dovetail.pipeline.in_flight import peak_saved_by_stage
from dovetail.pipeline.step_time import step_time
from dovetail.plans.arrange import arrange
from dovetail.plans.pipeline_schedule import Pipeline, PipelineSchedule
from dovetail.plans.plan import Plan
from dovetail.plans.stage_tiles import on_tiles
from dovetail.plans.zero_stage import effective_zero_stage
from dovetail.profile import LayerProfile, Recompute, recompute
from dovetail.step.approximated import approximated_share
from dovetail.step.arrangements import Arrangements
from dovetail.step.damage import StageDamage, stage_damage
from dovetail.step.end_of_step import EndOfStep, end_of_step
from dovetail.step.energy import step_energy
from dovetail.step.evaluation import Evaluation
from dovetail.step.facts import FrameworkFacts, plan_facts
from dovetail.step.formulas import allocator_bytes, between_seconds
from dovetail.step.loans import lent_bytes, lent_of_microbatch, loan_seconds
from dovetail.step.memory import MemoryTables, loss_bytes, one_run
from dovetail.step.offload import host_bytes, update_rates, with_host
from dovetail.step.power import Ranged
from dovetail.step.profiles import JobProfiles, pricing_of, profile_job, rates_of
from dovetail.step.stages import (
    ChunkContent,
    LayerVariant,
    Stage,
    chunk_contents,
    layer_variants,
    runs_per_chunk,
    stage_contents,
)
from dovetail.step.store import StoreUse, on_die_activations, store_use
from dovetail.step.times import (
    OFFLOAD,
    busy_parts,
    chunk_times,
    layer_times,
    tied_seconds,
    transfer_seconds,
)

#: Parts of memory that stay from the first step on, and what the optimizer makes of them.
STATE = ("weights", "gradients", "optimizer", "optimizer step", "gathered weights")
#: What the usable memory of a chip rests on.
_USABLE = {"read": "usable memory as programs report it", "assumed": "usable memory assumed"}


@frozen
class WaferUse:
    """What a plan on a wafer lends and stores: by stage, seconds each way and bytes added; nothing where empty."""

    #: stage, lender, and what each die of the stage lends of a micro-batch
    loans: tuple[tuple[int, int, float], ...] = ()
    lent_s: Floats = field(default_factory=lambda: np.zeros(0))
    lent_bytes: Floats = field(default_factory=lambda: np.zeros(0))
    store: StoreUse = field(default_factory=StoreUse)


@frozen
class Step:
    """One step of a plan: where its seconds go, and what they were added up from."""

    breakdown: Mapping[str, Floats]
    profiles: JobProfiles
    contents: tuple[ChunkContent, ...]
    stages: tuple[Stage, ...]
    recompute: Mapping[str, Recompute]
    pipeline: Pipeline
    tables: MemoryTables
    wafer: WaferUse
    ends: EndOfStep
    #: what a host holds for each of its chips
    host_bytes: float

    @property
    def seconds(self) -> Floats:
        """The whole step."""
        return summed(self.breakdown.values())


@frozen
class EvaluatedStep:
    """The answer of a plan, the step it is of, and what the framework does."""

    evaluation: Evaluation
    step: Step
    facts: FrameworkFacts


def evaluate(plan: Plan, job: Job, cluster: Cluster, framework: Framework, *, energy: bool = True) -> Evaluation:
    """Profiles → chunks → step time and memory → answer; energy takes a sixth of the time and can be left out."""
    return evaluated_step(plan, job, cluster, framework, energy=energy).evaluation


def evaluated_step(
    plan: Plan, job: Job, cluster: Cluster, framework: Framework, *, energy: bool = True
) -> EvaluatedStep:
    """The same with the step that the answer is of."""
    facts = plan_facts(plan, framework, job)
    calibrated = calibration(cluster.chip, job.precision)
    step = step_of(plan, job, cluster, facts, calibrated.efficiencies, energy=energy)
    evaluation = evaluation_of(step, plan, job, cluster, facts, str(calibrated), energy=energy)
    return EvaluatedStep(evaluation, step, facts)


def step_seconds(plan: Plan, job: Job, cluster: Cluster, framework: Framework) -> float:
    """Seconds of a step, for whoever does not ask for bytes."""
    facts, calibrated = plan_facts(plan, framework, job), calibration(cluster.chip, job.precision)
    step = step_of(plan, job, cluster, facts, calibrated.efficiencies)
    return sum(float(part) for part in step.breakdown.values())


def least_step_s(plan: Plan, job: Job, cluster: Cluster, framework: Framework) -> float:
    """Seconds that no simulated step of the plan falls below (L1⁻).

    Loans may be hidden, and stages that are done early exchange what a store needs once a step meanwhile.
    """
    schedule, stages = plan.pipeline_schedule, plan.pipeline_parallel
    if plan.wafer is not None and plan.wafer.loans:
        plan = replace(plan, wafer=replace(plan.wafer, loans=()))
    facts = plan_facts(plan, framework, job).at_least(schedule=schedule, stages=stages)
    step = step_of(plan, job, cluster, facts, calibration(cluster.chip, job.precision).efficiencies)
    return float(step.seconds) - step.wafer.store.end_s


def evaluation_of(
    step: Step, plan: Plan, job: Job, cluster: Cluster, facts: FrameworkFacts, basis: str, *, energy: bool = False
) -> Evaluation:
    """The answer a step gives: of several variants, the first's."""
    memory = _memory(plan, step, facts)
    seconds = {name: float(np.ravel(part)[0]) for name, part in step.breakdown.items()}
    joules: tuple[Ranged | None, str] = (None, "not asked for")
    if energy:
        joules = step_energy(plan, step.profiles, step.contents, step.recompute, cluster, sum(seconds.values()))
    held = step.wafer.store.stored_bytes, step.host_bytes
    answer = _answer(plan, job, cluster, seconds, memory, joules, basis, held)
    approximated = approximations(job.model)
    share = approximated_share(approximated, step.profiles.graph, step.profiles.layers, step.contents)
    answer = replace(answer, memory_error=facts.memory_error, left_out=left_out(job.model))
    return replace(answer, approximated=approximated, approximated_share=share)


@frozen
class ProfiledJob:
    """A job's layers on a cluster under the degrees of a plan: independent of its partition and recompute policy."""

    profiles: JobProfiles
    chip: ChipUnits
    #: width of gradients as they are reduced
    gradient_bytes: float
    cluster: Cluster
    facts: FrameworkFacts
    efficiencies: Efficiencies
    damage: StageDamage = field(default_factory=StageDamage)
    #: layers on tiles with each kind of damage
    on_damaged: tuple[JobProfiles, ...] = ()

    def profile(self, variant: LayerVariant) -> LayerProfile:
        """The profile of a layer as a chunk has it."""
        profiles = self.on_damaged[variant.damage - 1] if variant.damage else self.profiles
        return profiles.layers[variant.layer]


def step_of(
    plan: Plan, job: Job, cluster: Cluster, facts: FrameworkFacts, efficiencies: Efficiencies, *, energy: bool = False
) -> Step:
    """The step at given efficiencies and overheads; arrays of them give arrays of seconds."""
    return step_from(plan, profiled_job(plan, job, cluster, facts, efficiencies, energy=energy))


def profiled_job(
    plan: Plan, job: Job, cluster: Cluster, facts: FrameworkFacts, efficiencies: Efficiencies, *, energy: bool = False
) -> ProfiledJob:
    """What the layers cost; of the plan only its degrees, micro-batch and state sharding matter."""
    facts = with_host(facts, cluster)
    gradient_bytes = facts.sharded_reduction_bytes if plan.zero_stage == 3 else facts.reduction_bytes
    chip = units_of(job, cluster, facts, efficiencies)
    arrangement = arrange(plan, job.graph(), cluster, facts.tensor_rule)
    arranged = Arrangements.of([arrangement], [plan.micro_batch * plan.data_parallel])
    rates, damage = rates_of(cluster) if energy else None, stage_damage(plan, cluster)
    profiles: list[JobProfiles] = []
    for dead in (None, *damage.kinds):
        pricing = pricing_of(
            job, cluster, efficiencies, gradient_bytes, facts.gathered_weight_bytes, facts.buckets, dead
        )
        profiles.append(profile_job(arranged, job, chip, pricing, rates, one_copy_per_node=facts.one_copy_per_node))
    whole, *on_damaged = profiles
    return ProfiledJob(whole, chip, gradient_bytes, cluster, facts, efficiencies, damage, tuple(on_damaged))


def units_of(job: Job, cluster: Cluster, facts: FrameworkFacts, efficiencies: Efficiencies) -> ChipUnits:
    """The chip as operator models see it under a framework."""
    added = facts.overheads
    slowest = of_slowest(efficiencies, cluster)
    chip = chip_units(
        cluster.chip, job.precision, slowest, added.traffic, added.attention, synchronous=facts.synchronous
    )
    return replace(chip, loss_bytes=facts.loss_traffic)


def step_from(plan: Plan, job: ProfiledJob) -> Step:
    """The step of layers whose costs are known."""
    facts, cluster, efficiencies, graph = job.facts, job.cluster, job.efficiencies, job.profiles.graph
    contents, pipeline = chunk_contents(graph, plan, job.damage.by_stage), pipeline_of(plan)
    stages = stage_contents(contents, pipeline)
    variants = layer_variants(graph, plan, contents, job.damage.by_stage)
    layer_profiles = {name: job.profile(variant) for name, variant in variants.items()}
    sharded = effective_zero_stage(plan.zero_stage, plan.pipeline_parallel) >= 2
    recomputed = {
        name: recompute_of(
            graph.layers[v.layer], layer_profiles[name], v.recompute, plan.recompute_share, facts, sharded=sharded
        )
        for name, v in variants.items()
    }
    profiles, host_s = replace(job.profiles, layers=layer_profiles), facts.overheads.host_s
    layers = {n: layer_times(profiles.layers[n], recomputed[n], facts.overlaps, host_s) for n in profiles.layers}
    tables = MemoryTables.of(profiles.layers, recomputed, loss_bytes(profiles.layers, facts))
    wafer = _wafer_use(plan, job, stages, contents, variants, tables, pipeline)
    by_link = on_tiles(plan, cluster) and plan.pipeline_parallel > 1
    chunks = chunk_times(
        layers,
        contents,
        transfer_seconds(plan, profiles, cluster, efficiencies),
        pipeline.num_links,
        sending=not facts.overlaps.transfers,
        by_link=by_link,
        lent_s=wafer.lent_s,
    )
    pipelined = step_time(pipeline, chunks)
    parts = busy_parts(layers, stages, runs_per_chunk(pipeline))
    rates, parameters = update_rates(facts, job.chip, cluster), tables.parameters(*stages)
    ends = end_of_step(profiles, stages, layers, facts.overlaps, pipeline, parameters, rates)
    reduction, gathering, update, offload = ends.slowest()
    beside = np.maximum(pipelined - summed(parts.values()), 0.0)
    lent = np.minimum(beside, plan.num_microbatches * float(wafer.lent_s.max(initial=0.0)))
    breakdown: dict[str, Floats] = {
        **parts,
        "lent memory": lent,
        "pipeline bubble": beside - lent,
        "gradient reduction": reduction,
        "updated weights": gathering,
        "tied embeddings": tied_seconds(plan, profiles, stages, cluster, efficiencies, job.gradient_bytes),
        "optimizer": update,
        OFFLOAD: parts.get(OFFLOAD, np.zeros(())) + offload,
        "store": np.maximum(wafer.store.overlapped_s - pipelined, 0.0) + wafer.store.end_s,
        "between micro-batches": between_seconds(facts.overheads.microbatch_s, 0.0, plan.num_microbatches),
        "between steps": facts.overheads.step_s,
    }
    if not plan.wafer:
        del breakdown["lent memory"], breakdown["store"]
    if not plan.offload:
        del breakdown[OFFLOAD]
    on_host = host_bytes(facts, parameters[:, 3], pipeline, contents, recomputed)
    return Step(breakdown, profiles, contents, stages, recomputed, pipeline, tables, wafer, ends, on_host)


def _wafer_use(
    plan: Plan,
    job: ProfiledJob,
    stages: Sequence[Stage],
    contents: Sequence[ChunkContent],
    variants: Mapping[str, LayerVariant],
    tables: MemoryTables,
    pipeline: Pipeline,
) -> WaferUse:
    """What a plan on a wafer lends and stores."""
    if plan.wafer is None or not (plan.wafer.loans or plan.wafer.store):
        return WaferUse()
    by_place = tables.saved_bytes(contents)
    saved = np.array([sum(by_place[place] for place in places) for places in pipeline.places().tolist()])
    held = peak_saved_by_stage(pipeline, by_place)
    lent = lent_of_microbatch(plan, saved, held)
    lent_s = loan_seconds(plan, job.cluster, job.efficiencies, lent)
    store = store_use(plan, job.profiles.graph, job.cluster, job.facts.streamed, stages, variants, saved, held)
    return WaferUse(lent, lent_s, lent_bytes(plan, held), store)


def recompute_of(
    graph: LayerGraph,
    profile: LayerProfile,
    choice: str | tuple[str, ...],
    share: float,
    facts: FrameworkFacts,
    *,
    sharded: bool,
) -> Recompute:
    """What a layer saves where a share of its class makes this choice and the rest saves everything."""
    if not is_block(graph):
        # embedding and head are never recomputed (Narayanan et al. 2021, eq. 3 and its note), multiply in the wide
        # format, and hold the loss apart from what a micro-batch saves
        return recompute(graph, profile, "none", facts.saves(sharded=sharded, narrow=False))
    saving = facts.saves(sharded=sharded)
    recomputed = recompute(graph, profile, facts.recomputed(choice), saving)
    return recomputed.mixed(recompute(graph, profile, "none", saving), share)


def is_block(graph: LayerGraph) -> bool:
    """Whether a layer takes the stream and hands it on: neither embedding nor head."""
    takes_stream = any(tensor.name == "x" for tensor in graph.stream(graph.inputs))
    return takes_stream and not any(graph.tensors[name].role is Role.LOSS for name in graph.outputs)


def pipeline_of(plan: Plan) -> Pipeline:
    """The pipeline of a plan."""
    schedule = PipelineSchedule(plan.pipeline_schedule)
    return Pipeline(schedule, plan.pipeline_parallel, plan.num_microbatches, plan.virtual_stages)


def _memory(plan: Plan, step: Step, facts: FrameworkFacts) -> tuple[dict[str, dict[str, float]], ...]:
    """Bytes of every stage's chips by phase and part."""
    tables = step.tables
    zero_stage = effective_zero_stage(plan.zero_stage, plan.pipeline_parallel)
    activations = peak_saved_by_stage(step.pipeline, tables.saved_bytes(step.contents))
    if plan.wafer is not None and "activations" in plan.wafer.store:
        activations = on_die_activations(tables.layers.saved[0], tables.counts(*step.stages))
    elif plan.wafer is not None and plan.wafer.loans:
        activations = activations + step.wafer.lent_bytes
    # sizes as searches have them, so that both take the same moment of a phase for the fullest
    by_stage = tables.by_phase(step.stages, facts.parameter_bytes, zero_stage, activations, one_run(plan))
    for parts in (parts for phases in by_stage for parts in phases.values()):
        if zero_stage < 3:
            del parts["gathered weights"]
        of_layers = sum(size for name, size in parts.items() if name not in STATE)
        parts |= {name: size * (1 + facts.allocator_overhead) for name, size in parts.items() if name in STATE}
        parts["allocator"] = float(allocator_bytes(of_layers, facts.allocator_overhead))
        parts["workspaces"] = facts.workspace_bytes
        parts["context"] = facts.context_bytes - facts.workspace_bytes
    return tuple(by_stage)


def _answer(
    plan: Plan,
    job: Job,
    cluster: Cluster,
    breakdown: Mapping[str, float],
    phases: tuple[Mapping[str, Mapping[str, float]], ...],
    energy: tuple[Ranged | None, str],
    basis: str,
    elsewhere_bytes: tuple[float, float],
) -> Evaluation:
    """What a step means, with what a store off the wafer and a host hold of it."""
    stored_bytes, host_bytes = elsewhere_bytes
    host_limit = cluster.chip.host.chip_bytes(cluster.chips) if plan.offload else 0.0
    step = sum(breakdown.values())
    chip = cluster.chip
    rates = chip.dense_flops.published()
    peak = rates.get(OPERANDS[job.precision], rates.get("bf16", rates.get("fp16", 0.0)))
    flops = float(job.graph().training_flops(job.global_batch, job.seq_len))
    memory = tuple(max(of_stage.values(), key=lambda parts: sum(parts.values())) for of_stage in phases)
    fullest = max(sum(parts.values()) for parts in memory)
    stores = stored_bytes <= (cluster.store.bytes if cluster.store is not None else 0.0) and host_bytes <= host_limit
    return Evaluation(
        plan=plan,
        fits=fullest <= chip.usable_bytes and stores,
        step_time_s=step,
        mfu=flops / (step * plan.chips * peak),
        tokens_per_s_per_chip=job.tokens_per_step / step / plan.chips,
        breakdown=breakdown,
        memory_by_stage=memory,
        memory_by_phase=phases,
        usable_bytes=chip.usable_bytes,
        energy=energy[0],
        provenance={
            "version": __version__,
            "calibration": basis,
            "memory": _USABLE[chip.usable_basis],
            "energy": energy[1],
        },
        stored_bytes=stored_bytes,
        stores=stores,
        host_bytes=host_bytes,
        host_limit_bytes=host_limit,
    )
