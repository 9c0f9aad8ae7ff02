"""Designs evolved from the best so far (NSGA-II), for spaces too large to enumerate; the only module using Optuna.

We count generations by what was told, so neither the sizes of asks and tells nor a restart change the result.
"""
# the library's types are partly unknown
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.samplers import NSGAIISampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from dovetail.arrays import Floats, Ints
from dovetail.exploration.unseen import Unseen
from dovetail.hardware.design_space import DesignSpace

POPULATION = 64


class Evolutionary:
    """Evolves new designs within the limits; if there are too few, adds random ones.

    Deb, Pratap, Agarwal and Meyarivan, "A fast and elitist multiobjective genetic algorithm: NSGA-II",
    IEEE Transactions on Evolutionary Computation 6(2), 2002.
    """

    #: Attempts to evolve the missing designs before adding random ones.
    _ROUNDS = 8

    def __init__(self, space: DesignSpace, num_objectives: int, seed: int, population: int = POPULATION) -> None:
        assert num_objectives > 0, "something to minimise"
        assert population >= 2, "a child has two parents"
        self._space, self._num_objectives, self._seed, self._population = space, num_objectives, seed, population
        self._unseen = Unseen(space, seed)
        self._shape = tuple(len(axis) for axis in space.axes)
        self._genes: dict[str, BaseDistribution] = {
            str(axis): IntDistribution(0, length - 1) for axis, length in enumerate(self._shape) if length > 1
        }
        self._parents: list[FrozenTrial] = []
        self._young: list[FrozenTrial] = []
        """told since the parents were selected"""
        self._told = 0
        self._pending: set[int] = set()

    def ask(self, n: int) -> Ints:
        """Children of the parents; random designs before there are any, or if too few children are new."""
        evolved = self._evolved(n) if self._parents and self._genes else []
        asked = np.array([*evolved, *self._unseen.take(n - len(evolved)).tolist()], np.int64)
        self._pending.update(asked.tolist())
        return asked

    def tell(self, indices: Ints, objectives: Floats) -> None:
        """Adds designs to the generation; a full one competes with its parents to become the next parents."""
        indices = np.asarray(indices, np.int64)
        objectives = np.asarray(objectives, np.float64)
        assert objectives.shape == (len(indices), self._num_objectives), "a row of objectives for each design"
        # a design with one infinite objective is as useless as one with all
        fits = (objectives < np.inf).sum(axis=1) == self._num_objectives
        objectives = np.where(fits[:, None], objectives, np.inf)
        self._unseen.leave_out(indices)
        self._pending.difference_update(indices.tolist())
        for genes, values in zip(self._genes_of(indices), objectives.tolist(), strict=True):
            trial = create_trial(state=TrialState.COMPLETE, values=values, params=genes, distributions=self._genes)
            # the library identifies trials by number
            trial.number = self._told
            self._told += 1
            self._young.append(trial)
            if len(self._young) == self._population:
                breeder = _Breeder(self._genes, self._parents, self._young, self._population, seed=0)
                self._parents = breeder.select_parent(_study(breeder, self._num_objectives), 1)
                self._young = []

    def _evolved(self, n: int) -> list[int]:
        """New children within the limits, as many as we find."""
        # seeded by what was told, so that a restart continues with the same children
        key = np.random.SeedSequence([self._seed, self._told, len(self._pending)])
        seed = int(key.generate_state(1, np.uint32)[0])
        study = _study(_Breeder(self._genes, self._parents, [], self._population, seed), self._num_objectives)
        children_new: list[int] = []
        # a nearly exhausted space has fewer designs left than asked for
        n = min(n, self._space.size - len(self._unseen.seen))
        for _ in range(self._ROUNDS):
            if len(children_new) == n:
                break
            children = [study.ask(self._genes).params for _ in range(n - len(children_new))]
            indices = self._indices_of(children)
            for index in indices[self._space.keeps(indices)].tolist():
                if index not in self._unseen.seen:
                    self._unseen.seen.add(index)
                    children_new.append(index)
        return children_new

    def _indices_of(self, genes: list[dict[str, int]]) -> Ints:
        """The index counts through the axes, the last one fastest."""
        columns = [[one.get(str(axis), 0) for one in genes] for axis in range(len(self._shape))]
        return np.asarray(np.ravel_multi_index(tuple(np.array(columns, np.int64)), self._shape), np.int64)

    def _genes_of(self, indices: Ints) -> Iterator[dict[str, int]]:
        columns = np.unravel_index(indices, self._shape) if self._shape else ()
        for row in range(len(indices)):
            yield {gene: int(columns[int(gene)][row]) for gene in self._genes}


class _Breeder(NSGAIISampler):
    """The library's selection and crossover on our own generations: it would scan all trials each time."""

    def __init__(
        self,
        genes: dict[str, BaseDistribution],
        parents: list[FrozenTrial],
        young: list[FrozenTrial],
        population: int,
        seed: int,
    ) -> None:
        super().__init__(population_size=population, seed=seed)
        self._our_genes, self._our_parents, self._our_young = genes, parents, young

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All genes are known from the start."""
        del study, trial
        return self._our_genes

    def get_trial_generation(self, study: optuna.Study, trial: FrozenTrial) -> int:
        """Everything asked belongs to the generation after the parents."""
        del study, trial
        return 1

    def get_population(self, study: optuna.Study, generation: int) -> list[FrozenTrial]:
        """The full generation that competes with its parents."""
        del study, generation
        return self._our_young

    def get_parent_population(self, study: optuna.Study, generation: int) -> list[FrozenTrial]:
        """The current parents."""
        del study, generation
        return self._our_parents


def _study(breeder: _Breeder, num_objectives: int) -> optuna.Study:
    """A private in-memory study."""
    with _silent():
        return optuna.create_study(sampler=breeder, directions=[StudyDirection.MINIMIZE] * num_objectives)


@contextmanager
def _silent() -> Generator[None]:
    """Silences the library's log inside the block and restores its level afterwards."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
