"""Simulation beside the model as Markdown: every family with both figures, and the groups where they differ most."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.accuracy import Errors
from dovetail.accuracy.simulated import TIER, Compared, GroupDifference, SimulatedScore
from dovetail.report.accuracy_tables import NONE, Marked, percent, table


def simulated_tables(found: SimulatedScore) -> str:
    """The part of the accuracy page about simulation."""
    every = found.all_runs
    summary = (
        f"The {every.rows:,} runs of tier {TIER}, [simulated](simulate.md): **{percent(found.macro.mape)}** off (MAPE, "
        f"mean over {len(found.families)} families), where the model is {percent(found.model_macro.mape)} off. "
        f"A simulated step takes {percent(every.ratio - 1, signed=True)} to the model's (mean)."
    )
    rows = [_row(name, each) for name, each in found.families.items()]
    rows.append(_row("all runs", every))
    means = (Marked("**mean over families**"), f"{every.rows:,}", *_both(found.model_macro, found.macro), NONE, NONE)
    columns = ("family", "runs", "MAPE", "simulated", "bias", "simulated", "regret", "simulated")
    parts = [summary, table(columns, [*rows, means])]
    if found.nearer:
        parts += ["Where simulation helps most:", _groups(found.nearer)]
    if found.further:
        parts += ["Where it is further off than the model:", _groups(found.further)]
    return "\n\n".join(parts)


def _row(name: str, each: Compared) -> tuple[str, ...]:
    regrets = (each.model.ranking.mean_regret, each.simulation.ranking.mean_regret)
    ranked = (NONE if regret is None else percent(regret) for regret in regrets)
    return (name, f"{each.rows:,}", *_both(each.model.step_time, each.simulation.step_time), *ranked)


def _both(model: Errors, simulation: Errors) -> tuple[str, ...]:
    biases = (percent(each.bias, signed=True) for each in (model, simulation))
    return percent(model.mape), percent(simulation.mape), *biases


def _groups(groups: Sequence[GroupDifference]) -> str:
    rows = [
        (g.family, g.chip, g.model, f"{g.rows:,}", percent(g.model_mape), percent(g.simulation_mape), _longer(g))
        for g in groups
    ]
    return table(("family", "chip", "model", "runs", "MAPE", "simulated", "simulated step"), rows, texts=3)


def _longer(group: GroupDifference) -> str:
    return percent(group.ratio - 1, signed=True)
