"""A study on a cluster of Ray that loses a node while batches run there; `python removed_node.py` in its folder.

In a process of its own, so that Ray leaves no threads and handlers in pytest's.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from ray_scenarios import Counting, small_cluster

from dovetail.exploration import study as study_module
from dovetail.exploration.events import Progress
from dovetail.exploration.executor import EXECUTORS
from dovetail.exploration.study import Study

#: Search batches that are done when the node goes: some of the next are under way.
DONE = 1


class Slow:
    """Work that takes so long that a node which goes is in the middle of it."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def __call__(self, task: Any) -> Any:
        time.sleep(0.4)
        return self._work(task)


def main() -> None:
    """Prints how many workers there were before and after, and how many tasks were lost."""
    cluster, address = small_cluster(num_cpus=0)
    doomed = cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    made: list[Counting] = []
    workers: list[int] = []

    def counting(work: Any, where: str | None, number: int | None) -> Counting:
        made.append(Counting(Slow(work), where or address, number))
        return made[-1]

    def listener(progress: Progress) -> None:
        workers.append(progress.workers)
        if progress.level == "search" and progress.batches == DONE:
            cluster.remove_node(doomed, allow_graceful=False)
            cluster.add_node(num_cpus=1)

    study_module.EXECUTORS = {**EXECUTORS, "ray": counting}
    Study.load("study.yaml").run("run", executor="ray", address=address, listener=listener)
    cluster.shutdown()
    sys.stdout.write(json.dumps({"workers": workers[0], "lost": made[0].losses}) + "\n")


if __name__ == "__main__":
    main()
