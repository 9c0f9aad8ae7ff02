"""Best first: the lowest bounds are expanded first, until none is left below the best plan."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import TOLERANCE, Bools, Floats, Ints, numbers
from dovetail.bounds.batch import Batch, Candidates, Evaluated
from dovetail.bounds.degree_bounds import DegreeBounds, KnownSkeletons
from dovetail.frozen import frozen
from dovetail.partition.partition_plan import PartitionedPlan
from dovetail.plans.partitions import is_free
from dovetail.plans.plan import Plan
from dovetail.plans.skeletons import NAMES, PlanSkeletons, plan_skeletons
from dovetail.plans.space import Space
from dovetail.search.enumeration import Enumeration
from dovetail.search.open_pairs import OpenPairs
from dovetail.search.partition_setting import Profiled, partition_setting
from dovetail.search.progress import NOTHING, OpenPlans, Progress, Reporter, simplicity
from dovetail.search.time_limit import OutOfTimeError, TimeLimit
from dovetail.step.layer_tables import Setting
from dovetail.step.ties import TIE_MARGIN

#: Skeletons whose policies are bounded together, how many of them are expanded first, and pipelines timed together.
OPENED, BATCH, TIMED = 4096, 64, 256
#: A plan to beat is looked for among pairs with bounds up to so many times the lowest one, then so many times that.
FIRST_REACH = 2.0
#: Pairs that are looked at ahead of all others until a plan fits, and how often at most.
FIRST_PAIRS, FIRST_LOOKS = 2, 16


@frozen
class BoundedSkeletons:
    """Skeletons of stage degrees × stage counts, with lower bounds from asymptotic micro-batches."""

    selected: Bools
    skeletons: PlanSkeletons
    bounds: Floats

    def below(self, limit_s: float) -> PlanSkeletons:
        """Those that may be below a limit."""
        return self.skeletons.take(self.bounds < limit_s)


class BestFirst(Enumeration):
    """The search over one space."""

    def __init__(
        self,
        setting: Setting,
        space: Space,
        time_limit: TimeLimit | None = None,
        limit_s: float = float("inf"),
        top: int = 1,
        reporter: Reporter | None = None,
    ) -> None:
        self.time_limit = time_limit or TimeLimit()
        self.progress = Progress(below_s=limit_s, top=top)
        self._reporter = reporter
        super().__init__(setting, space, self._check_time)
        #: plans that another partition may improve: bound, plan, and whether it was evaluated with a listed partition
        self._open: list[tuple[float, Plan, bool]] = []
        self._profiled: Profiled = {}
        #: those of all pairs, where these are opened a few at a time
        self._skeletons: BoundedSkeletons | None = None
        self._known_skeletons: KnownSkeletons = {}

    def run(self) -> Progress:
        """Opens stage degrees and stages in the order of their bounds; what is left when time runs out stays open."""
        if self.degrees:
            try:
                self._search()
            except OutOfTimeError:
                self._note_partitions()
                self.progress.end()
        return self.progress

    def _check_time(self) -> None:
        """Reports on the search, and ends it where time is over; called between all longer parts of its work."""
        if self._reporter is not None and self._reporter.is_due(self.progress):
            self._note_partitions()
            if self._reporter.report(self.progress):
                self.time_limit.end()
        if self.time_limit.over:
            raise OutOfTimeError

    def _note_partitions(self) -> None:
        bounds = [bound for bound, _, _ in self._open]
        self.progress.left.partitions = OpenPlans.of(bounds, [not evaluated for _, _, evaluated in self._open])

    def _search(self) -> None:
        left = self.progress.left
        left.pairs = OpenPlans.of([0.0], [0])
        self._pairs = pairs = DegreeBounds(self.setting, self.space, self.degrees, self.tables, self._known_skeletons)
        plans = self._count_all(pairs)
        left.pairs = OpenPlans(pairs.seconds[pairs.exists], plans[pairs.exists])
        self._find_first(pairs)
        pairs.refine(self.progress.limit_s)
        self.time_limit.start()
        self.progress.counts.infeasible += int(plans[~np.isfinite(pairs.seconds)].sum())
        unopened = OpenPairs(pairs, plans, self.progress.limit_s)
        while len(unopened):
            left.pairs = unopened.left
            self._check_time()
            if unopened.many and self._skeletons is None:
                self._skeletons = BoundedSkeletons(unopened.selected, *self._bounded_skeletons(unopened.selected))
            if self._skeletons is not None:
                # plans within the tie margin of the best are looked at next
                self.tables.expect(self._skeletons.below(self.progress.limit_s * (1 + TIE_MARGIN)))
            selected = unopened.take(self.progress.best and self.progress.best.plan)
            self._round(selected, unopened.left)
            unopened.prune(self.progress.limit_s)
        left.pairs = NOTHING
        self._refine()

    def _count_all(self, pairs: DegreeBounds) -> Ints:
        """Counts all plans; returns those of stage degrees × stage counts."""
        counts, counted = self.progress.counts, np.zeros(pairs.seconds.shape, np.int64)
        choices: dict[int, int] = {}
        for row, position in np.argwhere(pairs.exists).tolist():
            stages = self.space.pipeline_parallel[position]
            replicas = self.setting.cluster.chips // (self.degrees[row].replica_chips * stages)
            skeletons = pairs.skeletons(row, position)  # the same ones for many pairs
            if id(skeletons) not in choices:
                choices[id(skeletons)] = int(self._num_choices(skeletons).sum())
            counted[row, position] = choices[id(skeletons)] * len(self._states_of(row, replicas, stages))
        counts.counted += int(counted.sum())
        return counted

    def _find_first(self, pairs: DegreeBounds) -> None:
        """A plan to beat, soon: of few pairs at a time, those with the lowest bounds and those with the smallest state.

        Bounds are refined no further than they have to be. What is looked at here is not counted: it comes up again in
        its place.
        """
        past_s, reach_s = 0.0, FIRST_REACH * float(pairs.seconds.min(initial=np.inf))
        while self.progress.best is None and past_s < self.progress.limit_s:
            below_s = min(reach_s, self.progress.limit_s)
            pairs.refine(below_s)
            self.time_limit.start()
            bounds = pairs.seconds.ravel()
            (order,) = np.nonzero(np.isfinite(bounds) & (bounds >= past_s) & (bounds < below_s))
            order = order[np.argsort(bounds[order], kind="stable")]
            emptiest = order[np.argsort(pairs.least_state.ravel()[order], kind="stable")]
            for look in range(FIRST_LOOKS):
                self._check_time()
                start, end = look * FIRST_PAIRS, (look + 1) * FIRST_PAIRS
                opened = np.concatenate([order[start:end], emptiest[start:end]])
                if self.progress.best is not None or not len(opened):
                    break
                selected = np.zeros(bounds.size, np.bool_)
                selected[opened] = True
                self._look_at(selected.reshape(pairs.seconds.shape))
            past_s, reach_s = (
                reach_s,
                FIRST_REACH * reach_s if (bounds[np.isfinite(bounds)] >= reach_s).any() else np.inf,
            )

    def _look_at(self, selected: Bools) -> None:
        """Evaluates the skeleton with the lowest bound of each of some stage degrees and stage counts."""
        setting, limit_s = self.setting, self.progress.limit_s
        skeletons = plan_skeletons(setting.job, setting.cluster, setting.framework, self.space, self.degrees, selected)
        lowest = self._pairs.skeleton_bounds(skeletons, limit_s)
        rows = np.argsort(lowest, kind="stable")
        _, first = np.unique(np.stack([skeletons.degrees, skeletons.stages])[:, rows], axis=1, return_index=True)
        rows = rows[np.sort(first)]
        skeletons = skeletons.take(rows[lowest[rows] < limit_s])
        if not len(skeletons):
            return
        batch = Batch(self.tables, skeletons)
        bounds = batch.screen(self._pairs.state_bytes(skeletons), self._leanest, limit_s)
        # of the policies the fastest, and the one that saves least
        leanest = [number for number, policy in enumerate(self.tables.policies) if policy == ("full", 1.0)]
        looked_at = np.zeros(bounds.shape, np.bool_)
        looked_at[np.arange(len(bounds)), bounds.argmin(axis=1)] = True
        looked_at[:, leanest] = True
        bounds = np.where(looked_at, bounds, np.inf)
        (rows,) = np.nonzero(bounds.min(axis=1) < limit_s)
        if not len(rows):
            return
        candidates, lowest = self._bounded(batch, rows, bounds)
        candidates = candidates.take(lowest < limit_s)
        if len(candidates):
            self._evaluate(batch, candidates)

    def _bounded_skeletons(self, selected: Bools) -> tuple[PlanSkeletons, Floats]:
        """All skeletons of some stage degrees and stage counts, and their bounds."""
        setting, known = self.setting, self._skeletons
        if known is not None and not (selected & ~known.selected).any():
            stages = known.skeletons.stages[:, None] == np.array(self.space.pipeline_parallel)
            taken = (selected[known.skeletons.degrees] & stages).any(axis=1)
            return known.skeletons.take(taken), known.bounds[taken]
        skeletons = plan_skeletons(setting.job, setting.cluster, setting.framework, self.space, self.degrees, selected)
        return skeletons, self._pairs.skeleton_bounds(skeletons, self.progress.limit_s)

    def _round(self, selected: Bools, rest: OpenPlans) -> None:
        """Bounds all skeletons of some stage degrees and stage counts, and opens them in that order."""
        counts, left = self.progress.counts, self.progress.left
        skeletons, bounds = self._bounded_skeletons(selected)
        unfit = int(self._num_plans(skeletons)[~np.isfinite(bounds)].sum())
        skeletons = skeletons.take(bounds < self.progress.limit_s)
        bounds, plans = np.zeros(0), self._num_plans(skeletons)
        profiles = np.zeros(0, np.int64)
        if len(skeletons):
            batch = Batch(self.tables, skeletons)
            bounds, profiles = batch.fastest(self._pairs.state_bytes(skeletons), self.progress.limit_s), batch.profile
        counts.infeasible += unfit + int(plans[~np.isfinite(bounds)].sum())
        order = np.argsort(bounds, kind="stable")
        order = order[np.isfinite(bounds[order])]
        below = order[bounds[order] < self.progress.limit_s]
        # together rows take less than batch by batch
        self.tables.expect_rows(profiles[below])
        left.pairs, left.skeletons = rest, OpenPlans(bounds[order], plans[order])
        for start in range(0, len(order), OPENED):
            self._check_time()
            rows = order[start : start + OPENED]
            rows = rows[bounds[rows] < self.progress.limit_s]
            if not len(rows):
                break
            after = order[start + OPENED :]
            self._open_skeletons(skeletons.take(rows), OpenPlans(bounds[after], plans[after]))
        left.skeletons = NOTHING

    def _open_skeletons(self, skeletons: PlanSkeletons, rest: OpenPlans) -> None:
        """Profiles skeletons and expands them, those with the lowest bound first."""
        left, batch = self.progress.left, Batch(self.tables, skeletons)
        bounds = batch.screen(self._pairs.state_bytes(skeletons), self._leanest, self.progress.limit_s)
        states = self._num_states(skeletons)
        none_fits = ~np.isfinite(bounds) & self._counted_choices(skeletons)
        self.progress.counts.infeasible += int((states[:, None] * none_fits).sum())
        lowest = bounds.min(axis=1)
        # together rows take less than batch by batch
        self._state_rows(skeletons.take(lowest < self.progress.limit_s))
        order = np.argsort(lowest, kind="stable")
        by_policy = lowest[:, None] if self.by_block else bounds
        start, size, left.skeletons = 0, BATCH, rest
        while start < len(order):
            unopened = order[start:]
            left.policies = OpenPlans(by_policy[unopened].ravel(), np.repeat(states[unopened], by_policy.shape[1]))
            self._check_time()
            rows = order[start : start + size]
            rows = rows[lowest[rows] < self.progress.limit_s]
            if not len(rows):
                break
            self._expand(batch, rows, bounds)
            # the first few give a plan to beat; what is still below it then is expanded in larger batches
            start, size = start + size, 2 * size
        left.policies = NOTHING

    def _expand(self, batch: Batch, rows: Ints, bounds: Floats) -> None:
        """Evaluates every policy and state of some skeletons with their listed partitions."""
        candidates, lowest = self._bounded(batch, rows, bounds)
        unfit = self._counted(candidates, ~np.isfinite(lowest))
        below = lowest < self.progress.limit_s
        candidates, lowest = candidates.take(below), lowest[below]
        if len(candidates):
            self._sort_out(batch, candidates, lowest, *self._evaluate(batch, candidates))
        self.progress.counts.infeasible += unfit

    def _bounded(self, batch: Batch, rows: Ints, bounds: Floats) -> tuple[Candidates, Floats]:
        candidates = self._candidates(batch, rows, bounds, self.progress.limit_s)
        return candidates, batch.bound(candidates, self._leanest, self.progress.limit_s)

    def _evaluate(self, batch: Batch, candidates: Candidates) -> tuple[Evaluated, Floats, Bools]:
        """Offers candidates with their listed partitions; returns exact seconds of what may matter, and what fits."""
        partitions: list[list[int]] = [[] for _ in range(len(batch.skeletons))]
        for row in numbers(np.unique(candidates.skeleton)):
            partitions[row] = self._partitions(batch.skeletons, row)
        evaluated = batch.evaluate(candidates, partitions)
        fits = evaluated.peak_bytes <= self.setting.capacity_bytes
        exact = self._exact(batch, candidates, evaluated, fits)
        self._offer(batch, candidates, evaluated, exact, fits)
        return evaluated, exact, fits

    def _exact(self, batch: Batch, candidates: Candidates, evaluated: Evaluated, fits: Bools) -> Floats:
        """Exact seconds of what may matter; infinite for the rest."""
        seconds = np.where(evaluated.exact & fits, evaluated.seconds, np.inf)
        limit = min(self.progress.limit_s, self._slowest_of_top(seconds) * (1 + TOLERANCE))
        (open_rows,) = np.nonzero(~evaluated.exact & fits & (evaluated.seconds < limit))
        open_rows = open_rows[np.argsort(evaluated.seconds[open_rows], kind="stable")]
        for start in range(0, len(open_rows), TIMED):
            rows = open_rows[start : start + TIMED]
            rows = rows[evaluated.seconds[rows] < limit * (1 + TOLERANCE)]
            self._check_time()
            if not len(rows):
                break
            seconds[rows] = batch.pipeline_seconds(candidates, evaluated, rows) + evaluated.rest_s[rows]
            limit = min(limit, self._slowest_of_top(seconds))
        return seconds

    def _slowest_of_top(self, seconds: Floats) -> float:
        """The slowest of as many as are asked for; one plan may be there with several partitions."""
        if self.progress.top > 1:
            return float("inf")
        return float(seconds.min(initial=np.inf))

    def _offer(self, batch: Batch, candidates: Candidates, evaluated: Evaluated, exact: Floats, fits: Bools) -> None:
        """The best plan of every combination of degrees."""
        (rows,) = np.nonzero(fits & np.isfinite(exact))
        rows = rows[np.argsort(exact[rows], kind="stable")]
        skeleton = candidates.skeleton[evaluated.candidate[rows]]
        degrees = batch.skeletons.degrees[skeleton] * 2**20 + batch.skeletons.stages[skeleton]
        best: dict[int, float] = {}
        for row, key in zip(numbers(rows), numbers(degrees), strict=True):
            seconds = float(exact[row])
            if self.progress.top > 1 and seconds >= self.progress.limit_s:
                break
            if self.progress.top > 1 or seconds <= best.setdefault(key, seconds) * (1 + TOLERANCE):
                candidate = int(evaluated.candidate[row])
                layers = self.tables.partitions.layers[int(evaluated.partition[row])]
                self.progress.offer(seconds, self._plan(batch.skeletons, candidates, candidate, layers))

    def _sort_out(
        self,
        batch: Batch,
        candidates: Candidates,
        lowest: Floats,
        plans: Evaluated,
        exact: Floats,
        fits: Bools,
    ) -> None:
        """Counts candidates that are evaluated or do not fit, and notes those whose partition is still open."""
        evaluated = np.zeros(len(candidates), np.bool_)
        evaluated[plans.candidate[np.isfinite(exact)]] = True
        fits_somehow = np.zeros(len(candidates), np.bool_)
        fits_somehow[plans.candidate[fits]] = True
        free = np.array([self._is_free(batch.skeletons, row) for row in numbers(candidates.skeleton)], np.bool_)
        free &= ~self.tables.of_a_share(candidates.policy)
        counts = self.progress.counts
        counts.evaluated += self._counted(candidates, evaluated)
        counts.infeasible += self._counted(candidates, ~free) - self._counted(candidates, fits_somehow & ~free)
        codes = candidates.skeleton * 2**32 + candidates.state
        seen = set(numbers(codes[evaluated])) if self.by_block else set(numbers(np.nonzero(evaluated)[0]))
        for candidate in np.nonzero(free & (lowest < self.progress.limit_s))[0].tolist():
            if self.by_block and int(candidates.policy[candidate]):
                continue  # each block has its own policy: one row stands for all
            plan = self._plan(batch.skeletons, candidates, candidate, ())
            key = int(codes[candidate]) if self.by_block else candidate
            self._open.append((float(lowest[candidate]), plan, key in seen))

    def _counted(self, candidates: Candidates, which: Bools) -> int:
        """How many plans these are: rows that only bound the policies of single blocks count as one."""
        if not self.by_block:
            return int(which.sum())
        return len(np.unique(candidates.skeleton[which] * 2**32 + candidates.state[which]))

    def _is_free(self, skeletons: PlanSkeletons, row: int) -> bool:
        schedule, stages = NAMES[int(skeletons.schedule[row])], int(skeletons.stages[row])
        if self.by_block:
            return schedule != "dualpipe" and (stages == 1 or self.space.partition == "any")
        return is_free(schedule, self.space.partition, stages)

    def _partitioned(self, plan: Plan) -> PartitionedPlan | None:
        """The plan with its best partition, and the best policies of blocks that choose; None where none fits."""
        known, by_block = self._profiled, self.by_block
        return partition_setting(self.setting, plan, known, by_block=by_block, poll=self._check_time)

    def _refine(self) -> None:
        """Solves the partition, and the policies of blocks, of whatever may still be better."""
        counts = self.progress.counts
        self._open.sort(key=lambda entry: (entry[0], simplicity(entry[1])), reverse=True)
        while self._open:
            bound, plan, evaluated = self._open[-1]
            if bound >= self.progress.limit_s:
                break
            self._check_time()
            placed = self._partitioned(plan)
            self._open.pop()
            if placed is None:
                counts.infeasible += not evaluated
                continue
            counts.evaluated += not evaluated
            self.progress.offer(placed.evaluation.step_time_s, placed.evaluation.plan)
            if placed.status != "optimal":
                self.progress.left_s = min(self.progress.left_s, placed.lower_bound_s)
        self._open.clear()
