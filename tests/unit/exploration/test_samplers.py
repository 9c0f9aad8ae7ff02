"""Samplers: what every entry of the table keeps, that restarts change nothing, and that breeding beats chance."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import dovetail as dt
from dovetail.exploration.evolutionary import Evolutionary
from dovetail.exploration.pareto import pareto
from dovetail.exploration.sampler import Sampler
from dovetail.exploration.samplers import SAMPLERS
from dovetail.exploration.unseen import Order, Unseen
from dovetail.hardware.design_space import DesignSpace
from dovetail.hardware.design_space.space import Axis

WIDE = dt.hardware.space("phaze-wide")


def trimmed(**values: slice) -> DesignSpace:
    """The wide space with some values of each axis; axes not named keep their first two."""
    axes = [
        Axis(axis.name, {name: column[values.get(axis.name, slice(2))] for name, column in axis.values.items()})
        for axis in WIDE.axes
    ]
    return replace(WIDE, axes=tuple(axes))


#: 1,024 designs, some of them kept, and an axis with a single value.
SMALL = trimmed(tensor_cores=slice(4, 8), cols=slice(3, 5), rows=slice(4, 6), clock_hz=slice(1))
#: Cores that no chip has room for.
NONE_KEPT = trimmed(tensor_cores=slice(-1, None), cols=slice(-2, None), rows=slice(-2, None))


def kept(space: DesignSpace) -> list[int]:
    return [index for batch in space.batches() for index in batch.index.tolist()]


def smooth(indices: NDArray[np.int64], space: DesignSpace = WIDE, objectives: int = 2) -> NDArray[np.float64]:
    """Squared distances from as many corners of the space: no design has all of them least."""
    shape = [len(axis) for axis in space.axes]
    places = np.stack(np.unravel_index(indices, shape), axis=1) / np.maximum(np.array(shape) - 1, 1)
    return np.stack([((places - 0.2 - 0.3 * k) ** 2).sum(axis=1) for k in range(objectives)], axis=1)


def holed(indices: NDArray[np.int64], space: DesignSpace = WIDE, objectives: int = 2) -> NDArray[np.float64]:
    """The same, but nothing fits a third of the designs, and some lack one objective alone."""
    result = smooth(indices, space, objectives)
    result[indices % 3 == 0] = math.inf
    result[indices % 7 == 0, 0] = math.inf
    result[indices % 11 == 0, -1] = math.nan
    return result


def run(sampler: Sampler, sizes: list[int], objectives: int = 2) -> list[NDArray[np.int64]]:
    """Asks and tells in turn."""
    asked: list[NDArray[np.int64]] = []
    for size in sizes:
        asked.append(sampler.ask(size))
        sampler.tell(asked[-1], holed(asked[-1], objectives=objectives))
    return asked


def score(indices: NDArray[np.int64]) -> NDArray[np.float64]:
    """What hardware is chosen by before any result."""
    return smooth(indices, objectives=1)[:, 0]


#: The order of `phaze` ends early: test_area_groups.py has it.
@pytest.fixture(params=sorted(SAMPLERS.keys() - {"phaze"}))
def factory(request: pytest.FixtureRequest):
    return partial(SAMPLERS[request.param], score=score)


def test_the_small_spaces_are_what_they_are_for():
    assert 100 < len(kept(SMALL)) < SMALL.size
    assert kept(NONE_KEPT) == []


@pytest.mark.parametrize("objectives", [1, 2, 3, 4])
def test_only_kept_designs_and_none_twice(factory, objectives):
    asked = np.concatenate(run(factory(WIDE, objectives, 3), [64, 64, 1, 200, 64, 0, 50], objectives))
    assert asked.dtype == np.int64
    assert len(asked) == 443
    assert len(set(asked.tolist())) == len(asked)
    assert WIDE.keeps(asked).all()


def test_the_same_seed_and_tells_give_the_same_asks(factory):
    sizes = [64, 64, 30, 64]
    first, second, other = (run(factory(WIDE, 2, seed), sizes) for seed in (5, 5, 6))
    assert np.array_equal(np.concatenate(first), np.concatenate(second))
    assert not np.array_equal(np.concatenate(first), np.concatenate(other))


@pytest.mark.parametrize("pieces", [[222], [64, 64, 30, 64], [1, 100, 121]])
def test_told_the_results_of_a_store_it_goes_on_where_the_run_stopped(factory, pieces):
    before = factory(WIDE, 2, 5)
    results = np.concatenate(run(before, [64, 64, 30, 64]))
    after = factory(WIDE, 2, 5)
    for piece in np.split(results, np.cumsum(pieces)[:-1]):
        after.tell(piece, holed(piece))
    for _ in range(2):
        expected, found = before.ask(70), after.ask(70)
        assert np.array_equal(found, expected)
        before.tell(expected, holed(expected))
        after.tell(found, holed(found))


def test_asks_that_run_ahead_of_tells_repeat_nothing(factory):
    def ahead() -> NDArray[np.int64]:
        sampler = factory(WIDE, 2, 1)
        (first,) = run(sampler, [64])
        pending = [sampler.ask(40), sampler.ask(40)]
        for part in reversed(pending):
            sampler.tell(part, holed(part))
        return np.concatenate([first, *pending, sampler.ask(40)])

    asked = ahead()
    assert len(set(asked.tolist())) == len(asked) == 184
    assert np.array_equal(asked, ahead())


def test_designs_told_are_not_asked_for(factory):
    all_kept = np.array(kept(SMALL))
    sampler = factory(SMALL, 2, 0)
    sampler.tell(all_kept[:-5], smooth(all_kept[:-5], SMALL))
    assert sorted(sampler.ask(100).tolist()) == all_kept[-5:].tolist()


def test_asked_for_more_than_a_space_holds_it_returns_every_design_once(factory):
    sampler = factory(SMALL, 1, 0)
    first = sampler.ask(70)
    sampler.tell(first, smooth(first, SMALL, 1))
    rest = sampler.ask(10**6)
    assert sorted([*first.tolist(), *rest.tolist()]) == kept(SMALL)
    assert len(sampler.ask(5)) == 0


def test_a_space_that_keeps_nothing_has_nothing_to_ask(factory):
    assert len(factory(NONE_KEPT, 2, 0).ask(3)) == 0


def test_a_space_of_one_design(factory):
    index = kept(SMALL)[0]
    places = np.unravel_index(index, [len(axis) for axis in SMALL.axes])
    single = replace(
        SMALL,
        axes=tuple(
            Axis(axis.name, {name: column[place : place + 1] for name, column in axis.values.items()})
            for axis, place in zip(SMALL.axes, places, strict=True)
        ),
    )
    sampler = factory(single, 1, 0)
    assert sampler.ask(2).tolist() == [0]
    sampler.tell(np.zeros(200, np.int64), np.ones((200, 1)))
    assert sampler.ask(2).tolist() == []


@pytest.mark.parametrize("objectives", [1, 2, 4])
def test_where_nothing_fits_it_still_asks(factory, objectives):
    sampler = factory(WIDE, objectives, 0)
    for _ in range(3):
        asked = sampler.ask(64)
        assert len(asked) == 64
        sampler.tell(asked, np.full((64, objectives), math.inf))


def test_a_search_without_end_is_given_up(monkeypatch):
    monkeypatch.setattr(Unseen, "_FRUITLESS", 3 * 2**8)
    looked: list[int] = []
    keeps = DesignSpace.keeps
    monkeypatch.setattr(DesignSpace, "keeps", lambda self, i: (looked.append(len(i)), keeps(self, i) & False)[1])
    assert len(SAMPLERS["random"](WIDE, 1, 0).ask(3)) == 0
    assert sum(looked) < 2**11


def area(values: NDArray[np.float64], corner: float = 3.0) -> float:
    """What two objectives dominate below a corner."""
    front = values[pareto(values)]
    front = front[np.argsort(front[:, 0])]
    front = front[(front < corner).all(axis=1)]
    widths = np.diff(np.append(front[:, 0], corner))
    return float((widths * (corner - front[:, 1])).sum())


def test_breeding_beats_chance_on_a_smooth_function():
    reached: dict[str, float] = {}
    for name in ("evolutionary", "random"):
        areas: list[float] = []
        for seed in range(5):
            sampler, values = SAMPLERS[name](WIDE, 2, seed), np.empty((0, 2))
            for _ in range(12):
                asked = sampler.ask(64)
                sampler.tell(asked, smooth(asked))
                values = np.concatenate([values, smooth(asked)])
            areas.append(area(values))
        reached[name] = float(np.median(areas))
    best = area(smooth(best_designs()))
    # of what chance leaves to the true front breeding takes most
    assert best - reached["evolutionary"] < 0.5 * (best - reached["random"])


def best_designs() -> NDArray[np.int64]:
    """Designs around the true front: those of a coarse sieve over kept ones near the line between the corners."""
    random = np.random.default_rng(0)
    shape = np.array([len(axis) for axis in WIDE.axes])
    along = random.uniform(0.2, 0.5, (200_000, 1)) + random.normal(0, 0.08, (200_000, len(shape)))
    places = np.clip(np.rint(along * (shape - 1)).astype(np.int64), 0, shape - 1)
    indices = np.unique(np.ravel_multi_index(tuple(places.T), tuple(shape.tolist())))
    return indices[WIDE.keeps(indices)]


def test_a_generation_is_as_large_as_asked():
    sampler = Evolutionary(WIDE, 2, 0, population=8)
    chance = SAMPLERS["random"](WIDE, 2, 0)
    asked, drawn = sampler.ask(8), chance.ask(8)
    assert np.array_equal(asked, drawn)
    sampler.tell(asked[:7], smooth(asked[:7]))
    chance.tell(asked[:7], smooth(asked[:7]))
    assert np.array_equal(sampler.ask(1), chance.ask(1))
    sampler.tell(asked[7:], smooth(asked[7:]))
    assert not np.array_equal(sampler.ask(4), chance.ask(4))


def test_good_parents_outlive_a_bad_generation():
    designs = SAMPLERS["random"](WIDE, 1, 9).ask(10_000)
    values = smooth(designs, objectives=1)
    good, bad = designs[np.argsort(values[:, 0])[:64]], designs[np.argsort(values[:, 0])[-64:]]
    sampler = Evolutionary(WIDE, 1, 0)
    sampler.tell(good, smooth(good, objectives=1))
    sampler.tell(bad, np.full((64, 1), math.inf))
    assert np.median(smooth(sampler.ask(64), objectives=1)) < np.quantile(values, 0.1)


def test_parents_are_spread_over_the_front():
    sampler = Evolutionary(WIDE, 2, 0, population=4)
    designs = sampler.ask(8)
    sampler.tell(designs, np.array([[k, 7.0 - k] for k in range(8)]))
    assert {(0.0, 7.0), (7.0, 0.0)} <= {tuple(parent.values) for parent in sampler._parents}


def test_the_library_is_silent_for_us_alone_and_loaded_when_needed():
    import optuna

    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record)
    logging.getLogger("optuna").addHandler(handler)
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.DEBUG)
    try:
        run(SAMPLERS["evolutionary"](WIDE, 2, 0), [64, 64])
        assert optuna.logging.get_verbosity() == optuna.logging.DEBUG
        assert records == []
        optuna.create_study()
        assert len(records) == 1
    finally:
        optuna.logging.set_verbosity(before)
        logging.getLogger("optuna").removeHandler(handler)
    code = "import sys, dovetail.exploration.samplers; sys.exit('optuna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@given(st.integers(1, 3_000), st.integers(0, 2**32), st.integers(100, 4_000))
def test_an_order_holds_every_number_once_however_it_is_cut(size, seed, rows):
    order = Order(size, seed)
    parts = [order.between(first, min(first + rows, order.length)) for first in range(0, order.length, rows)]
    numbers = np.concatenate([part[1] for part in parts])
    positions = np.concatenate([part[0] for part in parts])
    assert sorted(numbers.tolist()) == list(range(size))
    assert (np.diff(positions) > 0).all()


@pytest.mark.parametrize("size", [10**6, 29_073_408, 10**15])
def test_an_order_looks_random(size):
    _, numbers = Order(size, 1).between(0, 20_000)
    tenths = np.bincount(10 * numbers // size, minlength=10)
    last = np.bincount(numbers % 13, minlength=13)
    for counts in (tenths, last):
        # mean 9 or 12 and spread about 5 where numbers are drawn at random
        assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 40
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.03
    _, others = Order(size, 2).between(0, 20_000)
    assert np.intersect1d(numbers, others).size < 3 * 20_000**2 / size + 10


def test_hardware_is_asked_for_in_the_order_of_its_score_alone():
    asked = SAMPLERS["hardware_first"](WIDE, 1, 0, score).ask(200)
    assert (np.diff(score(asked)) >= 0).all()
    # a climb finds designs that hardly any of as many drawn ones come near to
    assert score(asked)[0] < np.quantile(score(SAMPLERS["random"](WIDE, 1, 0).ask(4096)), 0.001)
    told = SAMPLERS["hardware_first"](WIDE, 1, 0, score)
    told.tell(asked[:100], -smooth(asked[:100], objectives=1))
    assert np.array_equal(told.ask(100), asked[100:])
