"""The TMAC study: models on wafers under free layouts and under what others run, in one cost model.

python studies/tmac.py [--model NAME] [--wafer NAME] [--seconds S] [--json FILE]

Six sequences a step for every die. A model whose state one wafer does not hold keeps all of it in the wafer's store,
or takes the fewest wafers that hold it, for all mappings alike. Every mapping is tuned over all its degrees
within the same cost model, and stands there as published, too, whether that fits or not.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from math import ceil

from baselines.accpar import accpar, accpar_as_published
from baselines.named_strategies import BASELINES, as_published

from dovetail import frameworks, hardware, models, plan
from dovetail.errors import InputError
from dovetail.frameworks import Framework
from dovetail.hardware import Cluster
from dovetail.hardware.wafer import Wafer
from dovetail.mapping.tiles.free_plan import FreeLimits, free_plan
from dovetail.models import Job
from dovetail.plans.plan import Plan
from dovetail.plans.wafer_part import Stored, WaferPart
from dovetail.plans.words import plan_words
from dovetail.step.evaluate import Evaluation, evaluate

MODELS = ("gpt3-175b", "llama-3.1-70b", "llama-30b", "deepseek-v3")
WAFERS = ("watos-like", "dojo-tile", "wse-3-like")
SEQ_LEN, SEQUENCES = 2048, 6
#: Bytes of state per parameter, for the number of wafers to begin with.
STATE_BYTES = 16
#: Times the least number of wafers that are tried where a model does not fit on these.
MORE_WAFERS = (1, 2)


@dataclass(frozen=True, slots=True)
class Mapped:
    """A job on wafers under one mapping."""

    model: str
    wafer: str
    wafers: int
    store: tuple[str, ...]
    mapping: str
    plan: str
    step_s: float | None
    tokens_per_s: float | None
    peak_gb: float | None
    missing_gb: float | None
    #: of the step, what waits for a store
    store_s: float = 0.0
    gap: float | None = None
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job runs: wafers, what named strategies keep in their stores, and the framework with the rest."""

    job: Job
    wafer: Wafer
    wafers: int
    store: tuple[Stored, ...]

    @property
    def cluster(self) -> Cluster:
        """All dies."""
        return self.wafer.cluster(self.wafers)

    @property
    def framework(self) -> Framework:
        """What a compiler for a wafer could run."""
        return frameworks.load("wafer")

    @property
    def on_dies(self) -> Framework:
        """The same with the state that dies store, for searches that do not know stores."""
        if not self.store:
            return self.framework
        states = tuple((precision, state.on_dies(self.store)) for precision, state in self.framework.states)
        return replace(self.framework, states=states, zero_stages=(3,), zero_stages_with_pipeline=(3,))

    def stored(self, chosen: Plan) -> Evaluation:
        """A plan of degrees with the state in the stores."""
        part = WaferPart(store=self.store) if self.store else None
        return evaluate(replace(chosen, wafer=part), self.job, self.cluster, self.framework)


def places(model: str, name: str) -> Iterator[Place]:
    """The fewest wafers first; all state in stores where a wafer has one."""
    wafer = hardware.wafer(name)
    store: tuple[Stored, ...] = ("optimizer", "weights") if wafer.store_bytes else ()
    parameters = models.load(model)
    precision = "bf16" if "bf16" in wafer.die.dense_flops.published() else "fp16"
    least = Job(parameters, SEQ_LEN, SEQUENCES, precision=precision).graph().parameters() * STATE_BYTES
    room = wafer.store_bytes if wafer.store_bytes else wafer.dies * wafer.die.memory_bytes
    first = ceil(least / room)
    for wafers in (times * first for times in MORE_WAFERS):
        batch = SEQUENCES * wafer.dies * wafers
        job = Job(parameters, SEQ_LEN, batch, precision=precision)
        yield Place(job, wafer, wafers, store)


def tuned(place: Place, seconds: float) -> dict[str, Callable[[], tuple[Evaluation | None, float | None]]]:
    """Every mapping, tuned: the plan, and how far it may be from the best of its space."""

    def named(name: str) -> tuple[Evaluation | None, float | None]:
        space = BASELINES[name]
        if place.store:
            space = replace(space, zero_stage=(3,))
        found = plan(place.job, place.cluster, place.on_dies, space=space, time_limit_s=seconds / 4, tie_margin=0.0)
        if found.evaluation is None:
            return None, None
        # the search knows no streams, so with a store its gap is not that of the step
        return place.stored(found.plan), None if place.store else found.certificate.gap

    def free() -> tuple[Evaluation | None, float | None]:
        found = free_plan(place.job, place.cluster, place.framework, FreeLimits(time_limit_s=seconds), simulate_top=3)
        return found.evaluation, found.certificate.gap

    def partitioned() -> tuple[Evaluation | None, float | None]:
        return accpar(place.job, place.cluster, place.framework, time.monotonic() + seconds / 2), None

    mappings: dict[str, Callable[[], tuple[Evaluation | None, float | None]]] = {"free": free}
    mappings |= {name: lambda name=name: named(name) for name in BASELINES}
    return mappings | {"AccPar": partitioned}


def published(place: Place) -> dict[str, Callable[[], tuple[Evaluation | None, float | None]]]:
    """Every mapping as it was published."""

    def named(name: str) -> tuple[Evaluation | None, float | None]:
        chosen = as_published(name, place.job, place.cluster)
        if place.store:
            chosen = replace(chosen, zero_stage=3)
        return place.stored(chosen), None

    def partitioned() -> tuple[Evaluation | None, float | None]:
        return accpar_as_published(place.job, place.cluster, place.framework), None

    found: dict[str, Callable[[], tuple[Evaluation | None, float | None]]] = {}
    found |= {f"{name}, as published": lambda name=name: named(name) for name in BASELINES}
    return found | {"AccPar, as published": partitioned}


def mapped(place: Place, mapping: str, run: Callable[[], tuple[Evaluation | None, float | None]]) -> Mapped:
    """One row of the table."""
    start = time.process_time()
    try:
        found, gap = run()
    except InputError as refusal:
        found, gap, words = None, None, str(refusal)
    else:
        words = "nothing fits" if found is None else plan_words(found.plan)
    row = Mapped(place.job.model.name, place.wafer.name, place.wafers, (), mapping, words, None, None, None, None)
    if found is None:
        return replace(row, cpu_s=time.process_time() - start)
    step = found.step_time_s
    return replace(
        row,
        store=() if found.plan.wafer is None else found.plan.wafer.store,
        step_s=step,
        tokens_per_s=place.job.tokens_per_step / step,
        peak_gb=found.peak_bytes / 1e9,
        missing_gb=found.missing_bytes / 1e9,
        store_s=found.breakdown.get("store", 0.0),
        gap=gap,
        cpu_s=time.process_time() - start,
    )


def study(model: str, wafer: str, seconds: float) -> Iterator[Mapped]:
    """All mappings of a model on a wafer, on the fewest wafers of those tried that some plan of ours fits on."""
    every = list(places(model, wafer))
    tried = [(place, mapped(place, "free", tuned(place, seconds)["free"])) for place in every[:1]]
    if tried[0][1].step_s is None:
        tried += [(place, mapped(place, "free", tuned(place, seconds)["free"])) for place in every[1:]]
    place, ours = next((found for found in tried if found[1].step_s is not None), tried[0])
    yield ours
    mappings = {name: run for name, run in tuned(place, seconds).items() if name != "free"}
    for name, run in (mappings | published(place)).items():
        yield mapped(place, name, run)


def main() -> None:
    """Prints a markdown table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", action="append")
    parser.add_argument("--wafer", action="append")
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--json")
    given = parser.parse_args()
    print("| model | wafer | mapping | step s | tokens/s | free is faster by | GB a die | missing GB | gap | plan |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    rows: list[Mapped] = []
    for wafer in given.wafer or WAFERS:
        for model in given.model or MODELS:
            first: Mapped | None = None
            for row in study(model, wafer, given.seconds):
                rows.append(row)
                first = first or row
                print(_line(row, first), flush=True)
                if given.json:
                    with open(given.json, "w", encoding="utf-8") as file:
                        json.dump([asdict(each) for each in rows], file, indent=1)


def _line(row: Mapped, first: Mapped) -> str:
    where = f"{row.wafers} × {row.wafer}" + (f", {' and '.join(row.store)} in the store" if row.store else "")
    if row.step_s is None or row.tokens_per_s is None:
        return f"| {row.model} | {where} | {row.mapping} | – | – | – | – | – | – | {row.plan} |"
    faster = "–" if first.step_s is None else f"{row.step_s / first.step_s:.2f}"
    bound = f" ({row.store_s:.2f} for the store)" if row.store_s else ""
    gap = "–" if row.gap is None else f"{row.gap:.1%}"
    missing = f"{row.missing_gb:,.1f}" if row.missing_gb else "fits"
    return (
        f"| {row.model} | {where} | {row.mapping} | {row.step_s:.2f}{bound} | {row.tokens_per_s:,.0f} "
        f"| {faster} | {row.peak_gb:.1f} | {missing} | {gap} | {row.plan} |"
    )


if __name__ == "__main__":
    main()
