"""The driver of a study whose space is too large to enumerate: generations of a sampler."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.errors import InputError
from dovetail.exploration.drive import Drive
from dovetail.exploration.fidelity import Worker
from dovetail.exploration.operator_score import operator_score
from dovetail.exploration.pareto_front import ParetoFront
from dovetail.exploration.samplers import SAMPLERS, WANTS_FIGURES
from dovetail.exploration.scores import Scores
from dovetail.exploration.store import Part
from dovetail.exploration.tasks import CandidateBatch, Task

#: Candidates per generation of a sampler.
GENERATION = 64


class SampledDrive(Drive):
    """One run of a study whose designs are sampled."""

    _levels = ("sampled",)

    def _explored(self) -> tuple[ParetoFront, list[Part], Floats]:
        """Generations of a sampler, each told before the next is asked."""
        study = self.study
        if len(study.explored) > 1:
            where, what = "cluster.chips", "has several numbers"
            if len(study.counts) == 1:
                where, what = "hardware", "is of several kinds, or has several networks"
            raise InputError(where, what, "give one if designs are sampled")
        worker = Worker(study)
        space, budget = study.positions[0].space, study.search.evaluations
        sampler = SAMPLERS[study.search.method](space, len(study.objectives), study.seed, operator_score(study))
        front, asked, first = self.compared(), 0, 0
        searched = [part for part in self.references if self._eligible(part)]
        while asked < budget:
            designs = sampler.ask(min(GENERATION, budget - asked))
            if not len(designs):
                break
            asked += len(designs)
            self.left = budget - asked
            codes, bounds_s = np.asarray(designs, np.int64), worker.physical_of(0, designs)
            parts: list[Part] = []
            front = self._generation(codes, bounds_s, front, first, parts)
            first += -(-len(codes) // self._batch)
            searched += parts
            if self.stopped is not None:
                break
            sampler.tell(designs, self._told(codes, bounds_s, parts))
            self.counted = self.counts["sampled"] = asked
        return front, searched, np.concatenate([self._open_points(searched), worker.ideal_points()])

    @property
    def _wants_figures(self) -> bool:
        """Whether no search is cut short by what is known."""
        return self.study.search.method in WANTS_FIGURES

    @property
    def _batch(self) -> int:
        """Designs of a batch: those of one are also compared with each other."""
        return 1 if self._wants_figures else self.study.search.batch

    def _generation(
        self, codes: Ints, bounds_s: Floats, front: ParetoFront, first: int, parts: list[Part]
    ) -> ParetoFront:
        size, before = self._batch, self._empty.points if self._wants_figures else front.points

        def task_of(k: int, _: ParetoFront) -> Task | None:
            rows = slice((k - first) * size, (k - first + 1) * size)
            return CandidateBatch("sample", k, codes[rows], bounds_s[rows], before) if len(codes[rows]) else None

        return self._run_level("sample", None, task_of, front, parts.append, first)

    def _told(self, codes: Ints, bounds_s: Floats, parts: list[Part]) -> Floats:
        """What a sampler is told: figures, or their lower bounds if a candidate's search was stopped."""
        study, proven_s = self.study, bounds_s.copy()
        row_of = {int(code): row for row, code in enumerate(codes.tolist())}
        rows_of = [[row_of[int(code)] for code in np.asarray(part.columns["code"]).tolist()] for part in parts]
        for part, rows in zip(parts, rows_of, strict=True):
            least_s = np.stack([np.asarray(part.columns[f"least_s.{job.name}"]) for job in study.jobs], axis=1)
            proven_s[rows] = np.maximum(proven_s[rows], least_s)
        told = Scores.of(study, codes).points(study.mean.of(proven_s))
        for part, rows in zip(parts, rows_of, strict=True):
            done = np.asarray(part.columns["evaluated"], np.bool_)
            figures = np.stack([np.asarray(part.columns[f"figure.{name}"]) for name in study.objectives], axis=1)
            told[np.array(rows, np.int64)[done]] = figures[done]
        return told
