"""Measured forward passes of experts against the model: reading them, errors per chip and kind, and the fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from dovetail import hardware
from dovetail.accuracy.gemm_timings import KERNELS, LAUNCH_S, SHORT_RUNS, GemmFit, at_efficiencies, descend
from dovetail.accuracy.table import TableRow, read_table
from dovetail.arrays import Bools, Floats
from dovetail.cost.calibration import generation_of
from dovetail.cost.contraction import MatrixUnits, gpu_seconds
from dovetail.cost.shapes import Gemm
from dovetail.cost.units import chip_units
from dovetail.frozen import frozen

NEEDED = (
    "chip", "kernel", "tokens", "hidden", "expert_ffn", "experts", "top_k", "moe_tp", "moe_ep", "dtype",
    "distribution", "seconds",
)  # fmt: skip

#: Kernels that training uses too → precisions. The others serve few tokens, or were not tuned for these shapes: they
#: take up to ten times as long.
TRAINING_KERNELS = {"moe_torch_flow_cutlass": ("bf16", "fp8"), "deepgemm": ("fp8_block",)}
#: Projections before the nonlinearity: all experts measured with these kernels have a gate.
PROJECTIONS = 2
#: Shapes of training: tokens of an expert, and its columns on one chip.
LEAST_TOKENS, LEAST_COLUMNS = 64, 512
#: More tokens or experts never lower the rate of tuned kernels below this part: rows that do were tuned badly.
TUNED = 0.7

#: Generations that stand in for those without measured products, as in accuracy.regenerate.
_SIBLINGS = {"blackwell-ultra": "blackwell"}
_CLIP = 0.5
_SWEEPS = 30


@frozen
class ExpertTimings:
    """Forward passes of one chip's experts, measured with kernels of one precision; arrays over the rows."""

    chip: str
    kernel: str
    #: tokens shown to the chip, of which its experts take their part
    tokens: Floats
    top_k: Floats
    experts: Floats
    #: experts of the chip, and their columns on it
    own: Floats
    columns: Floats
    hidden: Floats
    #: exponent of the power law that experts' loads follow; 0 where they are equal
    skew: Floats
    seconds: Floats

    @property
    def expert_tokens(self) -> Floats:
        """Tokens of an expert, on average over all experts."""
        return self.tokens * self.top_k / self.experts

    @property
    def flops(self) -> Floats:
        """Operations of the products under equal loads."""
        pairs = self.own * self.expert_tokens
        return 2 * pairs * self.hidden * self.columns * (PROJECTIONS + 1)

    def part(self, rows: Bools) -> ExpertTimings:
        """A selection of the rows."""
        arrays = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name not in ("chip", "kernel")}
        return replace(self, **arrays)


@frozen
class AroundProducts:
    """What measurements have around the products, which run as batches of dense ones do; fitted by `fit_grouped`.

    A layer has operators of its own for these: router, dispatch, nonlinearity and combine.
    """

    #: part of the streaming rate at which tokens are gathered by expert, activated, cast and summed
    streaming: float = 0.81
    #: choosing experts, sorting tokens and launching kernels, however few tokens there are
    start_s: float = 3.9e-5


AROUND_PRODUCTS = AroundProducts()


@frozen
class ExpertErrors:
    """Errors of predicted forward passes of experts, as fractions of the measured time."""

    chip: str
    kernel: str
    rows: int
    #: sum of absolute errors over the sum of times
    time_weighted: float
    median: float
    #: sum of predicted over sum of measured times, less 1
    bias: float


def read_grouped(path: Path | str) -> list[ExpertTimings]:
    """The forward passes of a CSV file that stand for training, by chip and precision."""
    cells: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    for row in read_table(path, NEEDED, NEEDED):
        name, chip = KERNELS.get(row.text("dtype").casefold(), ("",))[0], row.text("chip")
        if chip in hardware.chip_names() and name in TRAINING_KERNELS.get(row.text("kernel"), ()):
            cells.setdefault((chip, name), []).append(_shape(row))
    groups = [ExpertTimings(*key, *np.array(rows, np.float64).T) for key, rows in cells.items()]
    groups = [g.part((g.expert_tokens >= LEAST_TOKENS) & (g.columns >= LEAST_COLUMNS)) for g in groups]
    return [g.part(_tuned(g)) for g in groups if len(g.seconds)]


def balanced(group: ExpertTimings) -> ExpertTimings:
    """The rows whose experts have equal loads."""
    return group.part(group.skew == 0)


def grouped_report(
    timings: Iterable[ExpertTimings],
    products: Mapping[tuple[str, str], GemmFit],
    around: AroundProducts = AROUND_PRODUCTS,
) -> list[ExpertErrors]:
    """Errors per chip and precision, at the efficiencies of dense products (keys as `fit_gemm` gives)."""
    report: list[ExpertErrors] = []
    for group in timings:
        error = forward_seconds(group, products, around) / group.seconds - 1
        total = group.seconds.sum()
        weighted, bias = ((e * group.seconds).sum() / total for e in (np.abs(error), error))
        median = float(np.median(np.abs(error)))
        report.append(ExpertErrors(group.chip, group.kernel, len(error), float(weighted), median, float(bias)))
    return report


def fit_grouped(timings: Sequence[ExpertTimings], products: Mapping[tuple[str, str], GemmFit]) -> AroundProducts:
    """The constants with the least error on equal loads; chips and precisions count alike."""
    groups = [g for g in map(balanced, timings) if len(g.seconds)]

    def loss(values: Sequence[float]) -> float:
        around = AroundProducts(*values)
        return sum(_loss(group, forward_seconds(group, products, around)) for group in groups) / len(groups)

    return AroundProducts(*descend(loss, [0.6, 1e-5], [1.0, 1e-3], _SWEEPS))


def forward_seconds(
    group: ExpertTimings,
    products: Mapping[tuple[str, str], GemmFit],
    around: AroundProducts = AROUND_PRODUCTS,
) -> Floats:
    """The model's time of a measurement: permutation, both products, the nonlinearity and the sum."""
    units, width = _units(group, products), KERNELS[group.kernel][1].operand_bytes
    pairs = group.own * group.expert_tokens * fullest_share(group)
    each = pairs / group.own
    up = Gemm(group.own, each, PROJECTIONS * group.columns, group.hidden)
    down = Gemm(group.own, each, group.hidden, group.columns)
    activated = 2 * pairs * group.columns * (PROJECTIONS + 1)
    # tokens are read and written by expert; results are read and their sums written
    permuted = 4 * group.hidden * (np.minimum(group.tokens, pairs) + pairs)
    # what products read narrow is cast by kernels of its own
    cast = (2 + width) * pairs * (group.hidden + group.columns) if width < 2 else 0.0
    traffic = (activated + permuted + cast) / (around.streaming * units.memory_bytes_per_s)
    product = _short(up, units, width) + _short(down, units, width)
    return product + traffic + around.start_s


def fullest_share(group: ExpertTimings) -> Floats:
    """Load of the fullest chip's experts over the mean.

    The sources draw loads x of all experts from x^-skew between 1 and 0.8 of the tokens, and measure the chip with
    the largest sum (aiconfigurator, power_law_logits_v3); no expert can have more than all tokens.
    """
    share = np.ones(len(group.seconds))
    random = np.random.default_rng(0)
    for row in np.flatnonzero(group.skew):
        experts, low = int(group.experts[row]), 1 - group.skew[row]
        drawn = random.random((_DRAWS, experts))
        loads = ((0.8 * group.tokens[row]) ** low * drawn + (1 - drawn)) ** (1 / low)
        loads = loads / loads.sum(axis=1, keepdims=True) * group.tokens[row] * group.top_k[row]
        loads = np.minimum(loads, group.tokens[row]).reshape(_DRAWS, -1, int(group.own[row])).sum(axis=2).max(axis=1)
        share[row] = loads.mean() / (group.own[row] * group.expert_tokens[row])
    return share


_DRAWS = 16


def _short(gemm: Gemm, units: MatrixUnits, width: float) -> Floats:
    """A product in a measurement that ends before power limits the clock, as accuracy.gemm_timings has it."""
    steady = gpu_seconds(gemm, units, width)
    boosted = units.sustained * (1 + SHORT_RUNS.boost / (1 + steady / SHORT_RUNS.half_s))
    return gpu_seconds(gemm, replace(units, sustained=np.minimum(boosted, 1.0)), width)


def _units(group: ExpertTimings, products: Mapping[tuple[str, str], GemmFit]) -> MatrixUnits:
    """The chip at the rate of dense products of the precision, its memory as bf16 products have it."""
    name = generation_of(group.chip) or group.chip
    names = (group.chip, name, _SIBLINGS.get(name, name))
    rate, memory = (
        next(products[each, kernel] for each in names if (each, kernel) in products)
        for kernel in (group.kernel, "bf16")
    )
    units = chip_units(hardware.chip(group.chip), KERNELS[group.kernel][1].precision)
    return at_efficiencies(units, group.chip, rate.sustained, memory.memory, LAUNCH_S).matrix


def _loss(group: ExpertTimings, predicted: Floats) -> float:
    # half by time and half equally, as dense products are fitted
    weights = 0.5 * group.seconds / group.seconds.sum() + 0.5 / len(group.seconds)
    off = np.abs(np.log(predicted / group.seconds))
    return float((weights * np.minimum(off, _CLIP)).sum())


def _shape(row: TableRow) -> tuple[float, ...]:
    words = row.text("distribution").rpartition("_")
    skew = float(words[2]) if words[0] == "power_law" else 0.0
    tokens, top_k, experts = row.needed("tokens"), row.needed("top_k"), row.needed("experts")
    own, columns = experts / row.needed("moe_ep"), row.needed("expert_ffn") / row.needed("moe_tp")
    shape = (tokens, top_k, experts, own, columns, row.needed("hidden"))
    return (*shape, skew, row.number("seconds") or np.nan)


def _tuned(group: ExpertTimings) -> Bools:
    """Whether a row's kernel was tuned: no row of fewer tokens and experts of the same width is much faster."""
    rate = group.flops / group.seconds
    tuned = np.ones(len(rate), np.bool_)
    alike = np.stack([group.hidden, group.columns, group.skew])
    for shape in np.unique(alike, axis=1).T:
        rows = np.flatnonzero((alike == shape[:, None]).all(axis=0))
        fewer = group.expert_tokens[rows] <= group.expert_tokens[rows, None]
        fewer &= group.own[rows] <= group.own[rows, None]
        tuned[rows] = rate[rows] >= TUNED * np.where(fewer, rate[rows], 0).max(axis=1)
    return tuned
