"""Compiled generations of a genetic search."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from baselines.flat_costs import FlatCosts
from baselines.random_kernels import below, bits, share
from dovetail.arrays import Floats, Ints, Words


class Population(NamedTuple):
    """A generation, arrays for the next one, and the best choice so far; all arrays are mutable."""

    #: individuals × variables
    choices: Ints
    #: individuals × tables: the entries of those choices
    entries: Ints
    costs: Floats
    next_choices: Ints
    next_entries: Ints
    next_costs: Floats
    best_choice: Ints
    #: the lowest cost so far, and since the population was last restarted
    lowest: Floats
    random: Words


class Breeding(NamedTuple):
    """How children are made."""

    #: tournament size: the best of these becomes a parent
    tournament: int
    #: share of children with two parents, and among those the share of one-point crossover (others: uniform)
    crossed: float
    one_point: float
    #: mean number of genes that mutate
    mutations: float


@njit(cache=True)
def settle(flat: FlatCosts, population: Population) -> None:
    """Starts a population of random choices."""
    population.lowest[1] = np.inf
    for person in range(len(population.costs)):
        for variable in range(len(flat.sizes)):
            population.choices[person, variable] = below(population.random, flat.sizes[variable])
        for table in range(len(flat.firsts)):
            entry = flat.firsts[table]
            for place in range(flat.scope_starts[table], flat.scope_starts[table + 1]):
                entry += flat.scope_strides[place] * population.choices[person, flat.scope_variables[place]]
            population.entries[person, table] = entry
        _cost(flat, population, population.choices, population.entries, population.costs, person)


@njit(cache=True)
def breed(flat: FlatCosts, population: Population, breeding: Breeding, generations: int) -> int:
    """Runs generations; returns for how many the lowest cost of this population has not fallen.

    The best of a generation survives.
    """
    random, n = population.random, len(population.costs)
    choices, entries, costs = population.choices, population.entries, population.costs
    next_choices, next_entries, next_costs = population.next_choices, population.next_entries, population.next_costs
    stale = 0
    for _ in range(generations):
        before = population.lowest[1]
        next_costs[0] = _copy(choices, entries, costs, int(np.argmin(costs)), next_choices, next_entries, 0)
        for child in range(1, n):
            first = _parent(random, costs, breeding.tournament)
            _copy(choices, entries, costs, first, next_choices, next_entries, child)
            if share(random) < breeding.crossed:
                second = _parent(random, costs, breeding.tournament)
                one_point = share(random) < breeding.one_point
                _cross(flat, random, choices, second, one_point, next_choices, next_entries, child)
            _mutate(flat, random, breeding.mutations, next_choices, next_entries, child)
            _cost(flat, population, next_choices, next_entries, next_costs, child)
        choices, next_choices = next_choices, choices
        entries, next_entries = next_entries, entries
        costs, next_costs = next_costs, costs
        stale = 0 if population.lowest[1] < before else stale + 1
    if generations % 2:
        for person in range(n):
            population.costs[person] = _copy(
                choices, entries, costs, person, population.choices, population.entries, person
            )
    return stale


# Rows are passed by number: views would cost as much as making a child, and slices take seconds to compile.


@njit(cache=True)
def _copy(choices: Ints, entries: Ints, costs: Floats, person: int, onto: Ints, onto_entries: Ints, row: int) -> float:
    for variable in range(choices.shape[1]):
        onto[row, variable] = choices[person, variable]
    for table in range(entries.shape[1]):
        onto_entries[row, table] = entries[person, table]
    return costs[person]


@njit(cache=True)
def _cross(
    flat: FlatCosts, random: Words, parents: Ints, second: int, one_point: bool, choices: Ints, entries: Ints, row: int
) -> None:
    """Crossover with a second parent: one-point or uniform."""
    n = choices.shape[1]
    first_gene = below(random, n) + 1 if one_point else 0
    coins = bits(random)
    for variable in range(first_gene, n):
        if variable % 64 == 63:
            coins = bits(random)
        option = parents[second, variable]
        # in later generations parents share most genes
        if option != choices[row, variable] and (one_point or coins & np.uint64(1)):
            _take(flat, variable, option, choices, entries, row)
        coins >>= np.uint64(1)


@njit(cache=True)
def _mutate(flat: FlatCosts, random: Words, mutations: float, choices: Ints, entries: Ints, row: int) -> None:
    """Mutates genes at geometric distances with this mean rate, which needs few random numbers."""
    stop = 1.0 / (1.0 + mutations)
    while share(random) >= stop:
        variable = int(flat.free[below(random, len(flat.free))])
        option = below(random, int(flat.sizes[variable]) - 1)
        _take(flat, variable, option + 1 if option >= choices[row, variable] else option, choices, entries, row)


@njit(cache=True)
def _take(flat: FlatCosts, variable: int, option: int, choices: Ints, entries: Ints, row: int) -> None:
    step = option - choices[row, variable]
    for place in range(flat.member_starts[variable], flat.member_starts[variable + 1]):
        entries[row, flat.member_tables[place]] += step * flat.member_strides[place]
    choices[row, variable] = option


@njit(cache=True)
def _cost(flat: FlatCosts, population: Population, choices: Ints, entries: Ints, costs: Floats, row: int) -> None:
    """Sums the entries of a choice, and records it if it is the best."""
    total = 0.0
    for table in range(entries.shape[1]):
        total += flat.values[entries[row, table]]
    costs[row] = total
    if total < population.lowest[1]:
        population.lowest[1] = total
    if total < population.lowest[0]:
        population.lowest[0] = total
        for variable in range(choices.shape[1]):
            population.best_choice[variable] = choices[row, variable]


@njit(cache=True)
def _parent(random: Words, costs: Floats, tournament: int) -> int:
    """The best of some random individuals."""
    best = below(random, len(costs))
    for _ in range(tournament - 1):
        other = below(random, len(costs))
        best = other if costs[other] < costs[best] else best
    return best
