"""The executors a study can name: a table of what makes each."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.exploration.executor import Executor, Inline, Work

#: Makes an executor of the work, the address of a cluster and the number of workers; None leaves the choice to it.
Factory = Callable[[Work, str | None, int | None], Executor]


def _inline(work: Work, address: str | None, workers: int | None) -> Executor:
    del address, workers  # this process is one worker at no address
    return Inline(work)


def _ray(work: Work, address: str | None, workers: int | None) -> Executor:
    from dovetail.exploration.ray_executor import RayExecutor

    return RayExecutor(work, address or "local", workers)


EXECUTORS: dict[str, Factory] = {"inline": _inline, "ray": _ray}
