"""Small steps that are simulated in a fraction of a second, for pictures and traces of every kind."""

from __future__ import annotations

from functools import cache

from dovetail.plans.plan_file import Task, load_task
from dovetail.simulation.simulate import Simulation, simulate

JOB = "model: llama-2-7b, seq_len: 2048, global_batch: 16"
CLUSTER = "chip: h100-sxm, chips: 16"

PLANS = {
    "1f1b": f"job: {{{JOB}}}\ncluster: {{{CLUSTER}}}\nplan: {{tensor_parallel: 2, pipeline_parallel: 4}}\n",
    "interleaved": f"job: {{{JOB}}}\ncluster: {{{CLUSTER}}}\n"
    "plan: {tensor_parallel: 2, pipeline_parallel: 4, virtual_stages: 2, zero_stage: 1}\n",
    "dualpipe": f"job: {{{JOB}}}\ncluster: {{{CLUSTER}, framework: ideal}}\n"
    "plan: {tensor_parallel: 4, pipeline_parallel: 4, pipeline_schedule: dualpipe}\n",
    "zb_h1": f"job: {{{JOB}}}\ncluster: {{{CLUSTER}, framework: ideal}}\n"
    "plan: {tensor_parallel: 2, pipeline_parallel: 4, pipeline_schedule: zb_h1}\n",
    "fsdp": f"job: {{{JOB}}}\ncluster: {{{CLUSTER}, framework: fsdp}}\nplan: {{zero_stage: 3}}\n",
}


def task_of(name: str, folder) -> Task:
    """The job, cluster and plan of that name."""
    path = folder / f"{name}.yaml"
    path.write_text(PLANS[name])
    return load_task(path)


@cache
def simulated(name: str, folder, *, exact: bool = False, rates: bool = True) -> Simulation:
    """The step of that name."""
    task = task_of(name, folder)
    return simulate(task.plan, task.job, task.cluster, task.framework, exact=exact, rates=rates)
