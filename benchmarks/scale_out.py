"""How far one driver of a study goes: workers and nodes it feeds, batches per second, memory at 10^8 designs.

`python benchmarks/scale_out.py [curve|driver|memory|all]`, figures of docs/results/scale-out.md and its plot.

curve: batches per second on 1, 2, 4, ... workers of a private Ray, and on clusters of as many raylets of one worker.
Workers that compute share the cores of this machine; workers that sleep stand for those of larger machines.
driver: CPU time of the driver for each batch, with more and more in flight, and for each batch that it also saves.
memory: the driver's peak with 10^5 to 10^8 designs. Driver and run directory are the real ones; in
place of workers are results of the size that studies/million.yaml has. Each run has a process of its own, then resumes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from engine import Work, a_part, computing, sleeping, tasks, warm_up

from dovetail.exploration import ray_executor
from dovetail.exploration.drive import Drive
from dovetail.exploration.executor import Inline
from dovetail.exploration.ordered import run_ordered
from dovetail.exploration.ray_executor import RayExecutor
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.exploration.resolving import study_of
from dovetail.exploration.store import Part, RunStore
from dovetail.exploration.tasks import CandidateBatch, NextStart, Range, Task, WarmStarts
from dovetail.report.svg import Panel, Series, growth

ASSETS = Path(__file__).parents[1] / "docs" / "assets"
WORKERS = (1, 2, 4, 8, 16)
#: Workers of computing batches: more than the machine has cores shows where it ends.
COMPUTING = (1, 2, 4)
#: Seconds of a batch that sleeps and of one that computes, and batches for each worker in a round.
SLEPT_S, COMPUTED_S, BATCHES = 1.0, 0.25, 4
ROUNDS = 3
IN_FLIGHT = (6, 66, 514, 2050)
DESIGNS = (10**5, 10**6, 10**7, 10**8)
#: Of the designs: what physics and profiles leave, as in studies/million.yaml.
PHYSICAL_SHARE, PROFILE_SHARE = 86_060 / 2_903_040, 516 / 2_903_040


def main() -> None:
    """Prints what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", default="all", choices=("curve", "driver", "memory", "all", "run"))
    parser.add_argument("--designs", type=int, default=0, help="of a run, which `memory` starts")
    parser.add_argument("--where", default="", help="its directory")
    options = parser.parse_args()
    if options.part == "run":
        one_run(options.designs, options.where)
        return
    if options.part in ("curve", "all"):
        curve()
    if options.part in ("driver", "all"):
        driver()
    if options.part in ("memory", "all"):
        memory()


def curve() -> None:
    """Batches per second against workers, each way in every round, and the plot."""
    asleep, at_work = sleeping(SLEPT_S), computing(COMPUTED_S)
    ways: dict[str, tuple[Callable[[int], Any], Work, tuple[int, ...]]] = {
        "sleeping, one Ray": (private, asleep, WORKERS),
        "sleeping, a raylet for each": (raylets, asleep, COMPUTING),
        "computing, one Ray": (private, at_work, COMPUTING),
        "computing, a raylet for each": (raylets, at_work, COMPUTING),
    }
    lines: dict[str, list[tuple[float, float]]] = {}
    print(f"{'':30} workers  batches/s (median; least to most)   of one worker × workers")
    for name, (place, work, numbers) in ways.items():
        for workers in numbers:
            with place(workers) as address:
                rates = rates_of(work, address, workers)
            lines.setdefault(name, []).append((workers, statistics.median(rates)))
            ratio = lines[name][-1][1] / workers / lines[name][0][1]
            spread = f"{statistics.median(rates):8.2f} ({min(rates):.2f} to {max(rates):.2f})"
            print(f"{name:30} {workers:7}  {spread:38} {ratio:.2f}", flush=True)
    halves = [
        (f"workers that sleep {SLEPT_S:g} s", "sleeping"),
        (f"workers that compute {COMPUTED_S:g} s here", "computing"),
    ]
    panels = [
        Panel(title, tuple(Series(n.split(", ")[1], tuple(line)) for n, line in lines.items() if n.startswith(start)))
        for title, start in halves
    ]
    picture = growth("One driver and its workers", panels, "batches per second")
    (ASSETS / "scale-out.svg").write_text(picture, encoding="utf-8")


def rates_of(work: Work, address: str, workers: int) -> list[float]:
    """Batches per second of some rounds."""
    executor = RayExecutor(work, address, None if address != "local" else workers)
    warm_up(executor, workers)
    rates: list[float] = []
    for _ in range(ROUNDS):
        batches, before = BATCHES * workers, time.perf_counter()
        assert run_ordered(executor, tasks(batches), 0, lambda state, _, __: state + 1, 2 * batches) == batches
        rates.append(batches / (time.perf_counter() - before))
    executor.close()
    return rates


@contextmanager
def private(_: int) -> Any:
    """The address that starts a private Ray."""
    yield "local"


@contextmanager
def raylets(number: int) -> Any:
    """The address of a cluster of so many nodes of one core each, all on this machine."""
    os.environ.update(ray_executor.QUIET)
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": ray_executor.OBJECT_STORE_BYTES}
    cluster: Any = Cluster(initialize_head=True, connect=False, head_node_args=head)
    for _ in range(number - 1):
        cluster.add_node(num_cpus=1, object_store_memory=ray_executor.OBJECT_STORE_BYTES)
    try:
        yield cluster.address
    finally:
        cluster.shutdown()


class Ahead(RayExecutor):
    """Keeps a given number in flight, as for a larger cluster than this machine."""

    ahead = 0

    @property
    def in_flight(self) -> int:
        """As many as are asked for."""
        return self.ahead


def driver() -> None:
    """The driver's CPU time for a batch that does nothing, by what is in flight and what becomes of it."""
    executor = Ahead(lambda number: number, "local", 2)
    executor.ahead = IN_FLIGHT[0]
    spent_ms(executor, 300)
    print(
        "in flight  workers  driver's CPU ms for a batch (median; least to most), waiting for one at a time beside it"
    )
    usual = ray_executor.MANY_IN_FLIGHT
    for ahead in IN_FLIGHT:
        executor.ahead = ahead
        spent: dict[int, list[float]] = {usual: [], 10**9: []}
        for _ in range(ROUNDS):
            # in turns, for the machine may be busier now than then
            for many, of_all in spent.items():
                ray_executor.MANY_IN_FLIGHT = many
                of_all.append(spent_ms(executor, max(500, 2 * ahead)))
        texts = [f"{statistics.median(s):.2f} ({min(s):.2f} to {max(s):.2f})" for s in spent.values()]
        print(f"{ahead:9,} {ahead // 2 - 1:8,}  {texts[0]:24} {texts[1]}", flush=True)
    ray_executor.MANY_IN_FLIGHT = usual
    executor.close()
    with tempfile.TemporaryDirectory() as folder, RunStore.open(Path(folder) / "run", {}, resume=False) as store:
        store.write(a_part(10**6))
        for name, act in (("write", lambda n: store.write(a_part(n))), ("read", lambda n: store.read("search", n))):
            cpu, before = time.process_time(), time.perf_counter()
            for number in range(300):
                act(number)
            cpu, wall = time.process_time() - cpu, time.perf_counter() - before
            print(f"{name} a batch of four searched designs: {cpu / 0.3:.2f} ms of CPU, {wall / 0.3:.2f} ms")


def spent_ms(executor: RayExecutor, batches: int) -> float:
    """The driver's CPU time for a batch."""
    before = time.process_time()
    run_ordered(executor, tasks(batches), 0, lambda state, _, __: state + 1, 4096)
    return 1e3 * (time.process_time() - before) / batches


def memory() -> None:
    """Peak memory, CPU time and files of a driver against designs, and what resuming takes."""
    print("designs      left by physics  batches  peak MiB  driver CPU s  files MiB  resume CPU s  resumed peak MiB")
    for designs in DESIGNS:
        with tempfile.TemporaryDirectory() as folder:
            where = str(Path(folder) / "run")
            first = started(designs, where)
            files = sum(path.stat().st_size for path in Path(where).rglob("*") if path.is_file())
            # without its result the run is read from its parts, batch for batch
            (Path(where) / "result.json").unlink()
            again = started(designs, where)
            assert again["answer"] == first["answer"]
        row = f"{first['designs']:11,} {first['left']:12,} {first['batches']:11,} {first['peak_mib']:9.0f}"
        row += f" {first['cpu_s']:13.1f} {files / 2**20:10.1f}"
        print(f"{row} {again['cpu_s']:13.1f} {again['peak_mib']:10.0f}", flush=True)


def started(designs: int, where: str) -> dict[str, Any]:
    """A run in a process of its own."""
    command = [sys.executable, __file__, "run", "--designs", str(designs), "--where", where]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def one_run(designs: int, where: str) -> None:
    """Drives a study to its end with results made up; prints JSON."""
    study = a_study(designs)
    with RunStore.open(where, study.document, resume=True) as store:
        before = time.process_time()
        drive = Drive(study, store, Inline(Results(study)), None)
        answer = drive.result()
        spent = time.process_time() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    found = {"designs": study.size, "left": drive.counts["physical"], "batches": drive.batches, "cpu_s": spent}
    print(json.dumps(found | {"peak_mib": peak, "answer": answer}))


def a_study(designs: int) -> ResolvedStudy:
    """A study of about so many designs."""
    clocks = max(1, round(designs / 10**5))
    hardware: dict[str, Any] = {
        "base": "tpu-v4",
        "technology": "7nm",
        "vary": {
            "vector_lanes": {"range": [64, 163], "step": 1},
            "vector_cores": {"range": [1, 100], "step": 1},
            "hbm_stacks": {"range": [1, 10], "step": 1},
            "clock_hz": {"range": [1e9, 1e9 + 1e5 * (clocks - 1)], "step": 1e5} if clocks > 1 else [1e9],
        },
    }
    job = {"model": "gpt3-1.3b", "seq_len": 2048, "global_batch": 64}
    cluster = {"chips": 16, "framework": "ideal"}
    return study_of({"name": "many", "jobs": [job], "hardware": hardware, "cluster": cluster}, "many")


class Results:
    """Makes up what workers return: as many candidates left by each level as the study of a million chips had."""

    def __init__(self, study: ResolvedStudy) -> None:
        self._study = study

    def __call__(self, task: Task) -> Part:
        """The result of a batch, which depends on the task alone."""
        name = self._study.jobs[0].name
        match task:
            case WarmStarts() | NextStart():
                # one candidate, and none that is better for its plans
                codes = np.zeros(1 if isinstance(task, WarmStarts) else 0, np.int64)
                return Part("warm_start", task.number, searched_columns(name, codes, 1.0), {"searched": len(codes)})
            case Range():
                number, rows = task.stop - task.start, round((task.stop - task.start) * PHYSICAL_SHARE)
                codes = task.start + np.sort(np.random.default_rng(task.number).choice(number, rows, replace=False))
                facts = {"counted": number, "kept": number, "unbeaten": number, "left": rows}
                return Part("physical", task.number, bounded(name, codes, task.number), facts)
            case CandidateBatch(level="profile"):
                rows = np.flatnonzero(task.codes % round(PHYSICAL_SHARE / PROFILE_SHARE) == 0)
                facts = {"counted": len(task.codes), "left": len(rows)}
                return Part("profile", task.number, bounded(name, task.codes[rows], task.number), facts)
            case CandidateBatch():
                columns = searched_columns(name, task.codes, 2.0 + task.number)
                return Part("search", task.number, columns, {"searched": len(task.codes)})
            case _:
                raise AssertionError(task)


def bounded(job: str, codes: Any, seed: int) -> dict[str, Any]:
    """Candidates with lower bounds below the best step."""
    return {"code": codes, f"least_s.{job}": np.random.default_rng(seed).uniform(0.5, 0.99, len(codes))}


def searched_columns(job: str, codes: Any, step_s: float) -> dict[str, Any]:
    """Searched candidates, all with a plan."""
    seconds = np.full(len(codes), step_s)
    columns = {"code": codes, "evaluated": np.ones(len(codes), np.bool_), "figure.step_time": seconds}
    plan = json.dumps({"tensor_parallel": 8, "text": "p" * 500})
    return columns | {f"least_s.{job}": seconds, f"step_s.{job}": seconds, f"plan.{job}": [plan] * len(codes)}


if __name__ == "__main__":
    main()
