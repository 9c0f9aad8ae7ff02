"""The choice of what to compute again as an integer program, and the boxes of labels a frontier says are empty."""

from __future__ import annotations

from dataclasses import dataclass

from ortools.sat.python import cp_model
from real_layers import TICK
from recompute_oracle import Forward

#: Kept bytes, footprint and seconds in ticks.
Label = tuple[int, int, int]
Corner = tuple[int | None, int | None]


@dataclass(frozen=True)
class EmptyBox:
    """No choice keeps at most so much, with at most this footprint, in at most this time; None: without limit."""

    kept: int | None
    footprint: int | None
    ticks: int | None

    def __contains__(self, label: Label) -> bool:
        limits = (self.kept, self.footprint, self.ticks)
        return all(limit is None or amount <= limit for amount, limit in zip(label, limits, strict=True))


class Program:
    """Whether labels at or below a box's corner are possible.

    Everything is a lower bound: what must be wanted, held or made again is, more may be. More never lowers a label, so
    the least labels are those of the definition.
    """

    def __init__(self, forward: Forward) -> None:
        self.model = cp_model.CpModel()
        self.forward = forward
        entries = forward.entries
        self.repeated = {name: self.model.new_bool_var(name) for name in forward.operators}
        self.wanted = [self.model.new_constant(1) if e.needed else self.model.new_bool_var("") for e in entries]
        self.held = [self.model.new_bool_var("") for _ in entries]
        self.paid = [self.model.new_bool_var("") for _ in entries]
        for place, entry in enumerate(entries):
            for reader in entry.readers & self.repeated.keys():
                self.model.add_implication(self.repeated[reader], self.wanted[place])
        for name, places in forward.written.items():
            for place in places:
                self._kept_or_made(name, place)
        self.kept = sum(int(e.bytes) * h for e, h in zip(entries, self.held, strict=True))
        self.footprint = self.kept + sum(
            int(entries[place].bytes) * self.repeated[name]
            for name in forward.operators
            for place in forward.written[name]
            if entries[place].needed
        )
        operators = [round(forward.operator_s[name] / TICK) * again for name, again in self.repeated.items()]
        made = [round(e.made_s / TICK) * p for e, p in zip(entries, self.paid, strict=True)]
        self.ticks = sum((*operators, *made))

    def _kept_or_made(self, name: str | None, place: int) -> None:
        wanted = self.wanted[place]
        made, kept = self.forward.held_by(place)
        if name is not None:
            again = self.repeated[name]
            for step in self.forward.way_back(place):
                self.model.add_bool_or(~wanted, ~again, self.paid[step])
        for now in (self.held[kept], *(self.paid[step] for step in made)):
            self.model.add_bool_or(*(() if name is None else (self.repeated[name],)), ~wanted, now)

    def least_ticks(self, kept: int | None, footprint: int | None) -> int | None:
        """The least time within limits of bytes; None where nothing keeps them."""
        model = self._within(EmptyBox(kept, footprint, None))
        model.minimize(self.ticks)
        solver = _solver()
        status = solver.solve(model)
        if status == cp_model.INFEASIBLE:
            return None
        assert status == cp_model.OPTIMAL
        return round(solver.objective_value)

    def is_empty(self, box: EmptyBox) -> bool:
        """Whether no choice has labels in a box."""
        solver = _solver()
        status = solver.solve(self._within(box))
        assert status in (cp_model.INFEASIBLE, cp_model.OPTIMAL, cp_model.FEASIBLE)
        return status == cp_model.INFEASIBLE

    def _within(self, box: EmptyBox) -> cp_model.CpModel:
        model = self.model.clone()
        for amount, limit in ((self.kept, box.kept), (self.footprint, box.footprint), (self.ticks, box.ticks)):
            if limit is not None:
                model.add(amount <= limit)
        return model


def _solver() -> cp_model.CpSolver:
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    return solver


def empty_boxes(labels: list[Label]) -> list[EmptyBox]:
    """Boxes that are empty if and only if every choice is on or behind these labels.

    Up to one footprint, labels are stairs of time over kept bytes. A choice of that footprint or more, below the next
    one's, that no label is at or below lies in a corner under the stairs: it keeps less than the next step, in less
    time than this one. A corner that the next footprint's stairs still have is limited by a later footprint.
    """
    boxes: list[EmptyBox] = []
    corners: dict[Corner, None] = {(None, None): None}
    for footprint in sorted({label[1] for label in labels}):
        next_corners = dict.fromkeys(_corners([(kept, ticks) for kept, f, ticks in labels if f <= footprint]))
        boxes += [EmptyBox(kept, footprint - 1, ticks) for kept, ticks in corners if (kept, ticks) not in next_corners]
        corners = next_corners
    return [*boxes, *(EmptyBox(kept, None, ticks) for kept, ticks in corners)]


def _corners(points: list[tuple[int, int]]) -> list[Corner]:
    """The most kept bytes and ticks below the stairs of points."""
    corners: list[Corner] = []
    least: int | None = None
    for kept, ticks in sorted(points):
        if least is None or ticks < least:
            corners.append((kept - 1, None if least is None else least - 1))
            least = ticks
    assert least is not None
    return [*corners, (None, least - 1)]
