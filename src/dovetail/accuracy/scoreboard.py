"""The accuracy scoreboard: errors of step time and memory, ranking, and where the model is worst."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal, TypeVar, get_args

from dovetail.accuracy.error_figures import Errors, errors_of, macro_average
from dovetail.accuracy.predict import Prediction
from dovetail.accuracy.ranking import Ranking, RatioErrors, rank, ratio_errors
from dovetail.accuracy.rows import MeasuredRun, MeasuredRuns, Refusal
from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.step.ties import TIE_MARGIN

#: A measured run fits; predicting otherwise counts as a miss if more than this share of the memory is missing.
TOLERATED_SHARE = 0.02
WORST = 10

Key = Literal["family", "chip", "framework", "model"]
KEYS: tuple[Key, ...] = get_args(Key)

NameT = TypeVar("NameT", bound=Hashable)


@frozen
class Slice:
    """The figures over a part of the runs."""

    rows: int
    step_time: Errors
    memory: Mapping[str, Errors]
    ranking: Ranking
    called_infeasible: int
    transfer: int
    """runs on a chip or framework that no other family has: fits without them know nothing about either"""
    left_out: Errors | None
    """of step time, with every family predicted by a fit to the others"""


@frozen
class WorstGroup:
    """Runs of one model on one chip from one family, and their errors."""

    family: str
    chip: str
    model: str
    step_time: Errors


@frozen
class LeftOut:
    """The figures with every family predicted by a fit to the others."""

    step_time: Errors
    macro: Errors


@frozen
class Scoreboard:
    """Predictions against measured runs."""

    rows_read: int
    rows_used: int
    """runs behind the figures; other rows that are not refused have an incompletely known configuration"""
    refused: tuple[Refusal, ...]
    step_time: Errors
    macro: Errors
    """mean over families: the headline"""
    families: int
    memory: Mapping[str, Errors]
    """by kind of measurement"""
    ranking: Ranking
    called_infeasible: Mapping[str, float]
    """id of a measured run predicted not to fit → share of the chip's memory that is missing"""
    by: Mapping[Key, Mapping[str, Slice]]
    worst: tuple[WorstGroup, ...]
    left_one_family_out: LeftOut | None = None
    ratios: RatioErrors | None = None
    """of two plans measured under equal conditions; None without such plans"""


def score(
    measured: MeasuredRuns,
    answers: Iterable[Prediction | Refusal],
    left_out: Mapping[str, Prediction] | None = None,
) -> Scoreboard:
    """The scoreboard; `left_out` has by run id what was predicted without the run's family."""
    predictions: list[Prediction] = []
    refused = list(measured.refused)
    for answer in answers:
        if isinstance(answer, Prediction):
            predictions.append(answer)
        else:
            refused.append(answer)
    if not predictions:
        raise _nothing_to_score(measured, refused)
    transfer = _transfer(predictions)
    by: dict[Key, dict[str, Slice]] = {
        key: {name: _slice(part, transfer, left_out or {}) for name, part in _parts(predictions, name_of).items()}
        for key, name_of in NAMES.items()
    }
    return Scoreboard(
        rows_read=measured.rows_read,
        rows_used=len(predictions),
        refused=tuple(refused),
        step_time=_step_time(predictions),
        macro=_macro(predictions),
        families=len(by["family"]),
        memory=_memory(predictions),
        ranking=rank(predictions),
        called_infeasible={p.run.id: p.missing_share for p in predictions if _called_infeasible(p)},
        by=by,
        worst=_worst(predictions),
        left_one_family_out=_left_out(measured.runs, left_out or {}),
        ratios=ratio_errors(predictions, left_out),
    )


def reasons(refused: Sequence[Refusal]) -> list[tuple[str, tuple[str, ...]]]:
    """Why rows are refused: each reason with its run ids, the most frequent first."""
    ids: defaultdict[str, list[str]] = defaultdict(list)
    for refusal in refused:
        ids[refusal.reason].append(refusal.id)
    return sorted(((reason, tuple(run_ids)) for reason, run_ids in ids.items()), key=lambda each: -len(each[1]))


def fields(board: Scoreboard, by: Key = "family") -> dict[str, Any]:
    """The JSON fields others rely on; ratios are fractions."""
    answer: dict[str, Any] = {
        "rows": {
            "read": board.rows_read,
            "used": board.rows_used,
            "refused": [{"id": r.id, "reason": r.reason} for r in board.refused],
        },
        "step_time": asdict(board.step_time),
        "macro": {"families": board.families, **asdict(board.macro)},
        "memory": {kind: asdict(errors) for kind, errors in board.memory.items()},
        "ranking": asdict(board.ranking),
        "tie_margin": {"margin": TIE_MARGIN, "measured": None if board.ratios is None else asdict(board.ratios)},
        "called_infeasible": [{"id": id_, "missing_share": share} for id_, share in board.called_infeasible.items()],
        "grouped_by": by,
        "by": {name: asdict(part) for name, part in board.by[by].items()},
        "worst": [asdict(group) for group in board.worst],
    }
    if board.left_one_family_out is not None:
        answer["left_one_family_out"] = asdict(board.left_one_family_out)
    return answer


def fields_without_times(measured: MeasuredRuns) -> dict[str, Any]:
    """The same of a file whose rows have outcomes and no speed."""
    refused = [{"id": r.id, "reason": r.reason} for r in measured.refused]
    rows = {"read": measured.rows_read, "used": 0, "refused": refused}
    empty = dict.fromkeys(("step_time", "macro", "ranking"))
    return {"rows": rows, **empty, "memory": {}, "by": {}}


def _nothing_to_score(measured: MeasuredRuns, refused: Sequence[Refusal]) -> InputError:
    what = f"there is none that can be scored among {measured.rows_read:,} rows"
    if refused:
        return InputError("runs", what, f"the first refused is {refused[0].id}, {refused[0].reason}")
    return InputError("runs", what, "a row is scored where its tier is A, B or empty")


#: The name of a run in a breakdown.
NAMES: Mapping[Key, Callable[[MeasuredRun], str]] = {
    "family": lambda run: run.family or "unnamed",
    "chip": lambda run: run.task.cluster.chip.name,
    "framework": lambda run: run.task.framework.name,
    "model": lambda run: run.architecture if isinstance(run.architecture, str) else run.architecture.name,
}


def _parts(predictions: Iterable[Prediction], name: Callable[[MeasuredRun], NameT]) -> dict[NameT, list[Prediction]]:
    """The predictions grouped by a name of their runs, sorted by name."""
    parts: defaultdict[NameT, list[Prediction]] = defaultdict(list)
    for prediction in predictions:
        parts[name(prediction.run)].append(prediction)
    return dict(sorted(parts.items(), key=lambda part: str(part[0])))


def _transfer(predictions: Iterable[Prediction]) -> frozenset[str]:
    """Ids of the runs on a chip or framework that only one of several families has."""
    families: defaultdict[tuple[Key, str], set[str]] = defaultdict(set)
    names_of: dict[str, list[tuple[Key, str]]] = {}
    for prediction in predictions:
        names: list[tuple[Key, str]] = [(key, NAMES[key](prediction.run)) for key in ("chip", "framework")]
        names_of[prediction.run.id] = names
        for name in names:
            families[name].add(prediction.run.family)
    if len(set[str]().union(*families.values())) == 1:
        return frozenset()
    return frozenset(run for run, names in names_of.items() if any(len(families[name]) == 1 for name in names))


def _slice(predictions: Sequence[Prediction], transfer: frozenset[str], left_out: Mapping[str, Prediction]) -> Slice:
    without = [left_out[p.run.id] for p in predictions if p.run.id in left_out]
    return Slice(
        rows=len(predictions),
        step_time=_step_time(predictions),
        memory=_memory(predictions),
        ranking=rank(predictions),
        called_infeasible=sum(map(_called_infeasible, predictions)),
        transfer=sum(p.run.id in transfer for p in predictions),
        left_out=_step_time(without) if without else None,
    )


def _step_time(predictions: Iterable[Prediction]) -> Errors:
    return errors_of(p.step_time_ratio for p in predictions)


def _macro(predictions: Iterable[Prediction]) -> Errors:
    return macro_average([_step_time(part) for part in _parts(predictions, NAMES["family"]).values()])


def _memory(predictions: Sequence[Prediction]) -> dict[str, Errors]:
    """Errors by kind of measurement, since they count different things."""
    ratios: defaultdict[str, list[float]] = defaultdict(list)
    for prediction in predictions:
        kind, ratio = prediction.run.memory_kind, prediction.memory_ratio
        if kind is not None and ratio is not None:
            ratios[kind].append(ratio)
    return {kind: errors_of(ratios[kind]) for kind in sorted(ratios)}


def _called_infeasible(prediction: Prediction) -> bool:
    return prediction.missing_share > TOLERATED_SHARE


def _worst(predictions: Sequence[Prediction]) -> tuple[WorstGroup, ...]:
    parts = _parts(predictions, lambda run: (NAMES["family"](run), NAMES["chip"](run), NAMES["model"](run)))
    groups = [WorstGroup(*name, _step_time(part)) for name, part in parts.items()]
    return tuple(sorted(groups, key=lambda group: -group.step_time.mape)[:WORST])


def _left_out(runs: Iterable[MeasuredRun], by_id: Mapping[str, Prediction]) -> LeftOut | None:
    predictions = [by_id[run.id] for run in runs if run.id in by_id]
    return LeftOut(_step_time(predictions), _macro(predictions)) if predictions else None
