"""Compiled steps of simulated annealing."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from baselines.flat_costs import FlatCosts
from baselines.random_kernels import below, share
from dovetail.arrays import Floats, Ints, Words


class Walker(NamedTuple):
    """The state of a search and the best choice so far; all arrays are mutable."""

    #: by variable: its option
    choice: Ints
    #: by table: the entry of that choice
    entries: Ints
    #: current cost, lowest cost so far, and temperature
    figures: Floats
    best_choice: Ints
    random: Words


@njit(cache=True)
def jump(flat: FlatCosts, walker: Walker) -> None:
    """Takes a random choice."""
    for variable in range(len(flat.sizes)):
        walker.choice[variable] = below(walker.random, flat.sizes[variable])
    add_up(flat, walker)
    _remember(walker)


@njit(cache=True)
def add_up(flat: FlatCosts, walker: Walker) -> None:
    """Looks up all entries of the choice again, so that rounding errors do not accumulate."""
    total = 0.0
    for table in range(len(flat.firsts)):
        entry = flat.firsts[table]
        for place in range(flat.scope_starts[table], flat.scope_starts[table + 1]):
            entry += flat.scope_strides[place] * walker.choice[flat.scope_variables[place]]
        walker.entries[table] = entry
        total += flat.values[entry]
    walker.figures[0] = total


@njit(cache=True)
def changes(flat: FlatCosts, walker: Walker, count: int) -> Floats:
    """Absolute cost changes of moves from random choices, without forbidden choices and zero changes."""
    differences = np.empty(count)
    n = 0
    for _ in range(count):
        jump(flat, walker)
        variable = int(flat.free[below(walker.random, len(flat.free))])
        change = abs(_change(flat, walker, variable, _other(flat, walker, variable)))
        if 0.0 < change < flat.penalty / 2:
            differences[n] = change
            n += 1
    return differences[:n]


@njit(cache=True)
def anneal(flat: FlatCosts, walker: Walker, steps: int, cooling: float, pairs: float) -> None:
    """Moves to other options of one variable, or (this share of the time) of two that share a table.

    Cheaper moves are accepted, moves dearer by d with probability exp(−d / temperature); after every step the
    temperature is multiplied by `cooling`.
    """
    random, figures = walker.random, walker.figures
    for _ in range(steps):
        temperature = figures[2]
        figures[2] = temperature * cooling
        variable = int(flat.free[below(random, len(flat.free))])
        option = _other(flat, walker, variable)
        change = _change(flat, walker, variable, option)
        neighbours = int(flat.near_starts[variable + 1] - flat.near_starts[variable])
        if pairs > 0.0 and neighbours > 0 and share(random) < pairs:
            before = int(walker.choice[variable])
            _take(flat, walker, variable, option)
            second = int(flat.near[flat.near_starts[variable] + below(random, neighbours)])
            other = _other(flat, walker, second)
            change += _change(flat, walker, second, other)
            if _accepted(random, change, temperature):
                _take(flat, walker, second, other)
                figures[0] += change
                _remember(walker)
            else:
                _take(flat, walker, variable, before)
        elif _accepted(random, change, temperature):
            _take(flat, walker, variable, option)
            figures[0] += change
            _remember(walker)


@njit(cache=True)
def _other(flat: FlatCosts, walker: Walker, variable: int) -> int:
    """Another option of a variable."""
    option = below(walker.random, int(flat.sizes[variable]) - 1)
    return option + 1 if option >= walker.choice[variable] else option


@njit(cache=True)
def _accepted(random: Words, change: float, temperature: float) -> bool:
    if change <= 0.0:
        return True
    # below e^-40 no random number falls
    return change < 40.0 * temperature and share(random) < math.exp(-change / temperature)


@njit(cache=True)
def _change(flat: FlatCosts, walker: Walker, variable: int, option: int) -> float:
    """The cost change of another option of a variable."""
    step = option - walker.choice[variable]
    difference = 0.0
    for place in range(flat.member_starts[variable], flat.member_starts[variable + 1]):
        entry = walker.entries[flat.member_tables[place]]
        difference += float(flat.values[entry + step * flat.member_strides[place]] - flat.values[entry])
    return difference


@njit(cache=True)
def _take(flat: FlatCosts, walker: Walker, variable: int, option: int) -> None:
    step = option - walker.choice[variable]
    for place in range(flat.member_starts[variable], flat.member_starts[variable + 1]):
        walker.entries[flat.member_tables[place]] += step * flat.member_strides[place]
    walker.choice[variable] = option


@njit(cache=True)
def _remember(walker: Walker) -> None:
    if walker.figures[0] < walker.figures[1]:
        walker.figures[1] = walker.figures[0]
        # not as slices, which take seconds to compile
        for variable in range(len(walker.choice)):
            walker.best_choice[variable] = walker.choice[variable]
