"""The driver of a study whose plans are too many to profile: groups of designs bounded together, best first.

A plan search that must beat something is short where it cannot. So we search plans on the best of every variable of
many designs: what it proves holds for all of them. Groups that may still matter are split; single designs are searched.
"""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.exploration.drive import Drive
from dovetail.exploration.fidelity import CandidateBatch, Task
from dovetail.exploration.group_tasks import FirstDesign, GroupBatch
from dovetail.exploration.groups import Group, first_groups, halves, still_open
from dovetail.exploration.pareto_front import ParetoFront
from dovetail.exploration.replays import codes_of, plans_of
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.exploration.stopping import StoppedError
from dovetail.exploration.store import Part
from dovetail.frozen import frozen

#: Batches that go ahead of what is known: each takes many seconds.
WINDOW = 2


@frozen
class OpenGroup:
    """A group that may still matter."""

    group: Group
    #: the lowest bound in the first objective
    lowest: float


@frozen
class BoundedGroups:
    """What is known after some batches."""

    front: ParetoFront
    groups: tuple[OpenGroup, ...]
    #: a design of the front, and the plans of every job on it
    planned: tuple[int, tuple[str, ...]] = 0, ()


class GroupDrive(Drive):
    """One run of a study of large plan spaces."""

    _levels = ("kept", "physical", "groups")

    @property
    def window(self) -> int:
        """How many batches go ahead of what is known."""
        return self.study.search.window or WINDOW

    def _explored(self) -> tuple[ParetoFront, list[Part], Floats]:
        self._check_size()
        parts: list[Part] = []
        front = self._first_designs(parts)
        codes, bounds_s = self._physical(front, self.study.to_beat(front.points)).whole()
        if self.stopped is not None:
            return front, parts, np.concatenate([self._open_points(parts), self._ideal()])
        left = ~np.isin(
            codes, np.array([code for part in parts for code in np.asarray(part.columns["code"])], np.int64)
        )
        refinement = _Refinement(self.study, codes[left], bounds_s[left])
        known = self._refine(refinement, refinement.start(front, parts), parts)
        return known.front, parts, np.concatenate([self._open_points(parts), refinement.points(known)])

    def _first_designs(self, parts: list[Part]) -> ParetoFront:
        """A balanced design, then the one of a sample on which its plans take least."""
        first = FirstDesign(0)
        front = self._run_level("warm_start", None, lambda k, _: first if k == 0 else None, self._empty, parts.append)
        if not len(front):
            return front
        code = int(front.codes[0])
        second = FirstDesign(1, plans_of(self.study, parts, code), code, front.points)
        return self._run_level("warm_start", None, lambda k, _: second if k == 1 else None, front, parts.append, 1)

    def _refine(self, refinement: _Refinement, known: BoundedGroups, parts: list[Part]) -> BoundedGroups:
        """Bounds, splits and searches groups until none matters any more, or the study has to end."""
        latest, done = known, 0

        def absorb(current: BoundedGroups, number: int, part: Part) -> BoundedGroups:
            nonlocal latest, done
            done += 1
            latest = refinement.after(current, number, part)
            self.batches += 1
            if part.level == "search":
                parts.append(part)
                self.counts["searched"] += len(part.columns["code"])
                self.counts["evaluated"] += int(np.asarray(part.columns["evaluated"]).sum())
            else:
                self.counts["groups"] += 1
            self.bound, self.left = refinement.lowest(latest), sum(len(each.group.codes) for each in latest.groups)
            self._report("search", latest.front, done, None)
            return latest

        try:
            while self.stopped is None:
                before = done
                self._ordered(("group", "search"), refinement.task_of, latest, absorb, before)
                if done == before:
                    break
        except (StoppedError, KeyboardInterrupt):
            self.stopped = self.stop.asked or "interrupt"
        return latest


class _Refinement:
    """Which group comes next, and what is left of it."""

    def __init__(self, study: ResolvedStudy, codes: Ints, bounds_s: Floats) -> None:
        self.study = study
        order = np.argsort(codes, kind="stable")
        self._codes, self._bounds_s = codes[order], bounds_s[order]
        #: what was handed out, by batch, and all of it
        self._under_way: dict[int, OpenGroup] = {}
        self._handed_out: dict[int, OpenGroup] = {}
        self._nothing = np.zeros((0, len(study.objectives)))
        #: lower bounds of what was dropped within the gap of the study
        self._dropped = self._nothing

    def start(self, front: ParetoFront, searched: list[Part]) -> BoundedGroups:
        """All candidates."""
        planned = self._planned(front, searched)
        if not len(self._codes):
            return BoundedGroups(front, (), planned)
        groups = (self._opened(group, front) for group in first_groups(self.study, self._codes))
        return BoundedGroups(front, tuple(group for group in groups if group is not None), planned)

    def task_of(self, k: int, known: BoundedGroups) -> Task | None:
        """The group with the lowest bound that is not handed out."""
        to_beat = self.study.to_beat(known.front.points)
        for each in sorted(known.groups, key=lambda each: (each.lowest, int(each.group.codes[0]))):
            if id(each) in self._handed_out:
                continue
            least_s = self._least_s(each.group)
            is_open, _ = still_open(self.study, each.group.codes, least_s, to_beat)
            if not is_open.any():
                continue
            self._under_way[k] = self._handed_out[id(each)] = each
            codes, least_s = each.group.codes[is_open], least_s[is_open]
            if len(codes) == 1:
                return CandidateBatch("search", k, codes, least_s, known.front.points)
            code, plans = known.planned
            # plans are for one number of chips
            plans = plans if code // self.study.space.size == codes[0] // self.study.space.size else ()
            return GroupBatch(k, codes, least_s, to_beat, plans)
        return None

    def after(self, known: BoundedGroups, number: int, part: Part) -> BoundedGroups:
        """What is known after a batch as well."""
        done = self._under_way.pop(number)
        groups = tuple(each for each in known.groups if each is not done)
        if part.level == "search":
            # the others of its group could not matter when it was handed out
            rest = done.group.codes[~np.isin(done.group.codes, np.asarray(part.columns["code"]))]
            self._opened(Group(rest, done.group.least_s), known.front)
            front = known.front.with_part(part, self.study.objectives)
            return BoundedGroups(front, groups, self._planned(front, [part], known.planned))
        least_s = np.array([np.asarray(part.columns[f"least_s.{job.name}"])[0] for job in self.study.jobs])
        group = Group(done.group.codes, np.maximum(done.group.least_s, least_s))
        split = part.facts["split"]
        parts = [group] if split is None else halves(self.study, group, (str(split[0]), float(split[1])))
        opened = (self._opened(each, known.front, closed=split is None) for each in parts)
        return BoundedGroups(known.front, (*groups, *(each for each in opened if each is not None)), known.planned)

    def _planned(
        self, front: ParetoFront, parts: list[Part], before: tuple[int, tuple[str, ...]] = (0, ())
    ) -> tuple[int, tuple[str, ...]]:
        """The first design of a front with its plans, if it was searched in these parts."""
        if not len(front) or int(front.codes[0]) not in codes_of(parts):
            return before
        code = int(front.codes[0])
        return code, plans_of(self.study, parts, code)

    def lowest(self, known: BoundedGroups) -> float | None:
        """The lowest bound of all that is open, in the first objective."""
        return min((each.lowest for each in known.groups), default=None)

    def points(self, known: BoundedGroups) -> Floats:
        """Lower bounds of all that was not searched."""
        left = [still_open(self.study, e.group.codes, self._least_s(e.group), self._nothing)[1] for e in known.groups]
        return np.concatenate([self._dropped, *left])

    def _least_s(self, group: Group) -> Floats:
        """Candidates × jobs: what is proven of each, and of its group."""
        return np.maximum(self._bounds_s[np.searchsorted(self._codes, group.codes)], group.least_s)

    def _opened(self, group: Group, front: ParetoFront, *, closed: bool = False) -> OpenGroup | None:
        """A group without the candidates that cannot matter; None if none is left, or all that can be proven is."""
        least_s, to_beat = self._least_s(group), self.study.to_beat(front.points)
        is_open, points = still_open(self.study, group.codes, least_s, to_beat)
        is_open &= not closed
        gone = points[~is_open & np.isfinite(points).all(axis=1)]
        if len(gone) and (closed or self.study.search.gap):
            # where there is one objective, its lowest bound says all
            gone = gone[[gone[:, 0].argmin()]] if gone.shape[1] == 1 else gone
            self._dropped = np.concatenate([self._dropped, gone])
        if not is_open.any():
            return None
        return OpenGroup(Group(group.codes[is_open], group.least_s), float(points[is_open, 0].min()))
