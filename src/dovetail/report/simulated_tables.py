"""Simulation beside the model as Markdown: every family with both figures, and the groups where they differ most."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.accuracy import Errors
from dovetail.accuracy.simulated import TIER, Compared, GroupDifference, SimulatedScore
from dovetail.report.accuracy_tables import NONE, Marked, percent, table


def simulated_tables(score: SimulatedScore) -> str:
    """The part of the accuracy page about simulation."""
    all_runs = score.all_runs
    summary = (
        f"The {all_runs.rows:,} runs of tier {TIER}, [simulated](../how-to/simulate.md): "
        f"**{percent(score.macro.mape)}** off (MAPE, mean over {len(score.families)} families), "
        f"where the model is {percent(score.model_macro.mape)} off. "
        f"A simulated step takes {percent(all_runs.ratio - 1, signed=True)} to the model's (mean)."
    )
    rows = [_row(name, each) for name, each in score.families.items()]
    rows.append(_row("all runs", all_runs))
    means = (Marked("**mean over families**"), f"{all_runs.rows:,}", *_both(score.model_macro, score.macro), NONE, NONE)
    columns = ("family", "runs", "MAPE", "simulated", "bias", "simulated", "regret", "simulated")
    parts = [summary, table(columns, [*rows, means])]
    if score.nearer:
        parts += ["Where simulation helps most:", _groups(score.nearer)]
    if score.further:
        parts += ["Where it is further off than the model:", _groups(score.further)]
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
