"""The elimination order of variables, and the bucket tree that follows from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True, slots=True)
class Bucket:
    """The elimination of one variable: its inputs, and the variables its result still depends on."""

    variable: int
    #: the other variables of its tables and messages, in ascending order
    separator: tuple[int, ...]
    #: tables of the problem that are used here
    tables: tuple[int, ...]
    #: earlier buckets whose messages are used here
    children: tuple[int, ...]

    @property
    def scope(self) -> tuple[int, ...]:
        """All variables of this bucket, the eliminated one last."""
        return (*self.separator, self.variable)


@dataclass(frozen=True, slots=True)
class Tree:
    """Buckets in elimination order; the last has a variable with one option and collects unconnected parts."""

    sizes: tuple[int, ...]
    buckets: tuple[Bucket, ...]
    #: the bucket that receives each message; the last bucket sends none
    parents: tuple[int, ...]


Steps = list[tuple[int, tuple[int, ...]]]


@dataclass(slots=True)
class _RemainingVariables:
    """Variables not yet eliminated, and how many variables each message has already gathered."""

    sizes: Sequence[int]
    growth: float
    around: dict[int, set[int]]
    messages: list[tuple[frozenset[int], int]]
    work: float = 0.0

    def size(self, variable: int) -> tuple[float, ...]:
        """Labels of the joint table, and entries of the message it becomes."""
        message = math.prod(self.sizes[v] for v in self.around[variable])
        return message * self.sizes[variable] * self.growth ** self.gathered(variable), message, variable

    def fill(self, variable: int) -> tuple[float, ...]:
        """New edges between neighbours."""
        new = sum(b not in self.around[a] for a, b in combinations(self.around[variable], 2))
        return new, *self.size(variable)

    def gathered(self, variable: int) -> int:
        """Variables gathered in the messages that meet at a variable."""
        return 1 + sum(count for scope, count in self.messages if variable in scope)

    def eliminate(self, variable: int) -> tuple[int, tuple[int, ...]]:
        """Eliminates a variable: its neighbours become neighbours of each other."""
        self.work += self.size(variable)[0]
        separator = self.around.pop(variable)
        gathered = self.gathered(variable)
        self.messages = [message for message in self.messages if variable not in message[0]]
        self.messages.append((frozenset(separator), gathered))
        for neighbour in separator:
            self.around[neighbour] |= separator - {neighbour}
            self.around[neighbour].discard(variable)
        return variable, tuple(sorted(separator))


def elimination_tree(sizes: Sequence[int], scopes: Sequence[tuple[int, ...]], growth: float = 1.0) -> Tree:
    """The cheaper of two greedy orders: smallest joint table first, or fewest new edges first.

    With sets of labels, an entry has about `growth` times as many labels per variable eliminated to make it.
    """
    ranks = (_RemainingVariables.size, _RemainingVariables.fill)
    _, order = min((_order(sizes, scopes, growth, rank) for rank in ranks), key=lambda outcome: outcome[0])
    return _tree(tuple(sizes), scopes, order)


def _order(
    sizes: Sequence[int],
    scopes: Sequence[tuple[int, ...]],
    growth: float,
    rank: Callable[[_RemainingVariables, int], tuple[float, ...]],
) -> tuple[float, Steps]:
    """The work of an order, and each variable with its neighbours at its elimination."""
    around: dict[int, set[int]] = {v: set() for v in range(len(sizes))}
    for scope in scopes:
        for variable in scope:
            around[variable].update(v for v in scope if v != variable)
    remaining = _RemainingVariables(sizes, growth, around, [])
    order: Steps = []
    while remaining.around:
        order.append(remaining.eliminate(min(remaining.around, key=lambda v: rank(remaining, v))))
    return remaining.work, order


def _tree(sizes: tuple[int, ...], scopes: Sequence[tuple[int, ...]], order: Steps) -> Tree:
    last = len(order)
    position = {variable: place for place, (variable, _) in enumerate(order)}
    tables: list[list[int]] = [[] for _ in range(last + 1)]
    children: list[list[int]] = [[] for _ in range(last + 1)]
    parents: list[int] = []
    for number, scope in enumerate(scopes):
        tables[min((position[v] for v in scope), default=last)].append(number)
    for place, (_, separator) in enumerate(order):
        parents.append(min((position[v] for v in separator), default=last))
        children[parents[-1]].append(place)
    buckets = [
        Bucket(variable, separator, tuple(tables[place]), tuple(children[place]))
        for place, (variable, separator) in enumerate([*order, (len(sizes), ())])
    ]
    return Tree((*sizes, 1), tuple(buckets), tuple(parents))
