"""A job on wafers under one mapping: free layouts, or what others run, tuned and as published, in one cost model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, NamedTuple

from baselines.accpar import accpar, accpar_as_published
from baselines.named_strategies import BASELINES, as_published, tuned
from baselines.stored import best_of, with_store

from dovetail import frameworks, hardware, models
from dovetail.errors import InputError
from dovetail.hardware import Cluster
from dovetail.hardware.wafer import Wafer
from dovetail.mapping.tiles.free_plan import FreeSearch
from dovetail.mapping.tiles.skeletons import TileSkeleton
from dovetail.models import Job
from dovetail.plans.plan_file import plan_of_document
from dovetail.plans.runs import check_runs
from dovetail.plans.space import Space
from dovetail.plans.words import plan_words
from dovetail.plans.write import plan_part
from dovetail.search.plan import plan as named_plan
from dovetail.step.evaluate import Evaluation, evaluate

SEQ_LEN, SEQUENCES = 2048, 6
#: Bytes of state per parameter, for the fewest wafers.
STATE_BYTES = 16
#: What a compiler for a wafer could run.
FRAMEWORK = frameworks.load("wafer")
#: CPU seconds of a named strategy, and of all of them together ahead of free layouts.
NAMED_S, ALL_NAMED_S = 20.0, 4.0

TUNED = (*BASELINES, "AccPar")
PUBLISHED = tuple(f"{name}, as published" for name in TUNED)

#: A plan, and a lower bound of all plans of its space where there is one.
Mapped = tuple[Evaluation | None, float | None]


class StudyLimits(NamedTuple):
    """Where a search of free layouts ends: CPU seconds, or this close to its lower bound."""

    cpu_s: float
    gap: float


@dataclass(frozen=True, slots=True)
class MappedJob:
    """A job on wafers under one mapping; step and memory are None where nothing fits or the mapping is refused."""

    part: str
    model: str
    wafer: str
    wafers: int
    d2d_tb_s: float
    memory_gb: float
    mapping: str
    words: str
    step_s: float | None = None
    tokens_per_s: float | None = None
    peak_gb: float | None = None
    missing_gb: float = 0.0
    #: of the step, what waits for a store
    store_s: float = 0.0
    lower_bound_s: float | None = None
    cpu_s: float = 0.0
    plan: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def key(self) -> tuple[object, ...]:
        """What was asked."""
        return self.part, self.model, self.wafer, self.d2d_tb_s, self.memory_gb, self.mapping

    @property
    def fits(self) -> bool:
        """Whether it runs."""
        return self.step_s is not None and not self.missing_gb


@dataclass(frozen=True, slots=True)
class JobOnWafers:
    """A job and the wafers it runs on."""

    job: Job
    wafer: Wafer
    wafers: int

    @property
    def cluster(self) -> Cluster:
        """All dies, spare ones too."""
        return self.wafer.cluster(self.wafers)

    @classmethod
    def of(cls, model: str, wafer: Wafer) -> JobOnWafers:
        """The fewest wafers that hold a model's state, and six sequences a step for every die."""
        precision = "bf16" if "bf16" in wafer.die.dense_flops.published() else "fp16"
        loaded = models.load(model)
        state = Job(loaded, SEQ_LEN, 1, precision=precision).graph().parameters() * STATE_BYTES
        wafers = ceil(state / (wafer.store_bytes or wafer.dies * wafer.die.memory_bytes))
        return cls(Job(loaded, SEQ_LEN, SEQUENCES * wafer.dies * wafers, precision=precision), wafer, wafers)

    def row(self, part: str, mapping: str, run: Callable[[], Mapped]) -> MappedJob:
        """What a mapping takes here."""
        start = time.process_time()
        die = self.wafer.die.memory_bytes / 1e9
        row = MappedJob(
            part, self.job.model.name, self.wafer.name, self.wafers, self.wafer.d2d_bytes_per_s / 1e12, die, mapping, ""
        )
        try:
            evaluation, bound_s = run()
        except InputError as refusal:
            return replace(row, words=str(refusal), cpu_s=time.process_time() - start)
        row = replace(row, lower_bound_s=bound_s, cpu_s=time.process_time() - start)
        if evaluation is None:
            return replace(row, words="nothing fits" if bound_s == float("inf") else "nothing found that fits")
        step_s = evaluation.step_time_s
        # what a store lacks counts as missing, too
        lacks = evaluation.missing_bytes or (0.0 if evaluation.fits else evaluation.stored_bytes)
        return replace(
            row,
            words=plan_words(evaluation.plan),
            step_s=step_s,
            tokens_per_s=self.job.tokens_per_step / step_s,
            peak_gb=evaluation.peak_bytes / 1e9,
            missing_gb=lacks / 1e9,
            store_s=evaluation.breakdown.get("store", 0.0),
            plan=plan_part(evaluation.plan),
        )

    def evaluated(self, rows: Iterable[MappedJob]) -> Iterator[Evaluation]:
        """The plans of rows that fit here."""
        cluster = self.cluster
        for row in rows:
            if row.plan:
                try:
                    plan = plan_of_document({"plan": row.plan}, self.job, cluster, row.mapping)
                    check_runs(plan, self.job, cluster, FRAMEWORK)
                    evaluation = evaluate(plan, self.job, cluster, FRAMEWORK, energy=False)
                except InputError:  # made for other wafers
                    continue
                if evaluation.fits:
                    yield evaluation

    def mapped(self, part: str, mapping: str) -> MappedJob:
        """One of the mappings of others."""
        job, cluster, name = self.job, self.cluster, mapping.removesuffix(", as published")

        def run() -> Mapped:
            if mapping == "AccPar":
                return accpar(job, cluster, FRAMEWORK), None
            if mapping in TUNED:
                return tuned(name, job, cluster, FRAMEWORK, NAMED_S)
            if name == "AccPar":
                return accpar_as_published(job, cluster, FRAMEWORK), None
            return best_of(with_store(as_published(name, job, cluster), job, cluster, FRAMEWORK)), None

        return self.row(part, mapping, run)

    def free(self, part: str, limits: StudyLimits, known: Iterable[MappedJob]) -> MappedJob:
        """Free layouts, never slower than the plans that are known."""
        return self.row(part, "free", lambda: self._free(limits, known))

    def _free(self, limits: StudyLimits, known: Iterable[MappedJob]) -> Mapped:
        job, cluster = self.job, self.cluster
        end = time.process_time() + limits.cpu_s
        search = FreeSearch(job, cluster, FRAMEWORK, gap=limits.gap, stop=lambda: time.process_time() >= end)
        plans = list(self.evaluated(known))
        if cluster.store is None:
            answer = named_plan(job, cluster, FRAMEWORK, space=Space(partition="ends"), time_limit_s=ALL_NAMED_S)
            plans += [] if answer.evaluation is None else [answer.evaluation]
            for plan in plans:
                search.offer(_KNOWN, plan)
        search.run()
        # with a store the search finds its own first plans only where it has none
        for plan in plans:
            search.offer(_KNOWN, plan)
        best = best_of(search.best_of.values())
        # a named strategy may have a ZeRO stage that free layouts do not try
        return best, search.bound_s if best is None else min(search.bound_s, best.step_time_s)


#: The skeleton that plans of others are offered under.
_KNOWN = TileSkeleton(0, 0, 0, 0)


def what_if(name: str, d2d_tb_s: float, memory_gb: float, store: tuple[float, float] | None = None) -> Wafer:
    """A wafer with other links and memory, buildable or not; a store has bytes and bytes a second."""
    wafer = hardware.wafer(name)
    die = replace(wafer.die, hbm_bytes=memory_gb * 1e9)
    wafer = replace(wafer, die=die, d2d_bytes_per_s=d2d_tb_s * 1e12)
    return wafer if store is None else replace(wafer, store_bytes=store[0], store_bytes_per_s=store[1])
