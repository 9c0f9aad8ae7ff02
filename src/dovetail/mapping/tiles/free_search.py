"""The search of free plans: skeletons and tiles in the order of lower bounds that get tighter step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heappop, heappush
from itertools import product

from dovetail.arrays import TOLERANCE
from dovetail.errors import InputError
from dovetail.frameworks import Framework
from dovetail.hardware import Cluster
from dovetail.layout.encoding import TileLayouts
from dovetail.mapping.layouts.axis_labels import Allowed
from dovetail.mapping.layouts.groups import Together
from dovetail.mapping.layouts.tile import LayerTile
from dovetail.mapping.tiles.partitioned import every_partition, partitioned
from dovetail.mapping.tiles.pipeline_bound import PipelineBound
from dovetail.mapping.tiles.priced_lower_bound import Line, PricedLayout, as_lines, flights
from dovetail.mapping.tiles.sites import tried_places
from dovetail.mapping.tiles.skeletons import TileSkeleton, tile_skeletons
from dovetail.mapping.tiles.tile_layers import TileLayers
from dovetail.mapping.tiles.tile_layouts import TileSearch, searched_tiles
from dovetail.mapping.tiles.work_bounds import ZERO_STAGES, SkeletonBounds
from dovetail.models import Job
from dovetail.plans.wafer_part import STORE_CHOICES, Stored
from dovetail.search.time_limit import OutOfTimeError
from dovetail.step.evaluation import Evaluation

#: Pipeline schedules to try.
SCHEDULES = ("1f1b", "zb_h1")

#: The price of a die's memory that is tried first, as a part of the seconds of its blocks; later the best one so far.
FIRST_PRICE = 0.2


#: A tile with at most so many layouts of all classes is searched by trying all.
FEW_LAYOUTS = 4096

#: Tiles for which a plan that fits is looked for first, where dies have a store because their memory is small.
FIRST_TILES = 12

#: A plan that may be faster by more than this part is made at once: it saves work elsewhere.
MUCH = 0.01


@dataclass(slots=True)
class Branch:
    """A skeleton under a ZeRO stage, and once it is known the tile its layers lie on."""

    skeleton: TileSkeleton
    zero_stage: int
    tile: LayerTile | None = None
    #: how operators are grouped, once the fastest layout is known
    together: Together | None = None
    floor: PipelineBound | None = None
    #: layouts worth placing, once memory has a price
    found: list[PricedLayout] | None = None
    #: layouts that are cheapest if state alone has a price, and the bounds they give
    plain: list[PricedLayout] = field(default_factory=list[PricedLayout])
    lines: list[Line] = field(default_factory=list[Line])

    @property
    def steps(self) -> int:
        """How much is known: of equal bounds the one that is nearer to a plan goes first."""
        return sum(each is not None for each in (self.tile, self.together, self.found))


#: A branch in the order of the search: bound, what is unknown, a number that no other has.
Entry = tuple[float, int, int, Branch]


@dataclass
class FreeSearch:
    """A best-first search over skeletons of free plans."""

    job: Job
    cluster: Cluster
    framework: Framework
    deadline: float = float("inf")
    #: restricts the dims that operators may shard
    allowed: Allowed | None = None
    #: whether blocks may recompute what they would save
    recompute: bool = True
    zero_stages: tuple[int, ...] = ZERO_STAGES
    #: whether stages may hold activations for each other
    lends: bool = False
    #: skeletons with more stages are skipped
    most_stages: int = 2**20
    #: only plans below this are of interest
    below_s: float = float("inf")
    #: how close to the best an answer has to be, as a part of it
    gap: float = 0.0
    #: most skeletons whose layouts are searched
    work_limit: int | None = None
    #: the best plan of every skeleton; plans known before use an empty one
    best_of: dict[TileSkeleton, Evaluation] = field(default_factory=dict[TileSkeleton, Evaluation])
    #: skeletons whose layouts were searched
    seen: set[TileSkeleton] = field(default_factory=set[TileSkeleton])
    #: says whether to end before the deadline
    stop: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self.job.check_trains_all("layouts by operator")
        self._open: list[Entry] = []
        #: bounds of branches that are done, and the branch at work
        self._done: dict[TileSkeleton, float] = {}
        self._current: tuple[float, Branch] | None = None
        self._number = 0
        self._price = FIRST_PRICE

    @cached_property
    def skeletons(self) -> list[TileSkeleton]:
        """Every skeleton."""
        every = tile_skeletons(self.cluster, self.job.global_batch, self.job.model.num_layers)
        return [each for each in every if each.stages <= self.most_stages]

    @cached_property
    def _bounds_by_store(self) -> dict[tuple[Stored, ...], SkeletonBounds]:
        """Lower bounds from work alone, by what a store has."""
        dies = {each.dies for each in self.skeletons}
        stores = dict.fromkeys(each.store for each in self.skeletons)
        return {store: SkeletonBounds(self.job, self.cluster, self.framework, dies, store) for store in stores}

    @property
    def late(self) -> bool:
        """Whether the search has to end."""
        return time.monotonic() >= self.deadline or self.stop()

    @property
    def best_s(self) -> float:
        """The best step time so far."""
        return min((e.step_time_s for e in self.best_of.values()), default=float("inf"))

    @property
    def limit_s(self) -> float:
        """A branch with this bound or a higher one does not matter."""
        return min(self.below_s, self.best_s * (1 - max(self.gap, TOLERANCE)))

    @property
    def bound_s(self) -> float:
        """No plan takes less; infinite if nothing fits."""
        return min([*self._done.values(), *(bound_s for bound_s, _ in self._left())], default=float("inf"))

    @property
    def bounds(self) -> dict[TileSkeleton, float]:
        """No plan of a skeleton takes less; those that fit nowhere are missing."""
        lowest = dict(self._done)
        for bound_s, branch in self._left():
            lowest[branch.skeleton] = min(bound_s, lowest.get(branch.skeleton, bound_s))
        return lowest

    def _left(self) -> Iterator[tuple[float, Branch]]:
        yield from ((bound_s, branch) for bound_s, _, _, branch in self._open)
        if self._current is not None:
            yield self._current

    def offer(self, skeleton: TileSkeleton, evaluation: Evaluation) -> None:
        """Takes a plan that fits if it is the best of its skeleton."""
        if skeleton not in self.best_of or evaluation.step_time_s < self.best_of[skeleton].step_time_s:
            self.best_of[skeleton] = evaluation

    def run(self) -> None:
        """Searches until no branch can be faster, or time runs out."""
        for store, floors in self._bounds_by_store.items():
            skeletons = [each for each in self.skeletons if each.store == store]
            for zero_stage in self.zero_stages:
                # weights in a store are gathered by the layer at work
                if zero_stage == 3 or "weights" not in store:
                    bounds = floors.rough(skeletons) if self.lends else floors.bounds(skeletons, zero_stage)
                    for skeleton, bound in zip(skeletons, bounds.tolist(), strict=True):
                        self._push(bound, Branch(skeleton, zero_stage))
        if self.cluster.store is not None and self.best_s == float("inf"):
            self._try_fitting()
        while self._open and self._open[0][0] < self.limit_s and not self.late and not self._has_done_enough:
            self._dive(heappop(self._open))

    def _try_fitting(self) -> None:
        """Plans to begin with where dies are so small that few fit: of some tiles, the largest micro-batch that does.

        State and activations are in the store. What fits one micro-batch is taken to fit smaller ones.
        """
        lowest: dict[TileSkeleton, dict[int, float]] = {}
        for bound_s, _, _, branch in self._open:
            skeleton = branch.skeleton
            if skeleton.store == STORE_CHOICES[-1] and branch.zero_stage == 3:
                lowest.setdefault(replace(skeleton, batch=0), {})[skeleton.batch] = bound_s
        tiles = sorted(lowest, key=lambda each: (min(lowest[each].values()), each))
        try:
            for skeleton in tiles[:FIRST_TILES]:
                batches, fitting, too_large = sorted(lowest[skeleton]), -1, len(lowest[skeleton])
                while too_large - fitting > 1:
                    middle = (fitting + too_large) // 2
                    fits = self._fits(replace(skeleton, batch=batches[middle]))
                    fitting, too_large = (middle, too_large) if fits else (fitting, middle)
        except OutOfTimeError:
            return

    def _fits(self, skeleton: TileSkeleton) -> bool:
        """Whether a plan of a skeleton fits, by the layouts of its first tile; takes it if so."""
        layers = self._layers(skeleton, 3)
        tile = next(searched_tiles(layers, skeleton.rows, skeleton.cols), None)
        if tile is None:
            return False
        try:
            self._placed_s(Branch(skeleton, 3, tile), TileSearch(layers, tile, self.allowed).layouts())
        except InputError:  # tables too large: other tiles are tried
            return False
        return skeleton in self.best_of

    @property
    def _has_done_enough(self) -> bool:
        return self.work_limit is not None and len(self.seen) >= self.work_limit

    def _push(self, bound_s: float, branch: Branch) -> None:
        if bound_s == float("inf"):
            return
        self._number += 1
        heappush(self._open, (bound_s, -branch.steps, self._number, branch))

    def _dive(self, entry: Entry) -> None:
        """One step for a branch, and as long as it promises a much better plan the next ones too."""
        self._current = entry[0], entry[3]
        while self._current is not None:
            bound_s, branch = self._current
            try:
                branches = self._step(branch, bound_s)
            except OutOfTimeError:
                branches = [(bound_s, branch)]
            self._current = None
            goes_on = branches and not self.late and self._promises(*branches[0])
            for other in branches[1:] if goes_on else branches:
                self._push(*other)
            if goes_on:
                self._current = branches[0]

    def _promises(self, bound_s: float, branch: Branch) -> bool:
        """Whether a plan of a branch is worth making at once."""
        is_ready = branch.found is not None and bound_s < self.best_s * (1 - MUCH)
        return bound_s < self.limit_s and (self.best_s == float("inf") or is_ready)

    def _step(self, branch: Branch, bound_s: float) -> list[tuple[float, Branch]]:
        """What becomes of a branch when more is known of it, the most promising first; nothing if it is done."""
        skeleton, tile = branch.skeleton, branch.tile
        layers = self._layers(skeleton, branch.zero_stage)
        if tile is None:
            floor = self._bounds_by_store[skeleton.store].pipeline(skeleton, branch.zero_stage)
            bound_s = max(bound_s, self._bound(branch, floor, ()))
            if bound_s == float("inf"):
                return []
            tiles = searched_tiles(layers, skeleton.rows, skeleton.cols)
            return [(bound_s, replace(branch, tile=each, floor=floor)) for each in tiles]
        self.seen.add(skeleton)
        search = TileSearch(layers, tile, self.allowed)
        try:
            if branch.together is None:
                few = search.every_layout(FEW_LAYOUTS) if self._places_exactly(branch) else None
                if few is not None:
                    return self._close(branch, max(bound_s, self._placed_s(branch, few, everywhere=True)))
                found_s, branch = self._fastest(branch, search)
            elif branch.found is None:
                if self.best_s == float("inf"):
                    # any plan: it saves work everywhere
                    self._placed_s(branch, search.completed(branch.plain or search.at_prices()))
                    self._poll()
                found_s, branch = self._priced(branch, search)
            else:
                return self._close(branch, max(bound_s, self._placed(branch, search)))
        except InputError:  # tables too large: the bound stays as it was
            return self._close(branch, bound_s)
        return [(max(found_s, bound_s), branch)] if found_s < float("inf") else []

    def _close(self, branch: Branch, bound_s: float) -> list[tuple[float, Branch]]:
        """Remembers the bound of a branch that is done."""
        if bound_s < float("inf"):
            self._done[branch.skeleton] = min(bound_s, self._done.get(branch.skeleton, bound_s))
        return []

    def _layers(self, skeleton: TileSkeleton, zero_stage: int = 1, schedule: str = "1f1b") -> TileLayers:
        return TileLayers(self.job, self.cluster, self.framework, skeleton, zero_stage, schedule)

    def _lends(self, branch: Branch) -> bool:
        return self.lends and branch.skeleton.stages > 1

    def _places_exactly(self, branch: Branch) -> bool:
        """Whether layers and recompute of a layout are placed in the best way."""
        if not self.recompute and every_partition(branch.skeleton.stages, self.job.model.num_layers):
            return True
        return not self._lends(branch) and "activations" not in branch.skeleton.store

    def _bound(self, branch: Branch, floor: PipelineBound, lines: Sequence[Line]) -> float:
        """The bound of a branch; what stages hold for each other has no price."""
        return floor.least_lending_s() if self._lends(branch) else floor.least_s(as_lines(lines))

    def _fastest(self, branch: Branch, search: TileSearch) -> tuple[float, Branch]:
        """The bound if blocks have their fastest layout, and if their state has a price as well.

        Whatever a block's layout, the seconds it recomputes for saving less are at least those of the floor.
        """
        assert branch.floor is not None
        floor = branch.floor.with_block(search.least_s)
        branch = replace(branch, together=search.together, floor=floor)
        bound_s = self._bound(branch, floor, ())
        if self._lends(branch) or branch.skeleton.store:
            return bound_s, branch
        lines, plain = list[Line](), list[PricedLayout]()
        stages, microbatches = floor.pipeline
        saved, seconds = floor.saved_bytes[floor.main], floor.seconds[floor.main]
        state = max(floor.share_bytes - stages * float(saved[0]), 0.0)
        for layout in search.plain.search(0, state, self._price * search.least_s / floor.share_bytes):
            plain.append(layout)
            price = layout.prices[0]
            for in_flight in flights(stages, microbatches):
                again = float((seconds - seconds[-1] + price * in_flight * saved).min())
                lines.append((price, in_flight, layout.lowest + again))
            bound_s = self._bound(branch, floor, lines)
            if bound_s >= self.limit_s:
                break
            self._poll()
        return bound_s, replace(branch, lines=lines, plain=plain)

    def _priced(self, branch: Branch, search: TileSearch) -> tuple[float, Branch]:
        """The bound with a price on memory, and the layouts that are cheapest at these prices."""
        floor, together = branch.floor, branch.together
        assert floor is not None
        assert together is not None
        if self._lends(branch) or branch.skeleton.store:
            return 0.0, replace(branch, found=search.at_prices())
        stages, microbatches = floor.pipeline
        first = float(floor.seconds[floor.main, -1]) / floor.share_bytes
        found, lines = list[PricedLayout](), list(branch.lines)
        bound_s = self._bound(branch, floor, lines)
        try:
            block = search.priced(together, recompute=self.recompute)
        except InputError:  # tables too large: what is known with everything saved has to do
            return bound_s, replace(branch, found=[*branch.plain, *search.at_prices()])
        for in_flight in flights(stages, microbatches):
            for layout in block.search(in_flight, floor.share_bytes, self._price * first):
                found.append(layout)
                lines.append((layout.prices[0], in_flight, layout.lowest))
                before_s, bound_s = bound_s, self._bound(branch, floor, lines)
                if bound_s > before_s and layout.prices[0] > 0:
                    self._price = layout.prices[0] / first
                if bound_s >= self.limit_s:
                    return bound_s, replace(branch, found=found, lines=lines)
                self._poll()
        return bound_s, replace(branch, found=found, lines=lines)

    def _placed(self, branch: Branch, search: TileSearch) -> float:
        """Places the layouts of a branch; returns the bound with all its layers."""
        floor, found = branch.floor, branch.found
        assert floor is not None
        assert found is not None
        bound_s = self._bound(branch, floor.with_ends(search.ends_s()), branch.lines)
        if bound_s < self.limit_s:
            self._placed_s(branch, search.completed(found))
        return bound_s

    def _placed_s(self, branch: Branch, layouts: Sequence[TileLayouts], *, everywhere: bool = False) -> float:
        """Places layouts on stages; returns what no partition of them falls below, infinite if none fits.

        If `everywhere` stages are on all places they can have, if these are few.
        """
        skeleton, lowest = branch.skeleton, float("inf")
        if not layouts:
            return lowest
        plan = self._layers(skeleton, branch.zero_stage).plan_of(layouts[0])
        places, proven = tried_places(plan, self.cluster, lends=self.lends, everywhere=everywhere)
        schedules = [name for name in SCHEDULES if name in self.framework.pipeline_schedules]
        for schedule in schedules if skeleton.stages > 1 else ("1f1b",):
            layers = self._layers(skeleton, branch.zero_stage, schedule)
            for each, tiles in product(layouts, places):
                found = partitioned(
                    layers,
                    each,
                    tiles,
                    by_block=self.recompute,
                    lends=self.lends,
                    below_s=self.limit_s,
                    poll=self._poll,
                )
                for placed in found.plans:
                    self.offer(skeleton, placed)
                lowest = min(lowest, found.lower_bound_s)
                self._poll()
        # stages fit their tiles wherever these are, but others may be nearer to each other
        return lowest if proven or lowest == float("inf") else 0.0

    def _poll(self) -> None:
        if self.late:
            raise OutOfTimeError
