"""The driver of a study whose space is too large to enumerate: generations of a sampler."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.errors import InputError
from dovetail.exploration.drive import Drive
from dovetail.exploration.fidelity import CandidateBatch, Task, Worker
from dovetail.exploration.lower_bounds import candidate_lower_bounds
from dovetail.exploration.pareto_front import ParetoFront
from dovetail.exploration.samplers import SAMPLERS
from dovetail.exploration.store import Part

#: Candidates per generation of a sampler.
GENERATION = 64


class SampledDrive(Drive):
    """One run of a study whose designs are sampled."""

    _levels = ("sampled",)

    def _explored(self) -> tuple[ParetoFront, list[Part], Floats]:
        """Generations of a sampler, each told before the next is asked."""
        study = self.study
        if len(study.counts) > 1:
            raise InputError("cluster.chips", "has several numbers", "give one if designs are sampled")
        worker = Worker(study)
        space, budget = study.spaces[0], study.search.evaluations
        sampler = SAMPLERS[study.search.method](space, len(study.objectives), study.seed)
        front, searched, asked, first = self._empty, list[Part](), 0, 0
        while asked < budget:
            designs = sampler.ask(min(GENERATION, budget - asked))
            if not len(designs):
                break
            asked += len(designs)
            self.left = budget - asked
            codes, bounds_s = np.asarray(designs, np.int64), worker.physical_of(0, designs)
            parts: list[Part] = []
            front = self._generation(codes, bounds_s, front, first, parts)
            first += -(-len(codes) // study.search.batch)
            searched += parts
            if self.stopped is not None:
                break
            sampler.tell(designs, self._told(codes, bounds_s, parts))
            self.counted = self.counts["sampled"] = asked
        return front, searched, np.concatenate([self._open_points(searched), worker.ideal_points()])

    def _generation(
        self, codes: Ints, bounds_s: Floats, front: ParetoFront, first: int, parts: list[Part]
    ) -> ParetoFront:
        size, before = self.study.search.batch, front.points

        def task_of(k: int, _: ParetoFront) -> Task | None:
            rows = slice((k - first) * size, (k - first + 1) * size)
            return CandidateBatch("sample", k, codes[rows], bounds_s[rows], before) if len(codes[rows]) else None

        return self._run_level("sample", None, task_of, front, parts.append, first)

    def _told(self, codes: Ints, bounds_s: Floats, parts: list[Part]) -> Floats:
        """What a sampler is told: figures, or their lower bounds if a candidate's search was stopped."""
        study = self.study
        told = candidate_lower_bounds(study, codes).points(bounds_s @ study.weights)
        row_of = {int(code): row for row, code in enumerate(codes.tolist())}
        for part in parts:
            done = np.asarray(part.columns["evaluated"], np.bool_)
            figures = np.stack([np.asarray(part.columns[f"figure.{name}"]) for name in study.objectives], axis=1)
            rows = [row_of[int(code)] for code in np.asarray(part.columns["code"])[done].tolist()]
            told[rows] = figures[done]
        return told
