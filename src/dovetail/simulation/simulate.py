"""THE FLOW: a plan, a job and a cluster in; the step replayed, task by task and message by message, out."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail import frameworks
from dovetail.arrays import largest
from dovetail.cost.calibration import calibration
from dovetail.errors import InputError
from dovetail.frameworks import Framework
from dovetail.frozen import frozen
from dovetail.hardware import Cluster
from dovetail.hardware.network import ways
from dovetail.models import Job
from dovetail.pipeline.work_order import work_order
from dovetail.plans.arrange import arrange
from dovetail.plans.pipeline_schedule import Pipeline
from dovetail.plans.plan import Plan
from dovetail.simulation.chips import Chips
from dovetail.simulation.layer_steps import Message, steps_of_layers
from dovetail.simulation.long_steps import Writer, first_shortened, played
from dovetail.simulation.memory_over_time import MemoryOverTime, memory_over_time
from dovetail.simulation.step_tasks import StepParts, StepTasks, step_tasks
from dovetail.simulation.task_graph import Timeline
from dovetail.simulation.task_writer import MOST_TASKS
from dovetail.step.evaluate import ProfiledJob, Step, profiled_job, step_from
from dovetail.step.facts import plan_facts
from dovetail.step.formulas import between_seconds
from dovetail.step.stages import layer_variants
from dovetail.step.times import tied_times, tier_at


@frozen
class Simulation:
    """A replayed step."""

    plan: Plan
    step_time_s: float
    #: what the model says of the same plan
    model_step_time_s: float
    #: of the whole step: ends of waits and messages, and changes of rates
    events: int
    #: those that were played, without the ones of skipped periods
    played_events: int
    #: by stage
    memory: tuple[MemoryOverTime, ...]
    tasks: StepTasks
    timeline: Timeline

    @property
    def ratio(self) -> float:
        """Simulated over modelled."""
        return self.step_time_s / self.model_step_time_s

    @property
    def peak_memory_bytes(self) -> float:
        """Of the fullest stage's chips."""
        return max(stage.peak_bytes for stage in self.memory)


def simulate(
    plan: Plan,
    job: Job,
    cluster: Cluster,
    framework: Framework | str = "megatron",
    *,
    exact: bool = False,
    rates: bool = False,
    skip: bool = True,
) -> Simulation:
    """One step of a plan, folded to one chip for each stage of the pipeline, or `exact` with every chip for itself.

    `rates` records when the rate of each message changed. Of long steps the periods of a steady state are skipped,
    which changes nothing but the last digits; not where `skip` is False, nor with `rates`.
    """
    framework = frameworks.load(framework) if isinstance(framework, str) else framework
    facts = plan_facts(plan, framework, job)
    calibrated = calibration(cluster.chip, job.precision)
    profiled = profiled_job(plan, job, cluster, facts, calibrated.efficiencies)
    step = step_from(plan, profiled)
    write = step_writer(plan, job, profiled, step)
    if exact:
        folded = write(first_shortened(step.pipeline) or step.pipeline)
        most = len(folded.graph) * (plan.chips // plan.pipeline_parallel)
        if most > MOST_TASKS:
            fix = f"at most {MOST_TASKS:,} are possible: simulate one chip a stage, or fewer chips or micro-batches"
            raise InputError("exact", f"would be up to {most:,} tasks", fix)
        write = step_writer(plan, job, profiled, step, exact=True)
    tasks, timeline = played(write, step.pipeline, rates=rates, skip=skip)
    memory = memory_over_time(tasks, timeline, plan, step, facts)
    events = int((timeline.task_events * tasks.task_runs).sum())
    return Simulation(plan, timeline.seconds, float(step.seconds), events, timeline.events, memory, tasks, timeline)


def step_writer(plan: Plan, job: Job, profiled: ProfiledJob, step: Step, *, exact: bool = False) -> Writer:
    """Writes the tasks of a step whose costs are known, with its own pipeline or a shorter one."""
    facts, cluster, added = profiled.facts, profiled.cluster, profiled.facts.overheads
    arrangement = arrange(plan, job.graph(), cluster)
    chips = Chips.of(plan, cluster, arrangement, profiled.efficiencies, exact=exact)
    variants = layer_variants(job.graph(), plan, step.contents, profiled.damage.by_stage)
    stream = float(largest(p.stream_bytes for p in step.profiles.layers.values()))
    layers, tied = steps_of_layers(plan, job, profiled, step, variants), _tied(plan, profiled, step, chips)

    def write(pipeline: Pipeline) -> StepTasks:
        parts = StepParts(
            work_order(pipeline),
            step.contents,
            layers,
            stream / plan.stream_replicas,
            sending=not facts.overlaps.transfers,
            tied=tied,
            optimizer_s=step.ends.update_s,
            between_s=float(between_seconds(added.microbatch_s, added.step_s, plan.num_microbatches)),
            store=step.wafer.store,
            loans=step.wafer.loans,
        )
        return step_tasks(parts, chips)

    return write


def _tied(plan: Plan, profiled: ProfiledJob, step: Step, chips: Chips) -> Sequence[tuple[tuple[int, ...], Message]]:
    """Gradients of weights that several stages hold, summed between them."""
    messages: list[tuple[tuple[int, ...], Message]] = []
    cluster = profiled.cluster
    for holders, spent in tied_times(
        plan, step.profiles, step.stages, cluster, profiled.efficiencies, profiled.gradient_bytes
    ):
        tier = cluster.tiers.index(tier_at(cluster, plan.chips))
        way = next(n for n, way in enumerate(ways(cluster.tiers)) if way.tier == tier)
        busy = float(spent.busy_s[0])
        rate = float(chips.ways[way].bytes_per_s * chips.ways[way].efficiency)
        messages.append((holders, Message(float(spent.seconds) - busy, ((way, busy * rate),), ())))
    return messages
