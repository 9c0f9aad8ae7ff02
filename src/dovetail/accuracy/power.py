"""Power and energy of steps against published figures of training runs.

`python -m dovetail.accuracy.power` prints the table of docs/explanation/energy.md.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping
from importlib.resources import files

from dovetail.cost.calibration import calibration
from dovetail.frozen import frozen
from dovetail.plans.plan_file import task_of
from dovetail.step.energy import step_energy
from dovetail.step.evaluate import evaluation_of, step_of
from dovetail.step.facts import plan_facts
from dovetail.step.power import Ranged, step_power


@frozen
class PublishedPower:
    """A published figure: watts for each chip, or joules for each token, of a chip alone or with what is around it."""

    id: str
    chip: str
    scope: str
    figure: float
    unit: str
    #: S: read; M: recalled
    tier: str
    #: None where no speed is published: the model's own
    mfu: float | None
    #: a plan file of the run or one like it
    document: Mapping[str, object]
    source: str
    note: str


@frozen
class PowerPrediction:
    """What the model says of a published run, at its MFU."""

    run: PublishedPower
    mfu: float
    predicted: Ranged

    @property
    def inside(self) -> bool:
        """Whether the figure lies between the ends."""
        return self.predicted.low <= self.run.figure <= self.predicted.high


def published_power() -> tuple[PublishedPower, ...]:
    """The published figures with their sources."""
    text = (files("dovetail.accuracy") / "data" / "published_power.csv").read_text(encoding="utf-8")
    return tuple(_run(row) for row in csv.DictReader(text.splitlines()))


def _run(row: Mapping[str, str]) -> PublishedPower:
    chips, width = int(row["chips"]), int(row["tensor_parallel"])
    plan = {
        "tensor_parallel": width,
        "zero_stage": int(row["zero_stage"]),
        "recompute": row["recompute"],
        "micro_batch": 2,
    }
    # micro-batches of two, and eight sequences a chip: what happens once a step weighs little, as in the runs
    job = {"model": row["model"], "seq_len": int(row["seq_len"]), "global_batch": 8 * chips // width}
    cluster = {"chip": row["chip"], "chips": chips, "framework": row["framework"]}
    return PublishedPower(
        id=row["id"],
        chip=row["chip"],
        scope=row["scope"],
        figure=float(row["figure"]),
        unit=row["unit"],
        tier=row["tier"],
        mfu=float(row["mfu"]) if row["mfu"] else None,
        document={"job": job, "cluster": cluster, "plan": plan},
        source=row["source"],
        note=row["note"],
    )


def predicted_power(run: PublishedPower) -> PowerPrediction:
    """The power or energy of a run at its published MFU, or at the model's speed where none is published."""
    task = task_of(dict(run.document), run.id)
    plan, job, cluster = task.plan, task.job, task.cluster
    facts = plan_facts(plan, task.framework, job)
    step = step_of(plan, job, cluster, facts, calibration(cluster.chip, job.precision).efficiencies, energy=True)
    own = evaluation_of(step, plan, job, cluster, facts, "")
    mfu = own.mfu if run.mfu is None else run.mfu
    step_s = own.step_time_s * own.mfu / mfu
    joules, _ = step_energy(plan, step.profiles, step.contents, step.recompute, cluster, step_s)
    assert joules is not None, "published runs are of chips with a known power"
    power = step_power(joules, step_s * plan.chips, hosted=True)
    watts = power.chip if run.scope == "chip" else power.system
    assert watts is not None, "published runs have hosts"
    tokens_per_chip_s = job.tokens_per_step / step_s / plan.chips
    return PowerPrediction(run, mfu, watts.times(1 / tokens_per_chip_s) if run.unit == "J/token" else watts)


def main() -> None:
    """Print the table of the docs."""
    sys.stdout.write("| run | chip | MFU | figure | | predicted | range | |\n|---|---|---|---|---|---|---|---|\n")
    for found in map(predicted_power, published_power()):
        run = found.run
        form = ",.0f" if run.unit == "W" else ".3f"
        mfu = f"{found.mfu:.0%}" if run.mfu else f"({found.mfu:.0%})"
        value, low, high = (
            format(each, form) for each in (found.predicted.value, found.predicted.low, found.predicted.high)
        )
        cells = (
            run.id, run.chip, mfu, f"{run.figure:{form}} {run.unit}", f"{run.scope}, {run.tier}",
            f"{value} ({found.predicted.value / run.figure - 1:+.0%})", f"{low} to {high}",
            "" if found.inside else "outside",
        )  # fmt: skip
        sys.stdout.write(f"| {' | '.join(cells)} |\n")


if __name__ == "__main__":
    main()
