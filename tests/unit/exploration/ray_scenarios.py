"""What test_ray_executor.py has run in processes of their own, so that Ray leaves no threads and handlers in pytest's.

`python ray_scenarios.py <scenario> <scratch directory>` prints one line of JSON; a failed assertion ends it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dovetail.errors import InputError
from dovetail.exploration import ray_executor
from dovetail.exploration.ordered import run_ordered
from dovetail.exploration.ray_executor import RayExecutor

BATCHES = 24


class Counting(RayExecutor):
    """Counts what was lost on the way, so that a test knows that something was."""

    losses = 0

    def _lose(self, number: int, reason: Exception) -> None:
        self.losses += 1
        super()._lose(number, reason)


def batch(task: tuple[int, float]) -> tuple[int, int]:
    """Takes a while; gives a number and its process."""
    number, seconds = task
    time.sleep(seconds)
    return number * number, os.getpid()


def finish(executor: RayExecutor, seconds: float, on_result: Callable[[int, Any], None]) -> list[int]:
    """All batches in order, and that each came once."""
    came: list[int] = []

    def arrived(number: int, result: Any) -> None:
        came.append(number)
        on_result(number, result)

    def absorb(state: tuple[int, ...], number: int, result: tuple[int, int]) -> tuple[int, ...]:
        return (*state, result[0])

    squares = run_ordered(
        executor,
        lambda k, _: (k, seconds) if k < BATCHES else None,
        (),
        absorb,
        window=10,
        on_result=arrived,
    )
    assert squares == tuple(k * k for k in range(BATCHES)), squares
    assert sorted(came) == list(range(BATCHES)), came
    return came


class Failing:
    """Raises what its task names, and writes down that it ran."""

    def __init__(self, scratch: str) -> None:
        self.marks = Path(scratch) / "marks"

    def __call__(self, task: str) -> str:
        with self.marks.open("a", encoding="utf-8") as file:
            file.write(f"{task}\n")
        match task:
            case "refusal":
                raise InputError("space", "is empty", "give it a point")
            case "bug":
                return str({}["missing"])
            case "unsendable":
                raise UnsendableError(threading.Lock())
            case "unsendable result":
                return threading.Lock()  # type: ignore[return-value]
            case "death":
                os.kill(os.getpid(), signal.SIGKILL)
        return task


class UnsendableError(Exception):
    """An exception that no other process can be given."""


def local(scratch: str) -> dict[str, Any]:
    """A private Ray: what comes back, how many run, what its workers are allowed, and what is left behind."""
    variables = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")
    before = {name: os.environ.get(name) for name in variables}

    def look(seconds: float) -> tuple[int, dict[str, str | None]]:
        time.sleep(seconds)
        return os.getpid(), {name: os.environ.get(name) for name in variables}

    executor = RayExecutor(look, "local", 2)
    assert (executor.workers, executor.in_flight) == (2, 6)
    for number in range(6):
        executor.submit(number, 0.2)
    seen = [executor.take() for _ in range(6)]
    assert sorted(number for number, _ in seen) == list(range(6))
    assert {name: os.environ.get(name) for name in variables} == before
    ray_executor.MANY_IN_FLIGHT = 2  # of six it waits for three at a time, of the last one for that one
    for number in range(6):
        executor.submit(number, 0.02 * number)
    assert sorted(executor.take()[0] for _ in range(6)) == list(range(6))
    started = time.monotonic()
    executor.submit(1, 600.0)
    time.sleep(0.5)
    executor.close()
    executor.close()
    pids = {pid for _, (pid, _) in seen}
    until = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < until:
        time.sleep(0.1)
    return {
        "workers": len(pids),
        "variables": seen[0][1][1],
        "seconds": time.monotonic() - started,
        "alive": [pid for pid in pids if Path(f"/proc/{pid}").exists()],
        "left": [name for name in os.listdir(scratch) if name.startswith("dovetail-")],
    }


def errors(scratch: str) -> dict[str, Any]:
    """What the work raises comes as itself, once; a task that kills its workers is given up with a sentence."""
    ray_executor.FIRST_DELAY_S = ray_executor.LONGEST_DELAY_S = 0.01
    ray_executor.MOST_LOSSES = 3
    work = Failing(scratch)
    executor = RayExecutor(work, "local", 2)
    found: dict[str, Any] = {}
    for number, task in enumerate(("refusal", "bug", "unsendable", "unsendable result", "death")):
        # a good one beside each comes back, whatever happens to the other
        executor.submit(2 * number, task)
        executor.submit(2 * number + 1, "fine")
        good: list[tuple[int, Any]] = []
        for _ in range(2):
            try:
                good.append(executor.take())
            except Exception as error:
                found[task] = {
                    "kind": type(error).__name__,
                    "text": str(error),
                    "fix": getattr(error, "fix", None),
                    "noted": any("ray_scenarios.py" in note for note in getattr(error, "__notes__", [])),
                }
        assert good == [(2 * number + 1, "fine")], good
    executor.close()
    found["ran"] = work.marks.read_text(encoding="utf-8").split("\n")
    return found


def killed_worker(_: str) -> dict[str, Any]:
    """Workers die while they work."""
    executor = Counting(batch, "local", 2)
    killed: list[int] = []

    def kill(number: int, result: tuple[int, int]) -> None:
        if number in (2, 9) and result[1] not in killed:
            time.sleep(0.05)  # it is at its next batch then
            os.kill(result[1], signal.SIGKILL)
            killed.append(result[1])

    finish(executor, 0.2, kill)
    executor.close()
    return {"killed": len(killed), "lost": executor.losses}


def killed_node(_: str) -> dict[str, Any]:
    """The one node with cores dies while it works, another joins: nothing is lost, and workers are counted again."""
    cluster, address = small_cluster(num_cpus=0)
    doomed = cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    executor = Counting(batch, address)
    ray_executor.WORKERS_PERIOD_S = 0.1
    counts = [executor.workers]
    pids: set[int] = {doomed.all_processes["raylet"][0].process.pid}

    def kill(number: int, result: tuple[int, int]) -> None:
        pids.add(result[1])
        if number == 6:
            time.sleep(0.05)  # its workers are at their next batches then
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            cluster.add_node(num_cpus=1)
            pids.clear()

    finish(executor, 0.2, kill)
    counts.append(settled(executor, 1))
    executor.close()
    cluster.shutdown()
    return {"workers": counts, "lost": executor.losses}


def small_cluster(num_cpus: int) -> tuple[Any, str]:
    """A cluster of one node on this machine, quiet as the executor makes it, and its address."""
    os.environ.update(ray_executor.QUIET)
    # a dead node is known as dead after two seconds instead of fifteen
    os.environ.update(RAY_health_check_period_ms="500", RAY_health_check_failure_threshold="4")
    from ray.cluster_utils import Cluster

    head = {"num_cpus": num_cpus, "include_dashboard": False}
    cluster: Any = Cluster(initialize_head=True, connect=False, head_node_args=head)
    return cluster, cluster.address


def settled(executor: RayExecutor, wanted: int) -> int:
    """The number of workers, once it is as wanted or half a minute is over."""
    until = time.monotonic() + 30
    while executor.workers != wanted and time.monotonic() < until:
        time.sleep(0.1)
    return executor.workers


def joined(_: str) -> dict[str, Any]:
    """A cluster that was there before: fewer workers than it has, and it stays when the executor is closed."""
    cluster, address = small_cluster(num_cpus=3)
    import ray

    ray.init(address=address, log_to_driver=False)
    executor = RayExecutor(batch, "auto", 2)
    counts = [executor.workers, executor.in_flight]
    finish(executor, 0.01, lambda number, result: None)
    executor.submit(0, (0, 600.0))
    executor.close()
    # what was cancelled gives its core back
    until = time.monotonic() + 20
    while (free := ray.available_resources().get("CPU", 0)) < 3 and time.monotonic() < until:
        time.sleep(0.1)
    found = {"counts": counts, "still there": ray.is_initialized(), "free": free}
    ray.shutdown()
    cluster.shutdown()
    return found


SCENARIOS = {f.__name__: f for f in (local, errors, killed_worker, killed_node, joined)}

if __name__ == "__main__":
    outcome = SCENARIOS[sys.argv[1]](sys.argv[2])
    sys.stdout.write(json.dumps(outcome) + "\n")
