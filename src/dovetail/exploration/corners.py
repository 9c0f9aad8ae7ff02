"""Bounds of many similar designs at once: none is faster than one with the best value of every variable among them.

Designs that differ only in what makes a step shorter the more there is of it are a group; the chip with the most of
everything is its corner. Where profiles of the corner show that nothing of the group matters, its designs need none of
their own; otherwise the group is split in two, down to single designs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.exploration.unbeaten import faster_with_more
from dovetail.frozen import frozen
from dovetail.hardware import Cluster

#: Groups of at most so many designs are split into all of them.
_FEW = 3
#: Corners profiled at once.
_AT_ONCE = 512

#: Lower bounds of a job, by number, on clusters of a position, each refined until it reaches its limit.
Profiles = Callable[[int, int, Sequence[Cluster], Floats], Floats]


@frozen
class _Group:
    """Rows of candidates of one position, and what is proven of all of them, by job."""

    position: int
    rows: Ints
    least_s: Floats


def corner_bounds(study: ResolvedStudy, codes: Ints, least_s: Floats, latest_s: float, profiles: Profiles) -> Floats:
    """Lower bounds of candidates × jobs, no lower than `least_s`; those of candidates that matter are their own.

    A candidate matters if its mean step time may be below `latest_s`.
    """
    bounds_s = least_s.copy()
    columns = {name: np.zeros(len(codes)) for name in study.variables}
    for position, rows, designs in study.candidates(codes):
        space = study.positions[position].space
        here = space.designs(designs)
        for name in space.variables:
            columns[name][rows] = here.value(name)
    groups = list(_first_groups(study, codes, columns))
    while groups:
        some, groups = groups[:_AT_ONCE], groups[_AT_ONCE:]
        for group, found in zip(some, _profiled(study, some, columns, bounds_s, latest_s, profiles), strict=True):
            bounds_s[group.rows] = np.maximum(bounds_s[group.rows], found)
            if study.mean.of(found) < latest_s and len(group.rows) > 1:
                groups += _split(study, group, found, columns)
    return bounds_s


def _first_groups(study: ResolvedStudy, codes: Ints, columns: dict[str, Floats]) -> Iterator[_Group]:
    """Candidates of one position that differ only in what groups may differ in."""
    for position, rows, _ in study.candidates(codes):
        space = study.positions[position].space
        names = faster_with_more(space)
        rest = [columns[name][rows] for name in space.variables if name not in names]
        _, kind = np.unique(np.stack([np.zeros(len(rows)), *rest]), axis=1, return_inverse=True)
        kind = kind.reshape(-1)
        for k in range(int(kind.max()) + 1):
            yield _Group(position, rows[kind == k], np.zeros(len(study.jobs)))


def _profiled(
    study: ResolvedStudy,
    groups: Sequence[_Group],
    columns: dict[str, Floats],
    bounds_s: Floats,
    latest_s: float,
    profiles: Profiles,
) -> Floats:
    """Groups × jobs: bounds of their corners; of jobs that no longer matter those known."""
    # what is known of each design of a group bounds the group by its least
    found: Floats = np.stack([np.maximum(group.least_s, bounds_s[group.rows].min(axis=0)) for group in groups])
    for position in sorted({group.position for group in groups}):
        members = [n for n, group in enumerate(groups) if group.position == position]
        here, clusters = np.array(members, np.int64), [_corner(study, groups[n], columns) for n in members]
        for number in range(len(study.jobs)):
            most_s = study.mean.left(np.full(len(here), latest_s), found[here], number)
            (open_rows,) = np.nonzero(found[here, number] < most_s)
            seconds = profiles(number, position, [clusters[i] for i in open_rows.tolist()], most_s[open_rows])
            found[here[open_rows], number] = np.maximum(found[here[open_rows], number], seconds)
    return found


def _corner(study: ResolvedStudy, group: _Group, columns: dict[str, Floats]) -> Cluster:
    """A cluster of a chip with the most of every variable in a group."""
    place = study.positions[group.position]
    most = {name: np.array([columns[name][group.rows].max()]) for name in place.space.variables}
    (chip,) = place.space.chips_of(place.space.fixed.varied(most), ["corner"], ["the most of a group of designs"])
    return place.cluster(chip)


def _split(study: ResolvedStudy, group: _Group, least_s: Floats, columns: dict[str, Floats]) -> list[_Group]:
    """A group in two, at the middle value of what its designs differ most in; a small one into all of its designs."""
    if len(group.rows) <= _FEW:
        return [_Group(group.position, group.rows[n : n + 1], least_s) for n in range(len(group.rows))]
    widest, at, most = "", 0.0, 0.0
    for name in faster_with_more(study.positions[group.position].space):
        values = np.unique(columns[name][group.rows])
        spread = float(values[-1] / max(values[0], 1e-300))
        if len(values) > 1 and spread > most:
            widest, at, most = name, float(values[len(values) // 2]), spread
    upper = columns[widest][group.rows] >= at
    return [_Group(group.position, group.rows[part], least_s) for part in (~upper, upper)]
