"""Questions around an answer: the best plans of narrower spaces and other limits of memory, with one set of tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from dovetail.arrays import TOLERANCE, Ints
from dovetail.bounds.degree_bounds import DegreeBounds
from dovetail.frameworks import Framework
from dovetail.frozen import frozen
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.partition.partition_plan import PartitionedPlan
from dovetail.plans.plan import Plan
from dovetail.plans.runs import check_job, check_runs
from dovetail.plans.space import Space
from dovetail.plans.stage_degrees import StageDegrees, degree_plans, stage_degrees
from dovetail.search.best_first import BestFirst
from dovetail.search.certificate import proof
from dovetail.search.membership import missing
from dovetail.search.partition_setting import partition_setting
from dovetail.search.progress import Progress
from dovetail.search.time_limit import OutOfTimeError, TimeLimit
from dovetail.step.capacity import memory_limit
from dovetail.step.evaluate import evaluate
from dovetail.step.evaluation import Evaluation
from dovetail.step.layer_tables import Setting, recompute_policies
from dovetail.step.plan_tables import Tables

#: A search that asks whether there is a plan ends where what is left takes so much of the plan's seconds:
#: what remains to be proven then takes ten times as long.
CLOSE = 0.8

#: Plans that take as long as a known one are found again, whatever rounding does.
KNOWN = 1 + 4 * TOLERANCE


@frozen
class BestOfSpace:
    """The best plan of a narrower space."""

    #: None: none fits, or none was found in time
    evaluation: Evaluation | None
    #: none is faster
    proven: bool


@frozen
class _KnownPlan:
    """A plan that fits within some bytes of a chip, and what it takes."""

    plan: Plan
    seconds: float
    limit_bytes: float


class RelatedSearches:
    """Searches of a job on a cluster in spaces within one that is resolved; each begins with what others found."""

    def __init__(self, job: Job, cluster: Cluster, framework: Framework, space: Space, finished: object = None) -> None:
        self.job = job
        self.cluster = cluster
        self.framework = framework
        if isinstance(finished, BestFirst):
            # of the same question in a space that holds this one: most of what is asked of its tables they know
            self._wide = finished
        else:
            self._wide = BestFirst(Setting.of_space(job, cluster, framework, space), space)
        self._known: list[_KnownPlan] = []
        self._evaluations: dict[Plan, Evaluation] = {}

    def on_each(self, clusters: Sequence[Cluster], space: Space) -> list[RelatedSearches]:
        """Searches in a narrower space on clusters that differ in their rates alone, with all that these leave."""
        degrees = stage_degrees(self.job, self.cluster, self.framework, space)
        searches = [OtherHardware(self._wide, cluster, space, degrees) for cluster in clusters]
        for each in searches[:1]:
            each.tables.join([other.tables for other in searches[1:]])
        return [
            RelatedSearches(self.job, cluster, self.framework, space, search)
            for cluster, search in zip(clusters, searches, strict=True)
        ]

    def evaluated(self, plan: Plan) -> Evaluation:
        """What a plan takes."""
        if plan not in self._evaluations:
            self._evaluations[plan] = evaluate(plan, self.job, self.cluster, self.framework, energy=False)
        return self._evaluations[plan]

    def learn(self, plans: Iterable[Plan], limit_bytes: float | None = None) -> None:
        """Plans that are known to fit: nothing slower is looked for where a space has them."""
        limit = memory_limit(self.cluster.chip, self.framework, limit_bytes)
        for plan in plans:
            evaluation = self.evaluated(plan)
            if evaluation.peak_bytes <= limit:
                self._known.append(_KnownPlan(plan, evaluation.step_time_s, evaluation.peak_bytes))

    def _known_seconds(self, space: Space, capacity_bytes: float) -> float:
        """What the fastest known plan of a space takes that fits; infinite where none is known."""
        fitting = (each for each in self._known if each.limit_bytes <= capacity_bytes)
        within = (each for each in fitting if next(missing(each.plan, space, self.cluster), None) is None)
        return min((each.seconds for each in within), default=float("inf"))

    def best(self, space: Space, time_limit_s: float | None = None, limit_bytes: float | None = None) -> BestOfSpace:
        """The best plan of a narrower space, with `memory_limit` as the limit or so many bytes of a chip."""
        setting = replace(self._wide.setting, memory_limit_bytes=limit_bytes)
        known_s = self._known_seconds(space, setting.capacity_bytes)
        progress = NarrowSearch(self._wide, setting, space, TimeLimit(time_limit_s), known_s * KNOWN).run()
        self._known += [
            _KnownPlan(each.plan, each.seconds, setting.capacity_bytes) for each in progress.by_degrees.values()
        ]
        best = progress.best
        proven = proof(best and best.seconds, progress.left_s).status != "feasible"
        if best is None:
            assert known_s == float("inf") or not proven, "a plan is known"
            return BestOfSpace(None, proven)
        check_runs(best.plan, self.job, self.cluster, self.framework)
        evaluation = self.evaluated(best.plan)
        assert evaluation.peak_bytes <= setting.capacity_bytes, "the tables say that it fits"
        assert abs(evaluation.step_time_s / best.seconds - 1) < TOLERANCE, "the tables and the model agree"
        return BestOfSpace(evaluation, proven)


def best_plan(
    job: Job,
    cluster: Cluster,
    framework: Framework,
    space: Space,
    time_limit_s: float | None = None,
    limit_bytes: float | None = None,
) -> BestOfSpace:
    """The best plan of another question, which takes less than `plan` since nobody asks what became of the others."""
    check_job(job, framework)
    whole = space.resolve(job, cluster, framework)
    return RelatedSearches(job, cluster, framework, whole).best(whole, time_limit_s, limit_bytes)


class SearchesOnChips:
    """Searches of one question on chips that differ in rates and bytes alone, each for plans below some seconds."""

    def __init__(self, job: Job, cluster: Cluster, framework: Framework, space: Space) -> None:
        self._space = space.resolve(job, cluster, framework)
        self._wide = BestFirst(Setting.of_space(job, cluster, framework, self._space), self._space)

    def best(self, cluster: Cluster, below_s: float) -> tuple[Plan | None, float]:
        """A plan below so many seconds, None if there is none; and a lower bound of all plans.

        The search ends as soon as its plan is within `CLOSE` of the bound: who asks wants to know whether there is one.
        """
        wide = self._wide
        other = OtherHardware(wide, cluster, self._space, wide.degrees)
        # neither depends on what a chip does in a second
        other.tables.structures = wide.tables.structures
        search = CloseSearch(other, other.setting, self._space, below_s)
        search.known_shardings(wide)
        progress = search.run()
        best = progress.best
        if best is None or best.seconds >= below_s:
            return None, min(progress.left_s, below_s)
        return best.plan, min(progress.left_s, best.seconds)


class OtherHardware(BestFirst):
    """A search that is not run: tables for some of another one's plans on a cluster that differs in its rates alone."""

    def __init__(self, like: BestFirst, cluster: Cluster, space: Space, degrees: list[StageDegrees]) -> None:
        self.__dict__.update(like.__dict__)
        self.setting = Setting.of_space(like.setting.job, cluster, like.setting.framework, space)
        self.space, self.degrees = space, degrees
        self.tables = Tables(self.setting, degrees, like.tables.policies)
        self.tables.partitions = like.tables.partitions
        self._profiled = {}


class NarrowSearch(BestFirst):
    """The search of a space within that of another search, with its tables, for plans below some seconds."""

    def __init__(self, wide: BestFirst, setting: Setting, space: Space, time_limit: TimeLimit, below_s: float) -> None:
        self.__dict__.update(wide.__dict__)
        self.setting = setting
        self.space = space
        self.time_limit = time_limit
        self.progress = Progress(below_s=below_s)
        self._reporter = None
        within = set(degree_plans(setting.graph, setting.cluster.chips, space))
        kept = np.array([each.plan in within for each in self.degrees], np.bool_)
        offered = set(recompute_policies(space))
        policies = np.array([policy in offered for policy in self.tables.policies], np.bool_)
        self.tables = wide.tables.narrowed(setting, kept, policies, self._check_time)
        self._shardings, self._rows_of_states = {}, {}
        self._open, self._skeletons = [], None

    def _count_all(self, pairs: DegreeBounds) -> Ints:
        """One each: nobody asks how many plans there are."""
        return pairs.exists.astype(np.int64)

    def _partitioned(self, plan: Plan) -> PartitionedPlan | None:
        """None also where no partition may be below the best plan: nobody counts what fits."""
        return partition_setting(
            self.setting,
            plan,
            self._profiled,
            by_block=self.by_block,
            below_s=self.progress.limit_s,
            poll=self._check_time,
        )

    def _find_first(self, pairs: DegreeBounds) -> None:
        """Nothing where a plan is known."""
        if self.progress.below_s == float("inf"):
            super()._find_first(pairs)


class CloseSearch(NarrowSearch):
    """The search of a whole space that ends as soon as a plan is close to all that is left."""

    def __init__(self, wide: BestFirst, setting: Setting, space: Space, below_s: float) -> None:
        super().__init__(wide, setting, space, TimeLimit(), below_s)

    def known_shardings(self, other: BestFirst) -> None:
        """Takes over what shardings there are, which depend on no chip."""
        self._shardings = other._shardings

    def _check_time(self) -> None:
        progress, best = self.progress, self.progress.best
        if best is not None and best.seconds < progress.below_s:
            self._note_partitions()
            if min(progress.left.below(progress.limit_s)[0], progress.left_s) >= best.seconds * CLOSE:
                raise OutOfTimeError

    def _find_first(self, pairs: DegreeBounds) -> None:
        """A plan to beat helps though some seconds are known."""
        BestFirst._find_first(self, pairs)
