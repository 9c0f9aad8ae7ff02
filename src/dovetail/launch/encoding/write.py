"""A plan as an encoding file, checked against every rule before it is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import log10

from dovetail import hardware
from dovetail.digests import digest
from dovetail.errors import InputError
from dovetail.graph import ModelGraph
from dovetail.hardware.silicon.wafer_check import check
from dovetail.launch.encoding.plan_encoding import encode_plan
from dovetail.launch.encoding.plan_fields import fields_ahead
from dovetail.launch.encoding.read import EncodingReading
from dovetail.launch.launch_file import Launch
from dovetail.layout.encoding import Encoding, StageEncoding
from dovetail.layout.encoding.canonical import canonicalise
from dovetail.layout.encoding.document import EncodingHeader, to_json
from dovetail.layout.encoding.factor import primes
from dovetail.layout.encoding.operator_space import count_operator
from dovetail.layout.encoding.reshard import Reshard, placed, reshards
from dovetail.layout.encoding.rules import RULES
from dovetail.layout.encoding.shards import stage_strings, stream_layout, tile_axes
from dovetail.layout.encoding.validate import validate_encoding
from dovetail.layout.encoding.wafer_grid import WaferGrid
from dovetail.plans.declaration import declared
from dovetail.plans.fields import PlanFields
from dovetail.plans.plan_file import Task
from dovetail.plans.stage_tiles import known_defects, num_wafers
from dovetail.plans.wafer_tiles import wafer_shape
from dovetail.plans.write import cluster_part, job_part
from dovetail.step.evaluate import evaluate, is_block

FILE = "encoding.json"

#: Prime parts of a side of a tile up to which layouts are counted: beyond, there are too many strings to list.
COUNTED_PARTS = 3


def export(task: Task) -> Launch:
    """The encoding of a plan with its job and cluster; one that breaks a rule is refused with the first."""
    encoding = encode_plan(task)
    wafers = wafer_grids(task)
    notes = list(_checked(encoding, task, wafers))
    cluster = cluster_part(task.cluster) | {"framework": task.framework.name}
    header = EncodingHeader(job_part(task.job), cluster, fields_ahead(encoding, task))
    text = to_json(encoding, header)
    read = EncodingReading.of(text, FILE).own_task(FILE)
    for name in declared(PlanFields):
        if getattr(read.plan, name) != getattr(task.plan, name):
            raise InputError(f"plan: {name}", "is not what its encoding says", "leave it out")
    notes += _facts(encoding, task, wafers)
    return Launch(FILE, text, tuple(notes))


def wafer_grids(task: Task) -> tuple[WaferGrid, ...]:
    """The wafers of a task, with what is dead on them and what a die can hold."""
    cluster, (rows, cols) = task.cluster, wafer_shape(task.cluster)
    grids: list[WaferGrid] = []
    for number in range(num_wafers(cluster)):
        known = known_defects(task.plan, number)
        actual = cluster.defects[number] if cluster.defects else known
        # encodings write a die as column and row
        dead = {(col, row) for each in (known, actual) for row, col in each.dead_dies}
        links = [link for each in (known, actual) for link in each.dead_links]
        ends = [sorted(((a[1], a[0]), (b[1], b[0]))) for a, b in links]
        pairs = frozenset((one, other) for one, other in ends)
        grids.append(WaferGrid(rows, cols, frozenset(dead), pairs, hbm=bool(cluster.chip.hbm_bytes)))
    return tuple(grids)


def _checked(encoding: Encoding, task: Task, wafers: tuple[WaferGrid, ...]) -> Iterator[str]:
    """Refuses an encoding that breaks a rule; limits that the hardware itself breaks are told."""
    evaluation = evaluate(task.plan, task.job, task.cluster, task.framework, energy=False)
    peaks = [int(sum(parts.values())) for parts in evaluation.memory_by_stage]
    by_tile = {(s.wafer, s.tile): peak for s, peak in zip(encoding.stages, peaks, strict=True)}

    def memory(stage: StageEncoding) -> int:
        return by_tile[stage.wafer, stage.tile]

    limits = _broken_limits(task)
    capacity = int(evaluation.usable_bytes)
    grids = [replace(each, capacity_bytes=capacity, broken_limits=limits) for each in wafers]
    broken = validate_encoding(encoding, task.job.graph(), grids, seq=task.job.seq_len, memory=memory)
    for violation in broken:
        if violation.rule != "physical":
            fix = f"rule {violation.rule}: {RULES[violation.rule]}"
            raise InputError(f"encoding: {violation.where}", violation.sentence, fix)
        yield f"{violation.where}: {violation.sentence}"


def _broken_limits(task: Task) -> tuple[str, ...]:
    """Physical rules that a wafer of the catalogue breaks; of other wafers only the dies and links are known."""
    names = (task.cluster.name, task.cluster.name.rpartition("-")[0])
    name = next((name for name in names if name in hardware.wafer_names()), None)
    wafer = None if name is None else hardware.wafer(name)
    if wafer is None or wafer.die.technology is None:
        return ()
    return tuple(finding.sentence for finding in check(wafer, hardware.technology_of(wafer)) if not finding.passes)


def _facts(encoding: Encoding, task: Task, wafers: tuple[WaferGrid, ...]) -> Iterator[str]:
    """What an encoding is one of: its canonical form, what it reshards, how many layouts there are."""
    alike = wafers[0] if len(set(wafers)) == 1 else None
    form = canonicalise(encoding, alike) if alike is not None else encoding
    yield f"canonical form {digest(to_json(form))}: the same for its mirror images"
    graph = task.job.graph()
    stage = max(encoding.stages, key=lambda each: len(each.classes))
    tile = stage.tile
    for name in sorted(stage.classes):
        if not is_block(graph.layers[name]):
            continue
        tensors = [each.tensor for each in _reshards(stage, name, graph)]
        listed = f": {', '.join(dict.fromkeys(tensors))}" if tensors else ""
        yield f"{name} reshards {len(tensors)} {'tensor' if len(tensors) == 1 else 'tensors'}{listed}"
        if max(len(primes(tile.rows)), len(primes(tile.cols))) <= COUNTED_PARTS:
            sizes = graph.layers[name].resolve(batch=encoding.microbatch, seq=task.job.seq_len)
            counts = [count_operator(o, sizes, tile.rows, tile.cols) for o in graph.layers[name].operators]
            total = sum(log10(count) for count in counts)
            yield (
                f"{name} on {tile.rows} × {tile.cols} dies: each of {len(counts)} operators has {min(counts):,} to "
                f"{max(counts):,} canonical layouts, together 10^{total:.0f}"
            )


def _reshards(stage: StageEncoding, name: str, graph: ModelGraph) -> tuple[Reshard, ...]:
    operators = stage.classes[name]
    axes = tile_axes([*stage_strings(operators), *([] if stage.stream is None else [stage.stream])])
    stream = None if stage.stream is None else stream_layout(stage.stream, axes)
    return reshards(placed(graph.layers[name], operators, axes, stream=stream))
