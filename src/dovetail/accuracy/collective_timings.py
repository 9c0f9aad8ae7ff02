"""Measured collectives against the model: reading them, the error per chip and operation, and the fit."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dovetail import hardware
from dovetail.accuracy.row_cluster import MAX_NODE
from dovetail.accuracy.table import TableRow, read_table
from dovetail.arrays import TOLERANCE, Floats
from dovetail.cost.calibration import calibration, generation_of
from dovetail.cost.collective import TRANSPORT, Transport, tiered_seconds
from dovetail.cost.tier import TierArrays
from dovetail.cost.units import NETWORK_STARTS
from dovetail.errors import InputError, quoted
from dovetail.frozen import frozen
from dovetail.hardware import MAX_CHIPS, Tier
from dovetail.layout import CollectiveKind

#: Names sources and drivers give chips → ids of the catalogue; catalogue ids map to themselves.
CHIPS: Mapping[str, str] = {
    "a100-40gb-sxm": "a100-40gb", "a100-40gb-sxm (p4d)": "a100-40gb", "nvidia a100-sxm4-40gb": "a100-40gb",
    "a100-80gb-sxm": "a100-80gb", "nvidia a100-sxm4-80gb": "a100-80gb", "nvidia a800-sxm4-80gb": "a800-80gb",
    "h100-80gb-sxm": "h100-sxm", "nvidia h100 80gb hbm3": "h100-sxm", "nvidia h800": "h800-sxm",
    "h200-141gb": "h200-sxm", "nvidia h200": "h200-sxm", "b200-180gb": "b200", "nvidia b200": "b200",
    "nvidia gb200": "gb200", "nvidia b300 sxm6 ac": "b300", "nvidia gb300": "gb300",
    "amd instinct mi300x": "mi300x",
}  # fmt: skip

OPERATIONS: Mapping[str, CollectiveKind] = {
    "all_reduce": CollectiveKind.ALL_REDUCE, "allreduce": CollectiveKind.ALL_REDUCE,
    "all_gather": CollectiveKind.ALL_GATHER, "allgather": CollectiveKind.ALL_GATHER,
    "reduce_scatter": CollectiveKind.REDUCE_SCATTER, "reducescatter": CollectiveKind.REDUCE_SCATTER,
    "alltoall": CollectiveKind.ALL_TO_ALL, "all_to_all": CollectiveKind.ALL_TO_ALL,
    "all2all": CollectiveKind.ALL_TO_ALL, "sendrecv": CollectiveKind.PERMUTE,
}  # fmt: skip

NEEDED = ("chip", "num_chips", "op", "size_bytes")
OPTIONAL = ("kind", "source", "fabric", "num_nodes", "time_us", "busbw_GBs", "inter_node_gbps_per_node", "notes")

#: How sources state what one chip, or one node, can send to others.
_PER_CHIP = re.compile(r"(\d+) ?GB/s per GPU")
_PER_NODE = re.compile(r"(\d+) ?GB/s/node")
_ADAPTERS = re.compile(r"(\d+)x ?(?:NDR|HDR)?(\d+)G?\b")
#: Words by which a source says that a figure is not what the hardware does.
_DOUBTED = ("mis-configured", "looks low")
#: Words for an all-reduce without in-switch reduction.
_NO_SWITCHES = ("NVLS off", "ring")

#: From here on a message counts as large.
LARGE = 2**20
#: Weight of small messages in a fit: training mostly sends large ones.
_SMALL_WEIGHT = 0.35
#: Between nodes we fit only messages of this size and more: latencies of networks and hosts differ too much.
HUGE = 2**28
#: A generation with fewer timings inside nodes is not fitted.
FEWEST = 16


@frozen
class CollectiveTiming:
    """One measured collective."""

    chip: str
    """id of the catalogue"""
    kind: CollectiveKind
    chips: int
    nodes: int
    size_bytes: float
    """as layout.Collective.bytes and nccl-tests state it"""
    seconds: float
    network_bytes_per_s: float | None = None
    """what one chip can send to other nodes, if stated; else the catalogue's figure"""
    switches_add: bool = True
    """False if in-switch reduction was off"""
    source: str = ""


@frozen
class CollectiveTimings:
    """The measured collectives of a file, and why its other rows cannot be compared."""

    timings: tuple[CollectiveTiming, ...]
    left_out: tuple[str, ...]


@frozen
class LinkFit:
    """What the links inside a node sustain, and what a collective costs before its first byte."""

    link: float
    launch_s: float
    rows: int


@frozen
class CollectiveFit:
    """Fitted figures: per generation of chips, of networks between nodes, and of the protocols all share."""

    generations: Mapping[str, LinkFit]
    network: float | None
    """None without measurements between nodes"""
    transport: Transport = TRANSPORT


@frozen
class CollectiveError:
    """Errors of one chip, operation and number of chips, as fractions; None if there are no such rows."""

    chip: str
    kind: CollectiveKind
    chips: int
    nodes: int
    rows: int
    large: float | None
    """mean absolute error of messages of 1 MiB and more"""
    bias: float | None
    """mean signed error of the same: above 0 the model is slower than measured"""
    small: float | None


def read_collectives(path: Path | str) -> CollectiveTimings:
    """The measured collectives of a CSV file; skips rows of other kinds and unknown chips."""
    timings: list[CollectiveTiming] = []
    left_out: list[str] = []
    for row in read_table(path, NEEDED, NEEDED + OPTIONAL):
        if row.text("kind") not in ("", "collective"):
            continue
        try:
            reason = _unusable(row)
            if reason is None:
                timings.append(_timing(row))
            else:
                left_out.append(f"line {row.line}: {reason}")
        except InputError as error:
            raise InputError(f"{path}, line {row.line}: {error.where}", error.what, error.fix) from None
    return CollectiveTimings(tuple(timings), tuple(left_out))


def catalogue_chip(name: str) -> str | None:
    """The catalogue's id of a chip a source or driver names; None if it is not in the catalogue."""
    chip_id = CHIPS.get(name.strip().casefold(), name.strip().casefold())
    return chip_id if chip_id in hardware.chip_names() else None


def check_timing(timing: CollectiveTiming) -> CollectiveTiming:
    """The timing; raises an error unless the catalogue knows which links it used."""
    if not 1 < timing.chips <= MAX_CHIPS:
        raise InputError("num_chips", f"is {timing.chips}", f"it should be 2 to {MAX_CHIPS}")
    if timing.chips % timing.nodes:
        raise InputError("num_nodes", f"is {timing.nodes}", f"it should divide the {timing.chips} chips")
    _groups(timing)
    return timing


def predicted_seconds(
    timings: Sequence[CollectiveTiming], fit: CollectiveFit | None = None, transport: Transport = TRANSPORT
) -> Floats:
    """The model's prediction of each, with the fit's figures where it has them and the shipped ones elsewhere."""
    link, launch, network = np.empty((3, len(timings)))
    for i, timing in enumerate(timings):
        chip = hardware.chip(timing.chip)
        shipped = calibration(chip, "bf16").efficiencies
        link_fit = fit.generations.get(_generation(chip.name)) if fit is not None else None
        link[i], launch[i] = (
            (link_fit.link, link_fit.launch_s) if link_fit else (shipped.link, shipped.collective_launch_s)
        )
        network[i] = fit.network if fit is not None and fit.network is not None else shipped.network
    return _priced(_batches(timings), link, launch, network, transport if fit is None else fit.transport)


def collective_report(
    timings: Sequence[CollectiveTiming], fit: CollectiveFit | None = None
) -> tuple[CollectiveError, ...]:
    """Errors per chip, operation, chips and nodes."""
    errors = predicted_seconds(timings, fit) / np.array([t.seconds for t in timings]) - 1 if timings else np.empty(0)
    members: dict[tuple[str, CollectiveKind, int, int], list[int]] = defaultdict(list)
    for i, timing in enumerate(timings):
        members[timing.chip, timing.kind, timing.nodes, timing.chips].append(i)
    large = np.array([t.size_bytes >= LARGE for t in timings], dtype=bool)
    lines: list[CollectiveError] = []
    for (chip, kind, nodes, chips), rows in sorted(members.items()):
        of_large, of_small = errors[rows][large[rows]], errors[rows][~large[rows]]
        parts = (_mean(np.abs(of_large)), _mean(of_large), _mean(np.abs(of_small)))
        lines.append(CollectiveError(chip, kind, chips, nodes, len(rows), *parts))
    return tuple(lines)


def fit_collectives(timings: Sequence[CollectiveTiming], transport: Transport | None = TRANSPORT) -> CollectiveFit:
    """Link efficiency and launch per generation from runs inside nodes, one network efficiency from the others.

    Minimises the mean |log(model / measured)| by a search along one figure at a time with halving steps: equal rows
    give equal figures. Without a `transport` its constants are fitted too, on all generations together.
    """
    rows = Counter(_generation(t.chip) for t in timings if len(_groups(t)) == 1)
    names = sorted(name for name, count in rows.items() if count >= FEWEST)
    inside = [t for t in timings if len(_groups(t)) == 1 and _generation(t.chip) in names]
    which = np.array([names.index(_generation(t.chip)) for t in inside], dtype=np.intp)
    batches, loss, ones = _batches(inside), _Loss(inside), np.ones(len(inside))

    def misfit(values: Sequence[float]) -> float:
        link, launch = np.array(values[: len(names)]), np.array(values[len(names) : 2 * len(names)])
        shared = transport or Transport(*values[2 * len(names) :])
        return loss(_priced(batches, link[which], launch[which], ones, shared))

    start = [0.8] * len(names) + [8e-6] * len(names)
    constants = [] if transport else [getattr(TRANSPORT, f.name) for f in fields(Transport)]
    values = _descend(misfit, start + constants) if names else start + constants
    links = {n: LinkFit(values[i], values[len(names) + i], rows[n]) for i, n in enumerate(names)}
    fit = CollectiveFit(links, None, transport or Transport(*values[2 * len(names) :]))
    between = [t for t in timings if len(_groups(t)) > 1 and t.size_bytes >= HUGE]
    if not between:
        return fit
    far = _Loss(between, per_source=True)
    return replace(
        fit, network=_descend(lambda v: far(predicted_seconds(between, replace(fit, network=v[0]))), [0.9])[0]
    )


class _Loss:
    """Mean |log(model / measured)| over messages, small ones at less weight, or over sources."""

    def __init__(self, timings: Sequence[CollectiveTiming], *, per_source: bool = False) -> None:
        self._measured = np.array([t.seconds for t in timings])
        weight = np.array([1.0 if t.size_bytes >= LARGE else _SMALL_WEIGHT for t in timings])
        if per_source:
            count = Counter(t.source for t in timings)
            weight = np.array([1 / count[t.source] for t in timings])
        self._weight = weight / max(float(np.sum(weight)), 1e-300)

    def __call__(self, seconds: Floats) -> float:
        return float(np.sum(self._weight * np.abs(np.log(seconds / self._measured))))


def _descend(loss: Callable[[Sequence[float]], float], start: Sequence[float]) -> list[float]:
    """Minimises a loss by scaling one value at a time; efficiencies stay at most 1, which seconds never reach."""
    values, best, step = list(start), loss(start), 0.25
    while step > 1e-3:
        improved = False
        for i in range(len(values)):
            for factor in (1 + step, 1 / (1 + step)):
                tried = [*values[:i], min(values[i] * factor, 1.0), *values[i + 1 :]]
                if (got := loss(tried)) < best - TOLERANCE:
                    values, best, improved = tried, got, True
        step = step if improved else step / 2
    return [float(f"{value:.4g}") for value in values]


@frozen
class _Batch:
    """Timings of one kind over equally many tiers, to be priced in one call; arrays are per tier and timing."""

    kind: CollectiveKind
    adding: tuple[bool, ...]
    rows: NDArray[np.intp]
    size: Floats
    chips: Floats
    bytes_per_s: Floats
    latency_s: Floats


def _batches(timings: Sequence[CollectiveTiming]) -> list[_Batch]:
    members: dict[tuple[CollectiveKind, tuple[bool, ...]], list[int]] = defaultdict(list)
    tiers = [_groups(timing) for timing in timings]
    for i, (timing, groups) in enumerate(zip(timings, tiers, strict=True)):
        adding = tuple(tier.in_network_reduction and timing.switches_add for _, tier in groups)
        members[timing.kind, adding].append(i)
    batches: list[_Batch] = []
    for (kind, adding), rows in members.items():
        # the links of each timing by tier, figure and row
        links = np.array([[(n, t.bytes_per_s, t.latency_s) for n, t in tiers[i]] for i in rows]).transpose(2, 1, 0)
        size = np.array([timings[i].size_bytes for i in rows])
        batches.append(_Batch(kind, adding, np.array(rows, dtype=np.intp), size, links[0], links[1], links[2]))
    return batches


def _priced(batches: Sequence[_Batch], link: Floats, launch: Floats, network: Floats, transport: Transport) -> Floats:
    seconds = np.empty(len(link))
    for batch in batches:
        groups: list[tuple[Floats, TierArrays]] = []
        for t, adds in enumerate(batch.adding):
            efficiency = (network if t else link)[batch.rows]
            start = launch[batch.rows] * (NETWORK_STARTS if t else 1)
            links = TierArrays(batch.bytes_per_s[t], batch.latency_s[t], start, efficiency, adds)
            groups.append((batch.chips[t], links))
        seconds[batch.rows] = tiered_seconds(batch.kind, groups, batch.size, transport)
    return seconds


def _groups(timing: CollectiveTiming) -> list[tuple[int, Tier]]:
    """The tiers a timing used, innermost first, and how many chips or groups each connects."""
    chip = hardware.chip(timing.chip)
    inside = timing.chips // timing.nodes
    if chip.tiers and chip.tiers[0].size > MAX_NODE:
        # the chip's own links reach beyond nodes
        inside = min(timing.chips, chip.tiers[0].size)
    if not chip.tiers or inside > chip.tiers[0].size or timing.chips % inside:
        fix = f"{chip.name}'s own links should reach all chips of a node"
        raise InputError("num_chips", f"is {timing.chips} on {timing.nodes} nodes", fix)
    groups = [(inside, chip.tiers[0])] if inside > 1 else []
    if timing.chips > inside:
        if len(chip.tiers) < 2:
            raise InputError("num_nodes", f"is {timing.nodes}", f"{chip.name} has no links between nodes")
        rate = timing.network_bytes_per_s or chip.tiers[1].bytes_per_s
        groups.append((timing.chips // inside, replace(chip.tiers[1], bytes_per_s=rate)))
    return groups


def _generation(chip: str) -> str:
    return generation_of(chip) or chip


def _unusable(row: TableRow) -> str | None:
    if catalogue_chip(row.text("chip")) is None:
        return f"the chip {quoted(row.text('chip'))} is missing in the catalogue"
    if row.text("op").casefold() not in OPERATIONS:
        return f"the operation {quoted(row.text('op'))} is not one of the model's"
    if not row.text("size_bytes") or not (row.text("time_us") or row.text("busbw_GBs")):
        return "its size, or both time and bandwidth, are not stated"
    if any(word in row.text("fabric") + row.text("source") for word in _DOUBTED):
        return "its source doubts the figure"
    return None


def _timing(row: TableRow) -> CollectiveTiming:
    kind = OPERATIONS[row.text("op").casefold()]
    chips, nodes = row.needed("num_chips"), row.count("num_nodes") or 1
    size, time = row.number("size_bytes"), row.number("time_us")
    rate = row.number("busbw_GBs")
    if size is None or (time is None and rate is None):
        raise InputError("size_bytes", "has neither time_us nor busbw_GBs", "the source has to state one")
    seconds = time / 1e6 if time is not None else bus_factor(kind, chips) * size / ((rate or 1.0) * 1e9)
    timing = CollectiveTiming(
        catalogue_chip(row.text("chip")) or "", kind, chips, nodes, size, seconds, _network(row, chips, nodes),
        not any(word in row.text("notes") for word in _NO_SWITCHES), row.text("source"),
    )  # fmt: skip
    return check_timing(neighbours(timing) if kind is CollectiveKind.PERMUTE else timing)


def bus_factor(kind: CollectiveKind, chips: int) -> float:
    """Bytes over the busiest link per byte of a collective's size: nccl-tests' busbw / algbw (its PERFORMANCE.md)."""
    match kind:
        case CollectiveKind.ALL_REDUCE:
            return 2 * (chips - 1) / chips
        case CollectiveKind.PERMUTE:
            return 1.0
        case _:
            return (chips - 1) / chips


def neighbours(timing: CollectiveTiming) -> CollectiveTiming:
    """A send to the next chip, as half of a two-chip ring exchange; between nodes if there are several."""
    nodes = 2 if timing.nodes > 1 else 1
    return replace(timing, chips=2, nodes=nodes, size_bytes=2 * timing.size_bytes)


def _network(row: TableRow, chips: int, nodes: int) -> float | None:
    """What one chip can send to other nodes: a column's figure, or the source's description of its fabric."""
    stated, fabric = row.number("inter_node_gbps_per_node"), row.text("fabric")
    inside = max(chips // nodes, 1)
    if nodes == 1:
        return None
    if stated is not None:
        return stated * 1e9 / 8 / inside
    if match := _PER_CHIP.search(fabric):
        return float(match[1]) * 1e9
    if match := _PER_NODE.search(fabric):
        return float(match[1]) * 1e9 / inside
    if match := _ADAPTERS.search(fabric):
        return float(match[1]) * float(match[2]) * 1e9 / 8 / inside
    return None


def _mean(values: Floats) -> float | None:
    return float(np.mean(values)) if values.size else None
