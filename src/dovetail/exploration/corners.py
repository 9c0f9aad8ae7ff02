"""Bounds of many similar designs at once: none is faster than one with the best value of every variable among them.

Designs that differ only in what makes a step shorter the more there is of it are a group; the chip with the most of
everything is its corner. Where profiles of the corner show that nothing of the group matters, its designs need none of
their own; otherwise the group is split in two, down to single designs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from dovetail.arrays import Bools, Floats, Ints, numbers
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.exploration.unbeaten import faster_with_more
from dovetail.frozen import frozen
from dovetail.hardware import Cluster
from dovetail.hardware.design import Designs

#: Groups of at most so many designs are split into all of them.
_FEW = 3
#: Corners profiled at once.
_AT_ONCE = 2048


class CornerBounds(Protocol):
    """Lower bounds of jobs, by number, on what differs from a position's base."""

    def by_physics(self, position: int, designs: Designs) -> Floats:
        """Of all jobs: designs × jobs."""
        ...

    def by_profiles(
        self, number: int, position: int, clusters: Sequence[Cluster], most_s: Floats, among: Sequence[Bools | None]
    ) -> tuple[Floats, list[Bools | None]]:
        """Of one job, each refined until it reaches its limit, and which plans may be below it.

        A cluster's plans that are not `among` those are known not to be.
        """
        ...


@frozen
class _Group:
    """Rows of candidates of one position, and what is proven of all of them, by job."""

    position: int
    rows: Ints
    least_s: Floats
    #: plans that may matter; of no job known at first
    among: tuple[Bools | None, ...]


def corner_bounds(study: ResolvedStudy, codes: Ints, least_s: Floats, latest_s: float, bounds: CornerBounds) -> Floats:
    """Lower bounds of candidates × jobs, no lower than `least_s`; those of candidates that matter are their own.

    A candidate matters if its mean step time may be below `latest_s`.
    """
    result_s = least_s.copy()
    columns = {name: np.zeros(len(codes)) for name in study.variables}
    for position, rows, designs in study.candidates(codes):
        space = study.positions[position].space
        here = space.designs(designs)
        for name in space.variables:
            columns[name][rows] = here.value(name)
    groups = list(_first_groups(study, codes, columns))
    while groups:
        some, groups = groups[:_AT_ONCE], groups[_AT_ONCE:]
        profiled = _profiled(study, some, columns, result_s, latest_s, bounds)
        for group in profiled:
            result_s[group.rows] = np.maximum(result_s[group.rows], group.least_s)
        is_open = [group for group in profiled if study.mean.of(group.least_s) < latest_s and len(group.rows) > 1]
        groups += _split(study, is_open, columns, bounds)
    return result_s


def _first_groups(study: ResolvedStudy, codes: Ints, columns: dict[str, Floats]) -> Iterator[_Group]:
    """Candidates of one position that differ only in what groups may differ in."""
    for position, rows, _ in study.candidates(codes):
        space = study.positions[position].space
        names = faster_with_more(space)
        rest = [columns[name][rows] for name in space.variables if name not in names]
        _, kind = np.unique(np.stack([np.zeros(len(rows)), *rest]), axis=1, return_inverse=True)
        kind = kind.reshape(-1)
        for k in range(int(kind.max()) + 1):
            yield _Group(position, rows[kind == k], np.zeros(len(study.jobs)), (None,) * len(study.jobs))


def _profiled(
    study: ResolvedStudy,
    groups: Sequence[_Group],
    columns: dict[str, Floats],
    known_s: Floats,
    latest_s: float,
    bounds: CornerBounds,
) -> list[_Group]:
    """The same groups with the bounds of their corners; of jobs that no longer matter those known."""
    # what is known of each design of a group bounds the group by its least
    found: Floats = np.stack([np.maximum(group.least_s, known_s[group.rows].min(axis=0)) for group in groups])
    among: list[list[Bools | None]] = [list(group.among) for group in groups]
    for position in sorted({group.position for group in groups}):
        members = [n for n, group in enumerate(groups) if group.position == position]
        here, clusters = np.array(members, np.int64), [_corner(study, groups[n], columns) for n in members]
        for number in range(len(study.jobs)):
            most_s = study.mean.left(np.full(len(here), latest_s), found[here], number)
            (rows,) = np.nonzero(found[here, number] < most_s)
            some = [clusters[i] for i in numbers(rows)]
            known = [among[n][number] for n in numbers(here[rows])]
            seconds, plans = bounds.by_profiles(number, position, some, most_s[rows], known)
            found[here[rows], number] = np.maximum(found[here[rows], number], seconds)
            for n, left in zip(numbers(here[rows]), plans, strict=True):
                among[n][number] = left
    return [
        replace(group, least_s=least_s, among=tuple(plans))
        for group, least_s, plans in zip(groups, found, among, strict=True)
    ]


def _corner(study: ResolvedStudy, group: _Group, columns: dict[str, Floats]) -> Cluster:
    """A cluster of a chip with the most of every variable in a group."""
    place = study.positions[group.position]
    most = {name: np.array([columns[name][group.rows].max()]) for name in place.space.variables}
    (chip,) = place.space.chips_of(place.space.fixed.varied(most), ["corner"], ["the most of a group of designs"])
    return place.cluster(chip)


def _split(
    study: ResolvedStudy, groups: Sequence[_Group], columns: dict[str, Floats], bounds: CornerBounds
) -> list[_Group]:
    """Groups in two, where physics says that both corners lose most; small ones into all of their designs."""
    result = [
        replace(group, rows=group.rows[n : n + 1])
        for group in groups
        if len(group.rows) <= _FEW
        for n in range(len(group.rows))
    ]
    large = [group for group in groups if len(group.rows) > _FEW]
    for position in sorted({group.position for group in large}):
        some = [group for group in large if group.position == position]
        space = study.positions[position].space
        halves = [_halves(faster_with_more(space), group, columns) for group in some]
        parts = [group.rows[half] for group, each in zip(some, halves, strict=True) for half in each]
        most = {name: np.array([columns[name][rows].max() for rows in parts]) for name in space.variables}
        # of both halves of every way to split
        seconds = study.mean.of(bounds.by_physics(position, space.fixed.varied(most))).reshape(-1, 2).sum(axis=1)
        ends = np.cumsum([len(each) // 2 for each in halves])
        for group, each, end in zip(some, halves, numbers(ends), strict=True):
            ways = seconds[end - len(each) // 2 : end]
            best = 2 * int(ways.argmax())
            result += [replace(group, rows=group.rows[half]) for half in each[best : best + 2]]
    return result


def _halves(names: Sequence[str], group: _Group, columns: dict[str, Floats]) -> list[Bools]:
    """The lower and the upper half of a group, by the middle value of every variable that differs."""
    halves: list[Bools] = []
    for name in names:
        values = columns[name][group.rows]
        places = np.unique(values)
        if len(places) > 1:
            upper = values >= places[len(places) // 2]
            halves += [~upper, upper]
    return halves
