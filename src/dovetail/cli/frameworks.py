"""`dovetail frameworks`: what each training framework can run and stores in memory."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

import dovetail as dt
from dovetail.cli.figures import AsJson, doubts_facts
from dovetail.cli.output import print_facts, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dovetail.frameworks import Framework

app = typer.Typer(help="Frameworks: list the catalogue, show one.")


@app.command("list")
def list_frameworks(as_json: AsJson = False) -> None:
    """List the frameworks of the catalogue."""
    frameworks = [dt.frameworks.load(name) for name in dt.frameworks.names()]
    if as_json:
        print_json([framework_fields(framework) for framework in frameworks])
        return
    rows = [(f.name, f.version, _words(f.pipeline_schedules), _words(f.zero_stages)) for f in frameworks]
    print_table(("framework", "version", "pipeline schedules", "ZeRO"), rows)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A name of the catalogue, or the path of a framework file.")],
    as_json: AsJson = False,
) -> None:
    """Show one framework: plans, bytes per parameter, overlaps."""
    framework = dt.frameworks.load(name)
    if as_json:
        print_json(framework_fields(framework))
        return
    print_facts([*_plans(framework), ("source", framework.source), *doubts_facts(framework.doubts)])
    print_table(("precision", *(f"ZeRO {stage}" for stage in framework.zero_stages)), _state_rows(framework))


def framework_fields(framework: Framework) -> dict[str, object]:
    """A framework as JSON: the fields of its file."""
    states = {precision: asdict(state) for precision, state in framework.states}
    return {**asdict(framework), "states": states, "doubts": dict(framework.doubts)}


def _plans(f: Framework) -> list[tuple[str, str]]:
    overlaps = {name: value for name, value in asdict(f.overlaps).items() if isinstance(value, str)}
    facts = [
        ("framework", f"{f.name} ({f.version})"),
        ("pipeline", f"{_words(f.pipeline_schedules)}; uneven stages: {f.uneven_stages}"),
        ("micro-batches", f"{f.interleaved_microbatches} when interleaved"),
        ("ZeRO", f"{_words(f.zero_stages)}; with a pipeline {_words(f.zero_stages_with_pipeline)}"),
        ("sequence", f"{f.sequence_parallel}; context parallel: {_words(f.context_parallel) or 'no'}"),
        ("experts", f"over {_words(f.expert_parallel) or 'nothing'}"),
        ("recompute", _words(f.recompute) + (f" ({_words(f.recompute_modules)})" if f.recompute_modules else "")),
        ("overlaps", ", ".join(f"{name} {value}" for name, value in overlaps.items())),
        ("", f"pipeline_transfers: {_words(f.overlaps.pipeline_transfers) or 'never'}"),
        ("overhead", _allowances(f)),
    ]
    return facts if "interleaved" in f.pipeline_schedules else [fact for fact in facts if fact[0] != "microbatches"]


def _allowances(f: Framework) -> str:
    context, buffers = (a.value / 1e9 for a in (f.context_bytes, f.collective_buffer_bytes))
    overhead = f.allocator_overhead
    return (
        f"{context:g} GB of context ({f.context_bytes.status}), {overhead.value:.0%} allocator overhead "
        f"({overhead.status}), {buffers:g} GB of buffers ({f.collective_buffer_bytes.status}), "
        f"± {f.memory_error.value:.1%} of tensors ({f.memory_error.status})"
    )


def _state_rows(f: Framework) -> list[tuple[str, ...]]:
    """Bytes per parameter over d shards: the replicated part and the sharded part."""
    rows: list[tuple[str, ...]] = []
    for precision, _ in f.states:
        cells: list[str] = []
        for stage in f.zero_stages:
            whole = f.bytes_per_parameter(precision, zero_stage=stage, shards=1)
            half = f.bytes_per_parameter(precision, zero_stage=stage, shards=2)
            divided = 2 * (whole - half)
            stays = whole - divided
            cells.append(" + ".join([*([f"{stays:g}"] if stays else []), *([f"{divided:g}/d"] if divided else [])]))
        rows.append((precision, *cells))
    return rows


def _words(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))
