"""The elimination order of variables, and the bucket tree that follows from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from dovetail.frozen import frozen


@frozen
class Bucket:
    """The elimination of one variable or of a copy of it: its inputs, and what its result still depends on."""

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


@frozen
class Tree:
    """Buckets in elimination order; the last has a variable with one option and collects unconnected parts."""

    sizes: tuple[int, ...]
    buckets: tuple[Bucket, ...]
    #: the bucket that receives each message; the last bucket sends none
    parents: tuple[int, ...]

    @property
    def work(self) -> int:
        """Entries of all joint tables."""
        return sum(math.prod(self.sizes[v] for v in bucket.scope) for bucket in self.buckets)


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

    def weighted_fill(self, variable: int) -> tuple[float, ...]:
        """Entries of the tables between neighbours that are new."""
        pairs = combinations(sorted(self.around[variable]), 2)
        new = sum(self.sizes[a] * self.sizes[b] for a, b in pairs if b not in self.around[a])
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


def split_tree(tree: Tree, scopes: Sequence[tuple[int, ...]], most: float) -> Tree:
    """The same order with joint tables of more than `most` entries split (mini-buckets).

    Their variable is then chosen several times over, so sums are lower bounds.
    """
    return _tree(tree.sizes[:-1], scopes, [bucket.variable for bucket in tree.buckets[:-1]], most)


def elimination_tree(sizes: Sequence[int], scopes: Sequence[tuple[int, ...]], growth: float = 1.0) -> Tree:
    """The cheapest of three greedy orders: smallest joint table first, or fewest or smallest new edges first.

    With sets of labels, an entry has about `growth` times as many labels per variable eliminated to make it.
    """
    ranks = (_RemainingVariables.size, _RemainingVariables.fill, _RemainingVariables.weighted_fill)
    _, order = min((_order(sizes, scopes, growth, rank) for rank in ranks), key=lambda outcome: outcome[0])
    return _tree(tuple(sizes), scopes, [variable for variable, _ in order])


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
    ranks = {variable: rank(remaining, variable) for variable in around}
    while ranks:
        variable = min(ranks, key=ranks.__getitem__)
        del ranks[variable]
        order.append(remaining.eliminate(variable))
        # only neighbours of what has new neighbours rank differently
        separator = order[-1][1]
        for other in {*separator}.union(*(remaining.around[v] for v in separator)):
            ranks[other] = rank(remaining, other)
    return remaining.work, order


def _tree(
    sizes: tuple[int, ...], scopes: Sequence[tuple[int, ...]], order: Sequence[int], most: float = math.inf
) -> Tree:
    """The buckets of an order; a variable whose bucket would have more than `most` entries gets several."""
    tables = {number: frozenset(scope) for number, scope in enumerate(scopes)}
    messages: dict[int, frozenset[int]] = {}
    buckets: list[Bucket] = []
    parents: dict[int, int] = {}
    for variable in order:
        found: list[tuple[frozenset[int], bool, int]] = [(s, True, n) for n, s in tables.items() if variable in s]
        found += [(s, False, n) for n, s in messages.items() if variable in s]
        for scope, group in _groups(found, sizes, most) or [(frozenset({variable}), [])]:
            place = len(buckets)
            used, children = ([n for _, is_table, n in group if is_table is kind] for kind in (True, False))
            parents |= dict.fromkeys(children, place)
            tables = {n: s for n, s in tables.items() if n not in used}
            messages = {n: s for n, s in messages.items() if n not in children}
            messages[place] = scope - {variable}
            separator = tuple(sorted(messages[place]))
            buckets.append(Bucket(variable, separator, tuple(sorted(used)), tuple(sorted(children))))
    last = len(buckets)
    parents |= dict.fromkeys(messages, last)
    buckets.append(Bucket(len(sizes), (), tuple(sorted(tables)), tuple(sorted(messages))))
    return Tree((*sizes, 1), tuple(buckets), tuple(parents[place] for place in range(last)))


BucketInput = tuple[frozenset[int], bool, int]


def _groups(
    found: Sequence[BucketInput], sizes: Sequence[int], most: float
) -> list[tuple[frozenset[int], list[BucketInput]]]:
    """Tables and messages that share a bucket: each joins the first group that stays small enough."""
    groups: list[tuple[frozenset[int], list[BucketInput]]] = []
    for each in sorted(found, key=lambda f: -math.prod(sizes[v] for v in f[0])):
        for number, (scope, group) in enumerate(groups):
            if most == math.inf or math.prod(sizes[v] for v in scope | each[0]) <= most:
                groups[number] = scope | each[0], [*group, each]
                break
        else:
            groups.append((each[0], [each]))
    return groups
