"""The executors a study can name."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.exploration.executor import Executor, Inline, Work

#: Creates an executor from the work, a cluster address and a number of workers; None lets it choose.
Factory = Callable[[Work, str | None, int | None], Executor]


def _inline(work: Work, address: str | None, workers: int | None) -> Executor:
    del address, workers  # this process is a single worker without an address
    return Inline(work)


def _ray(work: Work, address: str | None, workers: int | None) -> Executor:
    from dovetail.exploration.ray_executor import RayExecutor

    return RayExecutor(work, address or "local", workers)


EXECUTORS: dict[str, Factory] = {"inline": _inline, "ray": _ray}
