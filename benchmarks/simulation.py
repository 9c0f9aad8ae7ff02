"""What simulations cost: CPU seconds against events and sequences, steps on 16,384 and 100,000 chips, the event loop.

    python benchmarks/simulation.py [--plot FILE.svg]

Medians of repeats of one process' CPU time, compiling done before. Each number of sequences has a process of its own,
whose seconds and memory the system counts, imports included; `-sequences` in the name of the plot is theirs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

import dovetail as dt
from dovetail.plans.plan import Plan, PlanSpec, resolve_plan
from dovetail.report.svg import Panel, Series, growth
from dovetail.simulation import Simulation, simulate
from dovetail.simulation.network import Routes
from dovetail.simulation.task_graph import TaskGraph, run

REPEATS = 3
#: Microbatches of a step; each adds as many events.
MICROBATCHES = (16, 32, 64, 128, 256, 512)
#: Sequences of a step of Llama 3.1 405B, and the most of them that are played task by task too.
SEQUENCES = (512, 5_120, 51_200, 512_000)
MOST_PLAYED = 51_200
#: Streams of the bare event loop.
STREAMS = 32


def cpu_seconds(call: Callable[[], object]) -> float:
    """The median of some calls."""
    found: list[float] = []
    for _ in range(REPEATS):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return median(found)


def gpt3(microbatches: int) -> tuple[Plan, dt.Job]:
    """GPT-3 on 256 chips with so many microbatches."""
    job = dt.Job(dt.models.load("gpt3-175b"), seq_len=2048, global_batch=4 * microbatches)
    spec = PlanSpec(tensor_parallel=4, pipeline_parallel=16, virtual_stages=2, zero_stage=1, sequence_parallel=True)
    return resolve_plan(spec, chips=256, global_batch=job.global_batch, num_layers=96), job


def llama_405b(sequences: int = 2048, chips: int = 16384) -> tuple[Plan, dt.Job]:
    """Llama 3.1 405B as it was trained, apart from context: 16,384 chips, tensor 8, pipeline 16."""
    job = dt.Job(dt.models.load("llama-3.1-405b"), seq_len=8192, global_batch=sequences)
    spec = PlanSpec(
        tensor_parallel=8,
        pipeline_parallel=16,
        virtual_stages=8,
        zero_stage=1,
        sequence_parallel=True,
        axis_order="tp-cp-pp-dp",
        layers_per_stage=(0, *[1] * 126, 0),
    )
    return resolve_plan(spec, chips=chips, global_batch=sequences, num_layers=126), job


def simulate_sequences(sequences: int, *, skip: bool, chips: int = 16384) -> Simulation:
    """The step of so many sequences."""
    plan, job = llama_405b(sequences, chips)
    return simulate(plan, job, dt.hardware.cluster("meta-24k-roce", chips=chips), skip=skip)


def in_a_process(sequences: int, *, skip: bool, chips: int = 16384) -> tuple[float, float, str]:
    """CPU seconds and gigabytes of a process that simulates a step, and what it prints."""
    command = [sys.executable, __file__, "--sequences", str(sequences), "--chips", str(chips)]
    child = subprocess.Popen([*command, *([] if skip else ["--all"])], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    text = child.stdout.read().strip()
    _, status, used = os.wait4(child.pid, 0)
    assert status == 0, text
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e9, text


def print_sequences() -> tuple[Series, Series]:
    """What more and more sequences cost, with periods skipped and every task played."""
    points: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    print("   sequences   every task: CPU s, GB     skipping: CPU s, GB   step and events")
    for sequences in SEQUENCES:
        texts: list[str] = []
        for skip in (False, True):
            if not skip and sequences > MOST_PLAYED:
                texts.append(f"{'-':>24}")
                continue
            seconds, gigabytes, text = in_a_process(sequences, skip=skip)
            points[skip].append((sequences, seconds))
            texts.append(f"{seconds:16.1f} {gigabytes:7.2f}" + ("" if not skip else f"   {text}"))
        print(f"{sequences:12,} {' '.join(texts)}")
    seconds, gigabytes, text = in_a_process(SEQUENCES[-1], skip=True, chips=102_400)
    print(f"the last on 102,400 chips: {seconds:.1f} s of CPU, {gigabytes:.2f} GB, {text}")
    return Series("every task", tuple(points[False])), Series("periods skipped", tuple(points[True]))


def bare_graph(tasks: int) -> TaskGraph:
    """Chains of tasks of which three in ten send over two links that neighbours share."""
    rng = np.random.default_rng(0)
    routes = Routes()
    ways = np.array([routes.add({s: 1.0, (s + 1) % STREAMS: 1.0}) for s in range(STREAMS)])
    before = np.arange(tasks - STREAMS)
    sent = np.where(rng.random(tasks) < 0.3, rng.random(tasks), 0.0)
    network = routes.network([1.0] * STREAMS)
    return TaskGraph(rng.random(tasks), sent, ways[np.arange(tasks) % STREAMS], before, before + STREAMS, network)


def main() -> None:
    """Prints the figures; writes the plot where asked."""
    parser = argparse.ArgumentParser(description="What simulations cost.")
    parser.add_argument("--plot", type=Path, help="write a plot of CPU seconds here (SVG)")
    parser.add_argument("--sequences", type=int, help="only simulate a step of so many sequences")
    parser.add_argument("--chips", type=int, default=16384, help="on so many chips")
    parser.add_argument("--all", action="store_true", help="with every task played")
    asked = parser.parse_args()
    if asked.sequences:
        found = simulate_sequences(asked.sequences, skip=not asked.all, chips=asked.chips)
        print(f"{found.step_time_s!r} s, {found.events:,} events, {found.played_events:,} played")
        return
    by_sequences = print_sequences()
    cluster = dt.hardware.cluster("hgx-h100", chips=256)
    dt.simulate(gpt3(16)[0], gpt3(16)[1], cluster)  # compiles
    whole: list[tuple[float, float]] = []
    loop: list[tuple[float, float]] = []
    print("microbatches      events   CPU s, whole   CPU s, event loop   us an event")
    for number in MICROBATCHES:
        plan, job = gpt3(number)
        found = simulate(plan, job, cluster, skip=False)
        seconds = cpu_seconds(lambda plan=plan, job=job: simulate(plan, job, cluster, skip=False))
        alone = cpu_seconds(lambda graph=found.tasks.graph: run(graph))
        whole.append((found.events, seconds))
        loop.append((found.events, alone))
        print(f"{number:12,} {found.events:11,} {seconds:14.2f} {alone:19.2f} {1e6 * alone / found.events:13.2f}")
    growths = [np.polyfit(*np.log(np.array(points)).T, 1)[0] for points in (whole, loop)]
    print(f"seconds grow with events to the power {growths[0]:.2f} (whole), {growths[1]:.2f} (event loop)")
    plan, job = llama_405b()
    roce = dt.hardware.cluster("meta-24k-roce", chips=16384)
    found = dt.simulate(plan, job, roce)
    seconds = cpu_seconds(lambda: dt.simulate(plan, job, roce))
    print(f"Llama 3.1 405B on 16,384 chips: {seconds:.2f} s of CPU, {found.events:,} events, ratio {found.ratio:.4f}")
    graph = bare_graph(600_000)
    events = run(graph).events
    seconds = cpu_seconds(lambda: run(graph))
    print(f"{events:,} events of a bare graph: {seconds:.2f} s of CPU, {1e6 * seconds / events:.2f} us each")
    if asked.plot:
        series = (Series("whole simulation", tuple(whole)), Series("event loop", tuple(loop)))
        title = "What a simulated step of GPT-3 on 256 chips costs"
        asked.plot.write_text(growth(title, [Panel("events", series)], "seconds of CPU"), encoding="utf-8")
        title = "What a simulated step of Llama 3.1 405B on 16,384 chips costs"
        other = asked.plot.with_stem(f"{asked.plot.stem}-sequences")
        other.write_text(growth(title, [Panel("sequences", by_sequences)], "seconds of CPU"), encoding="utf-8")


if __name__ == "__main__":
    main()
