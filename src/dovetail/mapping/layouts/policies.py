"""Which operators of a layer can be recomputed: the variables for it, and when an operator is recomputed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from dovetail.graph import Kind, LayerGraph
from dovetail.mapping.layouts.scoped import OptionScope, Scoped, constant
from dovetail.profile.recompute_space import saved_widths

#: Sets of groups; an operator is needed again if all groups of any one set are recomputed.
_Ways = frozenset[frozenset[int]]

#: Most options of one variable.
MOST_STATES = 8


class Policies:
    """Groups of operators that are saved or recomputed together, as variables from a number on.

    A group needed only if another is recomputed shares that group's variable: no option recomputes what nobody needs.
    """

    def __init__(self, graph: LayerGraph, groups: Sequence[Sequence[str]], first: int, *, may_recompute: bool) -> None:
        self.widths = saved_widths(graph, 1.0)
        losses = {o.tensor for op in graph.operators if op.kind is Kind.LOSS for o in op.outputs}
        saved = {name for operator in graph.operators for name in operator.saves}
        #: tensors the backward reads from memory or has recomputed
        self.needed = frozenset(n for n in saved if self.widths.get(n, 1.0) > 0 and n not in losses)
        ways = self._ways(graph, groups) if may_recompute else {}
        states = _states(groups, ways)
        #: by variable, by option: the operators that are recomputed
        self.options = tuple(
            tuple(tuple(name for g in sorted(state) for name in groups[g]) for state in each) for each in states
        )
        self.recomputed = {o.name: _is_recomputed(ways.get(o.name), states, first) for o in graph.operators}

    def _ways(self, graph: LayerGraph, groups: Sequence[Sequence[str]]) -> dict[str, _Ways]:
        """Operators the backward may need, and the groups that must be recomputed for that, their own included."""
        group_of = {name: number for number, group in enumerate(groups) for name in group}
        readers: dict[str, list[str]] = {}
        for operator in graph.operators:
            for operand in operator.inputs:
                readers.setdefault(operand.tensor, []).append(operator.name)
        ways: dict[str, _Ways] = {}
        for operator in reversed(graph.operators):
            mine = group_of[operator.name]
            if any(o.tensor in self.needed for o in operator.outputs):
                ways[operator.name] = frozenset({frozenset({mine})})
                continue
            after = [ways[n] for o in operator.outputs for n in readers.get(o.tensor, ()) if n in ways]
            candidates = {way | {mine} for each in after for way in each}
            if candidates:
                ways[operator.name] = frozenset(
                    way for way in candidates if not any(other < way for other in candidates)
                )
        return ways


def _states(groups: Sequence[Sequence[str]], ways: Mapping[str, _Ways]) -> list[tuple[frozenset[int], ...]]:
    """The groups that are recomputed, by variable and option."""
    # what must be recomputed for a group to be needed at all
    before: dict[int, frozenset[int]] = {}
    for g, names in enumerate(groups):
        group_ways = [way for name in names for way in ways.get(name, ())]
        if group_ways:
            common = group_ways[0]
            for way in group_ways[1:]:
                common = common & way
            before[g] = common - {g}
    members: dict[int, list[int]] = {g: [g] for g in before if not before[g]}
    for g in (g for g in before if before[g]):
        root = next((r for r in sorted(before[g]) if r in members), None)
        if root is None or 2 ** len(members[root]) > MOST_STATES:
            members[g] = [g]
        else:
            members[root].append(g)
    return [_closed(each, before) for each in members.values()]


def _closed(members: Sequence[int], before: Mapping[int, frozenset[int]]) -> tuple[frozenset[int], ...]:
    """The sets of members in which each comes with all members that must be recomputed for it."""
    closed: list[frozenset[int]] = []
    for flags in product((False, True), repeat=len(members)):
        members_run = frozenset(g for g, flag in zip(members, flags, strict=True) if flag)
        if all(before[g] & set(members) <= members_run for g in members_run):
            closed.append(members_run)
    return tuple(closed)


def _is_recomputed(ways: _Ways | None, states: Sequence[Sequence[frozenset[int]]], first: int) -> Scoped:
    """Whether an operator is recomputed: whether all groups of any of these sets are."""
    if ways is None:
        return constant(np.zeros((), np.bool_))
    place = {g: number for number, each in enumerate(states) for state in each for g in state}
    scope = OptionScope.of(*sorted({first + place[g] for way in ways for g in way}))
    values = np.zeros(tuple(len(states[v - first]) for v in scope.variables), np.bool_)
    for way in ways:
        all_run = np.ones((), np.bool_)
        for g in way:
            variable = first + place[g]
            runs = np.array([g in state for state in states[place[g]]])
            all_run = all_run & Scoped(OptionScope.of(variable), runs).over(scope)
        values |= all_run
    return Scoped(scope, values)
