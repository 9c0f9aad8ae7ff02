"""A study on a cluster of Ray that loses a node while batches run there; `python removed_node.py` in its folder.

In a process of its own, so that Ray leaves no threads and handlers in pytest's.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from ray_scenarios import Counting, small_cluster

from dovetail.exploration import study as study_module
from dovetail.exploration.events import StudyProgress
from dovetail.exploration.executors import EXECUTORS
from dovetail.exploration.question import AskedTask
from dovetail.exploration.study import Study
from dovetail.exploration.tasks import CandidateBatch

#: Search batches that are done when the node goes.
DONE = 1
#: Seconds after which no one waits any longer.
PATIENCE_S = 60.0


class Held:
    """Work whose later search batches end only once the node is gone, so that one is under way when it goes."""

    def __init__(self, work: Any) -> None:
        self._work = work
        self.begun, self.gone = Path("begun").absolute(), Path("gone").absolute()

    def __call__(self, task: Any) -> Any:
        batch = task.task if isinstance(task, AskedTask) else task
        if (
            isinstance(batch, CandidateBatch)
            and batch.level == "search"
            and batch.number >= DONE
            and not self.gone.exists()
        ):
            self.begun.touch()
            time.sleep(PATIENCE_S)  # its process dies with the node
        return self._work(task)


def wait_for(path: Path) -> None:
    """Returns when the file is there, or after a while."""
    until = time.monotonic() + PATIENCE_S
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.02)


def main() -> None:
    """Prints how many workers there were before and after, and how many tasks were lost."""
    cluster, address = small_cluster(num_cpus=0)
    doomed = cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    made: list[Counting] = []
    workers: list[int] = []
    begun, gone = Path("begun"), Path("gone")

    def counting(work: Any, where: str | None, number: int | None) -> Counting:
        made.append(Counting(Held(work), where or address, number))
        return made[-1]

    def listener(progress: StudyProgress) -> None:
        workers.append(progress.workers)
        if progress.level == "search" and progress.batches == DONE:
            wait_for(begun)
            cluster.remove_node(doomed, allow_graceful=False)
            gone.touch()
            cluster.add_node(num_cpus=1)

    study_module.EXECUTORS = {**EXECUTORS, "ray": counting}  # pyright: ignore[reportPrivateImportUsage]
    Study.load("study.yaml").run("run", executor="ray", address=address, listener=listener)
    cluster.shutdown()
    sys.stdout.write(json.dumps({"workers": workers[0], "lost": made[0].losses}) + "\n")


if __name__ == "__main__":
    main()
