"""What objectives are worth for candidates of a study: figures of what was found, and lower bounds of any plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.arrays import TOLERANCE, Bools, Floats, Ints
from dovetail.bounds.least_work import least_work
from dovetail.cost.energy import NEEDED, operation_joules, standing_watts
from dovetail.cost.units import OPERANDS
from dovetail.errors import InputError
from dovetail.exploration.lines import Line, NotALineError
from dovetail.exploration.objective import Objective
from dovetail.exploration.position import Position
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.frozen import frozen
from dovetail.hardware.design import NARROW_RATES, Designs
from dovetail.hardware.silicon import Silicon
from dovetail.hardware.wafer_design import WaferDesigns
from dovetail.models import Job

#: Halvings of an interval of step times, on a scale of powers of two.
_HALVINGS = 64
_SHORTEST_S, _LONGEST_S = 2.0**-60, 2.0**60


@frozen
class Scores:
    """The objectives of candidates as functions of their step time: what is fixed for each is looked up once.

    Every figure rises with the step time T and the energy of a step, and the energy of any plan is at least
    `least_j` + `idle_w` · T.
    """

    objectives: tuple[Objective, ...]
    #: name in a formula → what it is for each candidate
    fixed: dict[str, Floats]
    tokens: float
    #: joules of a step that every plan spends, as a mean over jobs, and watts of all chips whatever runs
    least_j: Floats
    idle_w: Floats

    @staticmethod
    def of(study: ResolvedStudy, codes: Ints) -> Scores:
        """Those of some candidates."""
        count, objectives = len(codes), study.scored
        names = dict.fromkeys(name for each in objectives for name in each.expression.names)
        moving = ("step_s", "energy_j", "tokens_per_s")
        fixed = {name: np.zeros(count) for name in names if name not in moving}
        least_j, idle_w = np.zeros(count), np.zeros(count)
        for position, rows, designs in study.candidates(codes):
            here = study.positions[position]
            designed = here.space.designs(designs)
            for name in fixed:
                fixed[name][rows] = fixed_value(study, here, name, designed)
            if any(each.counts_energy for each in objectives):
                least, watts = _energy(study, here, designed)
                least_j[rows], idle_w[rows] = study.mean.of(least), watts * here.working(designed)
        return Scores(objectives, fixed, study.tokens, least_j, idle_w)

    def points(self, mean_s: Floats) -> Floats:
        """Lower bounds of the figures at these step times, candidates × objectives; infinite if a step time is."""
        with np.errstate(invalid="ignore"):
            return self.figures(mean_s, self.least_j + self.idle_w * mean_s)

    def figures(self, mean_s: Floats, energy_j: Floats) -> Floats:
        """The figures at step times and energies, candidates × objectives."""
        with np.errstate(divide="ignore", invalid="ignore"):
            moving = {"step_s": mean_s, "energy_j": energy_j, "tokens_per_s": self.tokens / mean_s}
        named = {**self.fixed, **moving}
        columns = [np.broadcast_to(each.figure(named.__getitem__), mean_s.shape) for each in self.objectives]
        figures = np.stack(columns, axis=1)
        figures[~np.isfinite(mean_s)] = np.inf
        return figures

    def latest_s(self, front: Floats) -> Floats:
        """The step time from which each candidate cannot improve a front: the minimum over the front's points.

        A point beats a candidate if all its figures are at most as large: for figures that grow with time, from some
        step time on; for the others, always or never.
        """
        count = len(self.least_j)
        latest = np.full(count, np.inf)
        if not len(front):
            return latest
        since_of = [self._since(number, count) for number in range(len(self.objectives))]
        for point in front:
            beaten = np.max([since(float(figure)) for since, figure in zip(since_of, point, strict=True)], axis=0)
            latest = np.minimum(latest, beaten)
        return np.maximum(latest, 0.0)

    def take(self, rows: Ints | Bools) -> Scores:
        """Those of some of the candidates."""
        fixed = {name: column[rows] for name, column in self.fixed.items()}
        return Scores(self.objectives, fixed, self.tokens, self.least_j[rows], self.idle_w[rows])

    def _since(self, number: int, count: int) -> _Since:
        """From which step time on a figure is no better than another."""
        objective = self.objectives[number]
        if objective.timed:
            moving = {
                "step_s": Line((0.0, 1.0)),
                "energy_j": Line((self.least_j, self.idle_w)),
                "tokens_per_s": Line((self.tokens, None), (0.0, 1.0)),
            }
            named = {**self.fixed, **moving}
            try:
                line = Line.of(objective.expression.number(named.__getitem__))  # type: ignore[arg-type]
                line = line if objective.better == "least" else line.inverse()
                return _SinceLine(*line.figure(count))
            except NotALineError:
                return _SinceCurve(self, number)
        (figures,) = self.alone(number).figures(np.ones(count), np.zeros(count)).T
        return _SinceLine(figures, np.zeros(count))

    def alone(self, number: int) -> Scores:
        """Those of one objective."""
        return Scores((self.objectives[number],), self.fixed, self.tokens, self.least_j, self.idle_w)


class _SinceLine:
    """Of a figure that is a line of the step time."""

    def __init__(self, base: Floats, slope: Floats) -> None:
        self._base, self._slope = base, slope

    def __call__(self, figure: float) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            since = (figure - self._base) / self._slope
        still = np.where(figure <= self._base, -np.inf, np.inf)
        return np.where(self._slope > 0, since, still)


class _SinceCurve:
    """Of any other: the interval is halved, and its upper end taken."""

    def __init__(self, scores: Scores, number: int) -> None:
        self._scores = scores._only(number)  # its own class

    def __call__(self, figure: float) -> Floats:
        count = len(self._scores.least_j)
        low, high = np.full(count, np.log2(_SHORTEST_S)), np.full(count, np.log2(_LONGEST_S))
        beyond = self._scores.points(np.exp2(high))[:, 0] < figure
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            beaten = self._scores.points(np.exp2(middle))[:, 0] >= figure
            low, high = np.where(beaten, low, middle), np.where(beaten, middle, high)
        return np.where(beyond, np.inf, np.exp2(high))


_Since = _SinceLine | _SinceCurve


def fixed_value(study: ResolvedStudy, position: Position, name: str, designs: Designs) -> Floats:
    """What a name of a formula stands for; figures of wafers are those of all their dies."""
    match name:
        case "tokens":
            return np.asarray(study.tokens)
        case "life_s":
            return np.asarray(study.prices.life_s)
        case "usd_per_joule":
            return np.asarray(study.prices.usd_per_joule)
        case "chips":
            return position.working(designs)
        case "total_area_mm2" | "total_power_w":
            one = {"total_area_mm2": "area_mm2", "total_power_w": "peak_power_w"}[name]
            return position.count * fixed_value(study, position, one, designs)
        case "total_price_usd":
            return position.count * fixed_value(study, position, "system_cost_usd", designs)
        case "area_mm2" if isinstance(designs, WaferDesigns):
            return designs.grid_dies * designs.die_mm2
        case "peak_power_w" if isinstance(designs, WaferDesigns):
            return position.space.values("wafer_power_w", designs)
        case "cost_usd" | "system_cost_usd" if isinstance(designs, WaferDesigns):
            return designs.grid_dies * position.space.values(name, designs)
        case _:
            values = position.space.values(name, designs)
            if (values < 0).any():
                what = f"is {float(values.min()):g} for a design"
                raise InputError(f"objectives: {name}", what, "a formula takes figures that are not negative")
            return values


def check_objectives(study: ResolvedStudy) -> None:
    """Raises an error if a formula names what designs do not have, or what needs a technology where there is none."""
    for objective in study.scored:
        where = f"objectives.{objective.name}"
        for position in study.positions:
            try:
                designs = position.space.designs([0])
                for name in objective.expression.names:
                    if name == "energy_j":
                        _energy(study, position, designs)
                    elif name not in ("step_s", "tokens_per_s"):
                        fixed_value(study, position, name, designs)
            except InputError as error:
                what = error.what if " needs a technology" not in error.what else f"needs an estimate: {error.what}"
                raise InputError(where, what, error.fix) from None


def _energy(study: ResolvedStudy, position: Position, designs: Designs) -> tuple[Floats, Floats]:
    """Joules of each job's step that every plan spends on operations, designs × jobs, and watts of a chip at rest.

    As in `energy_rates`: from the technology, or at peak power if it gives no energies.
    """
    space = position.space
    technology = space.formulas.technology
    jobs: Sequence[Job] = [job.job for job in study.jobs]
    if technology is None or not position.estimated or any(getattr(technology, name) is None for name in NEEDED):
        watts = np.broadcast_to(space.values("peak_power_w", designs), designs.shape)
        return np.zeros((*designs.shape, len(jobs))), watts
    shaped = designs
    if space.base.kind != "systolic":
        # chips without systolic arrays are priced as square ones: nothing is cheaper than a square
        side = np.sqrt(designs.macs_per_core)
        shaped = designs.varied({"rows": side, "cols": side})
    numbers = Silicon(shaped, technology).numbers
    standing = standing_watts(space.values("area_mm2", designs), numbers)
    peak = space.values("peak_power_w", designs)
    least: list[Floats] = []
    for job in jobs:
        work, sequences = least_work(job, None), job.global_batch
        macs = sequences * sum(work.over_layers(work.matrix_flops.sum(axis=-1))) / 2
        lanes = sequences * sum(work.over_layers(work.vector_flops))
        mac_j, lane_j = operation_joules(shaped, numbers)
        bits, _ = NARROW_RATES.get(job.precision, (16, 1.0))
        # a chip at its design power draws no more, and needs as long as its peak rate takes
        chip_s = 2 * macs / designs.peak_flops(OPERANDS[job.precision])
        spent = macs * mac_j * (bits / 16) + lanes * lane_j
        spent = np.minimum(spent, np.maximum(peak - standing, 0.0) * chip_s)
        least.append(np.broadcast_to(spent * (1 - TOLERANCE), designs.shape))
    return np.stack(least, axis=-1), np.broadcast_to(np.minimum(standing, peak), designs.shape)
