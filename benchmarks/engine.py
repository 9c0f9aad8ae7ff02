"""What the engine of studies costs: its throughput beside bare Ray calls, and how many workers one driver keeps busy.

`python benchmarks/engine.py [throughput|ceiling|all] [--repeats 11] [--least 1] [--most 64] [--store]`

Throughput: the same function of fixed work, in the engine (`run_ordered` on `RayExecutor`) and in bare `ray.remote`
calls with as many in flight, in turns on the same Ray; the median of the ratios of neighbouring turns is the figure,
since other programs may come and go. Workers compute, or sleep as long, which others disturb less. Ceiling: workers
that sleep instead of compute, so that a small machine can hold many; batches per second beside workers / seconds; with
`--store` each batch is also kept in a run directory, as studies do. With both the CPU time that the driver spends on a
batch, whose inverse no number of workers can exceed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.exploration.ordered import run_ordered
from dovetail.exploration.ray_executor import RayExecutor
from dovetail.exploration.store import Part, RunStore

#: Batches ahead of the state they are pruned against: more than are ever in flight here.
WINDOW = 256
#: A side of the matrices multiplied: small enough that one thread does it.
SIDE = 64
#: Seconds of a batch, and batches of a repeat.
COMPUTED = ((0.02, 50), (0.5, 6))
#: Seconds slept, and how many sleeps each worker has in a run.
SLEPT = ((0.05, 40), (0.25, 16), (1.0, 6))
#: Memory of a worker that has imported numpy, and what is left to the rest of the machine.
WORKER_BYTES, REST_BYTES = 140e6, 3e9
WARM_UP_S = 180.0

Work = Callable[[int], tuple[int, float]]


def main() -> None:
    """Prints what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", default="all", choices=("throughput", "ceiling", "all"))
    parser.add_argument("--kind", default="both", choices=("computing", "sleeping", "both"), help="of workers")
    parser.add_argument("--repeats", type=int, default=11, help="of each way, in turns")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="that compute")
    parser.add_argument("--least", type=int, default=1, help="workers that sleep, doubled up to --most")
    parser.add_argument("--most", type=int, default=64)
    parser.add_argument("--store", action="store_true", help="keep every batch in a run directory")
    options = parser.parse_args()
    if options.part in ("throughput", "all"):
        for kind, made in (("computing", computing), ("sleeping", sleeping)):
            for seconds, batches in COMPUTED if options.kind in (kind, "both") else ():
                throughput(kind, made(seconds), seconds, batches, options.repeats, options.workers)
    if options.part in ("ceiling", "all"):
        print(f"{'workers':>7} {'sleep s':>8} {'batches/s':>10} {'ideal':>8} {'ratio':>7} {'driver CPU ms/batch':>20}")
        workers = options.least
        while workers <= options.most and room(workers):
            ceiling(workers, stored=options.store)
            workers *= 2


def throughput(kind: str, work: Work, seconds: float, batches: int, repeats: int, workers: int) -> None:
    """Both ways in turns, and the median of the ratios of neighbouring turns."""
    executor = RayExecutor(work, "local", workers)
    import ray

    bare = ray.remote(num_cpus=1)(work)
    ways = {
        "engine": lambda: run_ordered(executor, tasks(batches), 0, lambda state, _, __: state + 1, WINDOW),
        "bare ray.remote": lambda: bare_calls(ray, bare, batches, executor.in_flight),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    cpu_ms: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    for repeat in range(repeats):
        # the first of a pair is not always the same way
        for name in sorted(ways, reverse=repeat % 2 == 1):
            cpu, before = time.process_time(), time.perf_counter()
            assert ways[name]() == batches
            rates[name].append(batches / (time.perf_counter() - before))
            cpu_ms[name].append(1e3 * (time.process_time() - cpu) / batches)
    executor.close()
    medians = {name: statistics.median(some) for name, some in rates.items()}
    print(f"{kind} batches of about {seconds:g} s on {workers} workers, {repeats} × {batches} batches each way:")
    for name, some in rates.items():
        spread = f"median; {min(some):.3f} to {max(some):.3f}"
        driver = f"{statistics.median(cpu_ms[name]):.2f} ms of the driver's CPU for each"
        print(f"  {name:<16} {medians[name]:8.3f} batches/s ({spread}), {driver}")
    ratios = sorted(one / other for one, other in zip(*rates.values(), strict=True))
    spread = f"median of {repeats} pairs; {ratios[0]:.3f} to {ratios[-1]:.3f}"
    print(f"  engine / bare: {statistics.median(ratios):.3f} ({spread})", flush=True)


def bare_calls(ray: Any, remote: Any, batches: int, in_flight: int) -> int:
    """What one writes without an engine: a bounded number of calls, the finished ones replaced."""
    sent = done = 0
    waiting: list[Any] = []
    while done < batches:
        while sent < batches and len(waiting) < in_flight:
            waiting.append(remote.remote(sent))
            sent += 1
        ready, waiting = ray.wait(waiting, num_returns=1)
        done += len(ray.get(ready))
    return done


def ceiling(workers: int, *, stored: bool) -> None:
    """Batches per second of workers that sleep."""
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore.open(Path(folder) / "run", {"study": "none"}, resume=False) if stored else None
        keep = (lambda number, _: store.write(a_part(number))) if store else (lambda _, __: None)
        if store:
            store.write(a_part(10**6))  # what writes is loaded
        sleep_all(workers, keep)


def a_part(number: int) -> Part:
    """Of the size that a batch of searched designs has."""
    columns = {f"figure.{n}": np.arange(4.0) for n in range(8)} | {"code": np.arange(4), "plan": ["p" * 500] * 4}
    return Part("search", number, columns, {"searched": 4})


def sleep_all(workers: int, keep: Callable[[int, Any], None]) -> None:
    """Each of the sleeps, with what becomes of results."""
    for position, (seconds, rounds) in enumerate(SLEPT):
        executor = RayExecutor(sleeping(seconds), "local", workers)
        warm_up(executor, workers)
        batches = workers * rounds
        cpu, before = time.process_time(), time.perf_counter()
        first = position * 10**5
        done = run_ordered(
            executor,
            lambda k, _, last=first + batches: k if k < last else None,
            0,
            lambda state, _, __: state + 1,
            WINDOW,
            first=first,
            on_result=keep,
        )
        spent, cpu = time.perf_counter() - before, time.process_time() - cpu
        executor.close()
        assert done == batches
        rate, ideal = batches / spent, workers / seconds
        print(
            f"{workers:7} {seconds:8g} {rate:10.2f} {ideal:8.1f} {rate / ideal:7.3f} {1e3 * cpu / batches:20.2f}",
            flush=True,
        )


def warm_up(executor: RayExecutor, workers: int) -> None:
    """Waits until every worker has started: processes come one by one."""
    seen: set[int] = set()
    until = time.monotonic() + WARM_UP_S
    while len(seen) < workers and time.monotonic() < until:
        seen |= run_ordered(executor, tasks(2 * workers), frozenset(), lambda some, _, done: some | {done[0]}, WINDOW)
    if len(seen) < workers:
        print(f"  only {len(seen)} of {workers} workers started in {WARM_UP_S:g} s")


def tasks(batches: int) -> Callable[[int, Any], int | None]:
    """So many tasks, each its own number."""
    return lambda number, _: number if number < batches else None


def computing(seconds: float) -> Work:
    """A function of fixed work that takes about so long on this machine; it gives its process and a number."""

    def multiply(times: int) -> float:
        matrix = np.full((SIDE, SIDE), 1.0 / SIDE)
        product = matrix
        for _ in range(times):
            product = product @ matrix
        return float(product[0, 0])

    multiply(1000)
    before = time.process_time()
    multiply(10_000)
    times = max(1, round(10_000 * seconds / (time.process_time() - before)))

    def work(number: int) -> tuple[int, float]:
        return os.getpid(), multiply(times) + number

    return work


def sleeping(seconds: float) -> Work:
    """A function that sleeps; it gives its process and a number."""

    def work(number: int) -> tuple[int, float]:
        time.sleep(seconds)
        return os.getpid(), float(number)

    return work


def room(workers: int) -> bool:
    """Whether the machine has the memory for so many workers."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    (available,) = [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    if available < workers * WORKER_BYTES + REST_BYTES:
        print(f"no memory for {workers} workers: {available / 1e9:.1f} GB available")
        return False
    return True


if __name__ == "__main__":
    main()
