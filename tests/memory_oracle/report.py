"""What a recorded step holds, moment by moment: peaks, their categories, and the tensors that live at them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from memory_oracle.allocations import CATEGORIES, Allocation, AllocationTrace, Change
from memory_oracle.case import Case

BEFORE = "before"


class Event(NamedTuple):
    """One storage made or freed in the second step; what lived before it was made at the moment "before"."""

    kind: str
    id: int
    bytes: int
    category: str
    operator: str
    moment: str


class Instant(NamedTuple):
    """A local maximum of the live bytes, reached by this allocation."""

    bytes: int
    operator: str
    shape: tuple[int, ...]
    dtype: str
    by_category: dict[str, int]


class LiveGroup(NamedTuple):
    """Live tensors alike in all of this: `bytes` is their sum, `made_in` the moment that made them."""

    operator: str
    bytes: int
    category: str
    tensors: int
    shape: tuple[int, ...]
    dtype: str
    made_in: str


@dataclass(frozen=True)
class Moment:
    """The most bytes allocated at any instant of a part of the step, and what they are."""

    name: str
    peak_bytes: int
    by_category: dict[str, int]
    live: tuple[Allocation, ...] = field(repr=False)
    #: all local maxima in order, the peak among them unless it is what the moment begins with
    instants: tuple[Instant, ...] = field(repr=False)


@dataclass(frozen=True)
class TracedStep:
    """The second step of a case: moments of its last micro-batch, and everything that was made and freed."""

    case: Case
    moments: list[Moment]
    #: every part of the step, forwards and earlier micro-batches too
    parts: list[Moment] = field(repr=False)
    changes: list[Event] = field(repr=False)

    @property
    def peak_bytes(self) -> int:
        """The most the whole step holds."""
        return max(part.peak_bytes for part in self.parts)

    def moment(self, name: str) -> Moment:
        """The moment or part of this name."""
        return next(part for part in (*self.moments, *self.parts) if part.name == name)


def events(traced: TracedStep) -> list[Event]:
    """What the second step made and freed, in order."""
    return traced.changes


def live_at(moment: Moment) -> list[LiveGroup]:
    """What lives at the peak of a moment, greatest sum first."""
    total: Counter[tuple[str, str, tuple[int, ...], str, str]] = Counter()
    count: Counter[tuple[str, str, tuple[int, ...], str, str]] = Counter()
    for one in moment.live:
        key = (one.operator, one.category, one.shape, one.dtype, one.moment)
        total[key] += one.nbytes
        count[key] += 1
    return [
        LiveGroup(key[0], nbytes, key[1], count[key], key[2], key[3], key[4]) for key, nbytes in total.most_common()
    ]


def report(case: Case, trace: AllocationTrace, first: int, first_mark: int) -> TracedStep:
    """Finds the greatest instant of every part of the second step, which begins at the change `first`."""
    live: dict[int, Allocation] = {}
    for change in trace.changes[:first]:
        if change.made:
            live[change.allocation.number] = change.allocation
        else:
            del live[change.allocation.number]
    for one in live.values():
        one.moment = BEFORE
    changes = [Event("alloc", one.number, one.nbytes, one.category, one.operator, BEFORE) for one in live.values()]
    held = set(live)
    parts: list[Moment] = []
    marks = trace.marks[first_mark:]
    for number, mark in enumerate(marks):
        end = marks[number + 1].before if number + 1 < len(marks) else len(trace.changes)
        part = trace.changes[mark.before : end]
        parts.append(moment_of(mark.moment, part, live))
        changes += [
            Event(
                "alloc" if change.made else "free",
                change.allocation.number,
                change.allocation.nbytes,
                change.allocation.category,
                change.allocation.operator,
                mark.moment,
            )
            for change in part
        ]
    leaked = [one for number, one in live.items() if number not in held]
    assert not leaked, f"the second step leaves more than the first: {leaked[:3]}"
    order = ["forward end", "loss"]
    order += [f"backward of layer {layer}" for layer in reversed(range(case.layers))]
    order += ["backward of embedding", "optimizer"]
    by_name = {part.name: part for part in parts}
    return TracedStep(case, [by_name[name] for name in order], parts, changes)


def moment_of(name: str, changes: list[Change], live: dict[int, Allocation]) -> Moment:
    """Plays these changes on what is live, and reports the greatest instant, the beginning included."""
    peak, at_peak = sum(one.nbytes for one in live.values()), tuple(live.values())
    level, instants = peak, []
    for number, change in enumerate(changes):
        one = change.allocation
        if not change.made:
            del live[one.number]
            level -= one.nbytes
            continue
        live[one.number] = one
        level += one.nbytes
        if level > peak:
            peak, at_peak = level, tuple(live.values())
        if number + 1 == len(changes) or not changes[number + 1].made:
            instants.append(Instant(level, one.operator, one.shape, one.dtype, by_category(live.values())))
    return Moment(name, peak, by_category(at_peak), at_peak, tuple(instants))


def by_category(allocations: Iterable[Allocation]) -> dict[str, int]:
    """Bytes of every category, none left out."""
    total = dict.fromkeys(CATEGORIES, 0)
    for one in allocations:
        total[one.category] += one.nbytes
    return total
