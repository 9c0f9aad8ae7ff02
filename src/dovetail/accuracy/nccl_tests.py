"""The text nccl-tests prints (all_reduce_perf and its siblings), as measured collectives."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dovetail.accuracy.collective_timings import (
    CollectiveTiming,
    bus_factor,
    catalogue_chip,
    check_timing,
    neighbours,
)
from dovetail.documents import read_bytes
from dovetail.errors import InputError, one_of, quoted
from dovetail.layout import CollectiveKind

MAX_FILE_BYTES = 16 * 2**20
MAX_RESULTS = 100_000
MAX_RANKS = 2**16
MAX_SIZE = 2.0**50

#: The programs of nccl-tests that measure what a plan uses.
PROGRAMS: Mapping[str, CollectiveKind] = {
    "all_reduce": CollectiveKind.ALL_REDUCE,
    "all_gather": CollectiveKind.ALL_GATHER,
    "reduce_scatter": CollectiveKind.REDUCE_SCATTER,
    "alltoall": CollectiveKind.ALL_TO_ALL,
    "sendrecv": CollectiveKind.PERMUTE,
}

#: What mpirun --tag-output and srun --label write before each line.
_LABEL = re.compile(r"^(?:\[\d+,\d+\]<std\w+>: ?|\d+: )")
_STARTING = re.compile(r"^#\s*Collective test starting:\s*(\w+?)(?:_perf)?\s*$")
_HEADER = re.compile(r"^#\s*nThread\s+\d+\s+nGpus\s+\d+")
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\s.*?\son\s+(\S+)\s+device\s+\S+\s+\[[^\]]*\]\s*(\S.*)$")
_RESULT = re.compile(r"^\s*\d+\s+\d+\s+[a-z]\w*\s")
#: Time, algorithm bandwidth, bus bandwidth and wrong values, out of place and in place, end a line of results.
_TAIL = 8
#: Versions print a bandwidth with two decimals: below this one, ratios of them say nothing.
_CLEAR_GBS = 2.0


@dataclass(slots=True)
class _Run:
    """One program's output while it is read."""

    program: str | None
    hosts: dict[int, str] = field(default_factory=dict[int, str])
    devices: set[str] = field(default_factory=set[str])
    results: list[tuple[int, list[str]]] = field(default_factory=list[tuple[int, list[str]]])


def read_nccl_tests(
    path: Path | str,
    *,
    chip: str | None = None,
    operation: str | None = None,
    network_gbps_per_node: float | None = None,
    in_place: bool = False,
) -> tuple[CollectiveTiming, ...]:
    """The timings of a file of one or several outputs, one after another.

    Chip and operation are read from the output if it states them; arguments take precedence.
    """
    return parse_nccl_tests(_text(Path(path)), str(path), chip, operation, network_gbps_per_node, in_place)


def parse_nccl_tests(
    text: str,
    where: str,
    chip: str | None = None,
    operation: str | None = None,
    network_gbps_per_node: float | None = None,
    in_place: bool = False,
) -> tuple[CollectiveTiming, ...]:
    """The timings of a text; `where` names it in errors and, as a last resort, the operation."""
    if operation is not None and operation.removesuffix("_perf") not in PROGRAMS:
        raise InputError("operation", f"is {quoted(operation)}", one_of(PROGRAMS, operation))
    if network_gbps_per_node is not None and not 0 < network_gbps_per_node < math.inf:
        raise InputError("network_gbps_per_node", f"is {network_gbps_per_node}", "it should be a number above 0")
    timings: list[CollectiveTiming] = []
    for run in _runs(text, where):
        ranks, nodes = len(run.hosts), len(set(run.hosts.values()))
        if not ranks:
            fix = 'keep the lines "#  Rank  0 ..." nccl-tests prints above them'
            raise InputError(f"{where}, line {run.results[0][0]}", "has results without a list of ranks", fix)
        name, kind = _chip(run, chip, where), _kind(run, operation, where)
        rate = network_gbps_per_node * 1e9 / 8 * nodes / ranks if network_gbps_per_node and nodes > 1 else None
        for line, cells in run.results:
            at = f"{where}, line {line}"
            size, microseconds = _number(cells[0], at), _number(cells[-4 if in_place else -_TAIL], at)
            if size == 0:  # counts smaller than the number of ranks
                continue
            _check(size, microseconds, cells[-1 if in_place else -5], at)
            timing = CollectiveTiming(
                name, kind, ranks, nodes, size, microseconds / 1e6, network_bytes_per_s=rate, source=where
            )
            try:
                timings.append(check_timing(neighbours(timing) if kind is CollectiveKind.PERMUTE else timing))
            except InputError as error:
                raise InputError(f"{at}: {error.where}", error.what, error.fix) from None
    return tuple(timings)


def _runs(text: str, where: str) -> Iterator[_Run]:
    """The outputs in a text that have results."""
    run, announced, num_results = _Run(None), None, 0
    for number, labelled in enumerate(text.splitlines(), start=1):
        line = _LABEL.sub("", labelled)
        if starting := _STARTING.match(line):
            announced = starting[1]
        elif _HEADER.match(line):
            if run.results:
                yield run
            run, announced = _Run(announced), None
        elif rank := _RANK.match(line):
            run.hosts[int(rank[1])] = rank[2]
            run.devices.add(rank[3].strip())
            if len(run.hosts) > MAX_RANKS:
                raise InputError(where, f"lists more than {MAX_RANKS} ranks", "keep one run of each size")
        elif _RESULT.match(line):
            cells, num_results = line.split(), num_results + 1
            if len(cells) < 3 + _TAIL:
                fix = f"a line of results should have {3 + _TAIL} or more, ending in those of out-of-place and in-place"
                raise InputError(f"{where}, line {number}", f"has {len(cells)} columns", fix)
            if num_results > MAX_RESULTS:
                raise InputError(where, f"has more than {MAX_RESULTS} results", "keep it shorter")
            run.results.append((number, cells))
    if not num_results:
        raise InputError(
            where, "holds no results of nccl-tests", "give the text that all_reduce_perf or another prints"
        )
    if run.results:
        yield run


def _chip(run: _Run, given: str | None, where: str) -> str:
    if given is not None:
        chip_id = catalogue_chip(given)
        if chip_id is None:
            raise InputError("chip", f"is {quoted(given)}", "it should be a chip of the catalogue")
        return chip_id
    names = {catalogue_chip(device) for device in run.devices}
    if len(names) > 1:
        devices = ", ".join(sorted(run.devices)[:3])
        raise InputError(where, f"ran on {quoted(devices)}", "ranks should have chips of one kind")
    chip_id = next(iter(names))
    if chip_id is None:
        device = quoted(next(iter(run.devices)))
        raise InputError(where, f"ran on {device}, which is not in the catalogue", "say which of its chips that is")
    return chip_id


def _kind(run: _Run, given: str | None, where: str) -> CollectiveKind:
    """The operation: as given, announced by the output, in the file's name, or the one its bandwidths fit."""
    stated = (given or run.program or "").removesuffix("_perf")
    if stated in PROGRAMS:
        return PROGRAMS[stated]
    if stated:
        raise InputError(where, f"measures {quoted(stated)}", one_of(PROGRAMS, stated))
    named = [kind for name, kind in PROGRAMS.items() if name in Path(where).name.casefold()]
    if len(named) == 1:
        return named[0]
    adds = any("sum" in cells[:-_TAIL] for _, cells in run.results)
    # an all-gather and an all-to-all print the same ratio and no reduction: we cannot tell them apart
    likely = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER) if adds else (CollectiveKind.PERMUTE,)
    ratios = [_ratio(cells) for _, cells in run.results if _ratio(cells) is not None]
    for kind in likely:
        if ratios and all(math.isclose(r or 0.0, bus_factor(kind, len(run.hosts)), rel_tol=0.02) for r in ratios):
            return kind
    fix = f"say which of {', '.join(PROGRAMS)} it is, or name the file after it"
    raise InputError(where, "does not say which operation it measures", fix)


def _ratio(cells: list[str]) -> float | None:
    """Bus over algorithm bandwidth, if both are large enough to tell."""
    try:
        algorithm, bus = float(cells[-_TAIL + 1]), float(cells[-_TAIL + 2])
    except ValueError:
        return None
    return bus / algorithm if min(algorithm, bus) >= _CLEAR_GBS else None


def _check(size: float, microseconds: float, wrong: str, at: str) -> None:
    if not 0 < size <= MAX_SIZE:
        raise InputError(f"{at}: size", f"is {size:g}", f"it should be above 0 and at most {MAX_SIZE:g} bytes")
    if not 0 < microseconds < math.inf:
        raise InputError(f"{at}: time", f"is {microseconds:g}", "it should be a number of microseconds above 0")
    # old versions print the largest error instead, such as 5e-07
    if wrong.isdecimal() and int(wrong) > 0:
        raise InputError(at, f"has {quoted(wrong)} wrong values", "a run with wrong values measures nothing")


def _number(text: str, at: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(at, f"holds {quoted(text)} for a number", "give the text as nccl-tests printed it") from None


def _text(path: Path) -> str:
    # logs of many ranks are sometimes garbled: skip garbled lines
    return read_bytes(path, MAX_FILE_BYTES).decode("utf-8", errors="replace")
