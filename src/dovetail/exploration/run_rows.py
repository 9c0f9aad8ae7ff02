"""What a run has found of its designs, from its parts: figures of those evaluated, lower bounds of the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.exploration.memory import InMemoryStore
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.exploration.store import Part, RunStore

#: Levels whose rows have figures, and those that have bounds alone, the highest first.
_SEARCHED, _BOUNDED = ("reference", "warm_start", "search", "sample"), ("profile", "physical")

Store = RunStore | InMemoryStore


def parts_of(store: Store, levels: Sequence[str]) -> list[Part]:
    """The finished batches of some levels that have rows."""
    if isinstance(store, InMemoryStore):
        return []
    numbered = [(level, number) for level in levels for number in sorted(store.numbers(level))]
    parts = [part for level, number in numbered if (part := store.read(level, number)) is not None]
    return [part for part in parts if len(part.columns["code"])]


def evaluated_rows(study: ResolvedStudy, store: Store, levels: Sequence[str] = _SEARCHED) -> tuple[Ints, Floats]:
    """Candidates within limits that have plans, once each with their best figures, and the figures."""
    codes, figures = [np.zeros(0, np.int64)], [np.zeros((0, len(study.objectives)))]
    for part in parts_of(store, levels):
        done = np.asarray(part.columns["evaluated"], np.bool_)
        here = np.asarray(part.columns["code"], np.int64)[done]
        rows = np.stack([np.asarray(part.columns[f"figure.{name}"])[done] for name in study.objectives], axis=1)
        # only chips to compare with may be outside of them
        within = np.array(study.keeps(here), np.bool_) if part.level == "reference" else np.ones(len(here), np.bool_)
        codes, figures = [*codes, here[within]], [*figures, rows[within]]
    all_codes, all_figures = np.concatenate(codes), np.concatenate(figures)
    order = np.lexsort((all_figures[:, 0], all_codes))
    once, first = np.unique(all_codes[order], return_index=True)
    return once, all_figures[order][first]


def bounded_rows(study: ResolvedStudy, store: Store, levels: Sequence[str] = _BOUNDED) -> tuple[Ints, Floats]:
    """Candidates that were bounded, once each with their highest bound, and that as a mean over jobs."""
    codes, means = [np.zeros(0, np.int64)], [np.zeros(0)]
    for part in parts_of(store, levels):
        least = np.stack([np.asarray(part.columns[f"least_s.{job.name}"]) for job in study.jobs], axis=1)
        codes.append(np.asarray(part.columns["code"], np.int64))
        means.append(np.atleast_1d(study.mean.of(least)))
    all_codes, all_means = np.concatenate(codes), np.concatenate(means)
    order = np.lexsort((-all_means, all_codes))
    once, first = np.unique(all_codes[order], return_index=True)
    return once, all_means[order][first]


def worst_ratios(study: ResolvedStudy, store: Store, optima: Sequence[float]) -> tuple[Ints, Floats]:
    """Candidates that have plans in every scenario, and their largest ratio to the best of one."""
    (name,) = study.objectives
    ratios: dict[int, list[float]] = {}
    for number, optimum in enumerate(optima):
        for part in parts_of(store, (f"regret{number}_sample",)):
            done = np.asarray(part.columns["evaluated"], np.bool_)
            figures = np.asarray(part.columns[f"figure.{name}"])[done] / optimum
            for code, ratio in zip(np.asarray(part.columns["code"])[done].tolist(), figures.tolist(), strict=True):
                ratios.setdefault(int(code), []).append(float(ratio))
    whole = {code: max(each) for code, each in ratios.items() if len(each) == len(optima)}
    codes = np.array(sorted(whole), np.int64)
    return codes, np.array([[whole[code]] for code in codes.tolist()], np.float64).reshape(-1, 1)
