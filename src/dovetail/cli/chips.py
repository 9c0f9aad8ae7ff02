"""`dovetail chips`: the catalogue, one chip's figures and doubts."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

import dovetail as dt
from dovetail.cli.figures import AsJson, doubts_facts, print_tiers
from dovetail.cli.output import print_facts, print_json, print_table
from dovetail.cli.silicon import show_silicon
from dovetail.errors import InputError
from dovetail.units import bytes_text, quantity_text

if TYPE_CHECKING:
    from dovetail.hardware import Chip

app = typer.Typer(help="Chips: list the catalogue, show one.")


@app.command("list")
def list_chips(as_json: AsJson = False) -> None:
    """List the chips of the catalogue."""
    chips = [dt.hardware.chip(name) for name in dt.hardware.chip_names()]
    if as_json:
        print_json([chip_fields(chip) for chip in chips])
        return
    columns = ("chip", "kind", "16-bit TFLOPS", "memory GiB", "TB/s", "links GB/s", "W")
    print_table(columns, [_row(chip) for chip in chips])


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A name of the catalogue, or the path of a chip file.")],
    silicon: Annotated[bool, typer.Option("--silicon", help="Estimate area, power and cost.")] = False,
    technology: Annotated[str, typer.Option(help="With --silicon: a technology other than the chip's.")] = "",
    as_json: AsJson = False,
) -> None:
    """Show one chip: units, memories, links and doubts; with --silicon also its area, power and cost."""
    chip = dt.hardware.chip(name)
    if technology and not silicon:
        raise InputError("--technology", "requires --silicon", "add --silicon")
    if silicon:
        show_silicon(chip, technology, as_json)
        return
    if as_json:
        print_json(chip_fields(chip))
        return
    facts = [
        ("chip", f"{chip.name} ({chip.title})"),
        ("made", f"{chip.year}, {chip.node}" + (f", technology {chip.technology}" if chip.technology else "")),
        ("kind", chip.kind),
        ("matrix", _matrix(chip)),
        ("peak", ", ".join(f"{p} {quantity_text(f, 'FLOPS')}" for p, f in chip.dense_flops.published().items())),
        ("vector", f"{chip.vector_cores:,} cores of {chip.vector_lanes:,} float32 lanes"),
        ("on chip", _on_chip(chip)),
        ("memory", _memory(chip)),
        ("silicon", _silicon(chip)),
        ("price", _price(chip)),
        ("measured", _measured(chip)),
        ("calibrated", f"as {chip.calibrated_as.name}" if chip.calibrated_as else ""),
        ("source", chip.source),
        *doubts_facts(chip.doubts),
    ]
    print_facts([(label, text) for label, text in facts if text])
    print_tiers(chip.tiers)


def chip_fields(chip: Chip) -> dict[str, object]:
    """A chip as JSON: the fields of its file, and what follows from them."""
    fields = asdict(chip)
    fields["dense_flops"] = chip.dense_flops.published()
    fields["doubts"] = dict(chip.doubts)
    fields["on_die"] = {field: made for field, made in asdict(chip.on_die).items() if made is not None}
    if chip.calibration is not None:
        fields["calibration"] = {"values": dict(chip.calibration.values), "source": chip.calibration.source}
    fields["calibrated_as"] = chip.calibrated_as and chip.calibrated_as.name
    del fields["hbm_usable_share"]
    fields |= {"hbm_usable_bytes": chip.hbm_usable_bytes, "usable_bytes": chip.usable_bytes}
    return {**fields, "macs_per_cycle": chip.macs_per_cycle, "link_bytes_per_s": chip.link_bytes_per_s}


def _row(chip: Chip) -> tuple[str, ...]:
    rates = chip.dense_flops
    return (
        chip.name,
        chip.kind,
        f"{(rates.bf16 or rates.fp16 or 0.0) / 1e12:,.0f}",
        f"{chip.memory_bytes / 2**30:,.1f}",
        f"{chip.hbm_bytes_per_s / 1e12:.2f}" if chip.hbm_bytes else "on chip",
        f"{chip.link_bytes_per_s / 1e9:,.0f}",
        f"{chip.tdp_w:,.0f}" if chip.tdp_w else "?",
    )


def _matrix(chip: Chip) -> str:
    array = f" of {chip.rows} x {chip.cols}, {chip.dataflow} stationary" if chip.rows else ""
    clock = quantity_text(chip.clock_hz, "Hz")
    return f"{chip.tensor_cores:,} units{array}, {chip.macs_per_core:,} multiply-accumulates a cycle each, {clock}"


def _on_chip(chip: Chip) -> str:
    parts: list[str] = []
    if chip.core_sram_bytes:
        parts.append(f"{bytes_text(chip.core_sram_bytes)} a core{_at(chip.core_sram_bytes_per_s)}")
    if chip.shared_sram_bytes:
        parts.append(f"{bytes_text(chip.shared_sram_bytes)} shared{_at(chip.shared_sram_bytes_per_s)}")
    return ", ".join(parts)


def _memory(chip: Chip) -> str:
    if not chip.hbm_bytes:
        return "none off chip"
    stacks = f", {chip.hbm_stacks} stacks" if chip.hbm_stacks else ""
    usable = f"{bytes_text(chip.usable_bytes)} usable{' (assumed)' if chip.usable_basis == 'assumed' else ''}"
    return f"{bytes_text(chip.hbm_bytes)}{_at(chip.hbm_bytes_per_s)}{stacks}; {usable}"


def _silicon(chip: Chip) -> str:
    dies = f"{chip.dies} dies" if chip.dies > 1 else "1 die"
    area = f", {chip.area_mm2:,.0f} mm2" if chip.area_mm2 else ""
    power = f", {quantity_text(chip.tdp_w, 'W')}" if chip.tdp_w else ""
    return f"{dies}{area}{power}"


def _price(chip: Chip) -> str:
    bought = [f"{chip.price_usd:,.0f} USD"] if chip.price_usd else []
    rented = [f"{chip.rent_usd_per_h:g} USD an hour"] if chip.rent_usd_per_h else []
    return ", ".join(bought + rented)


def _measured(chip: Chip) -> str:
    """The chip's measured efficiencies, which override those of its generation."""
    if chip.calibration is None:
        return ""
    values = ", ".join(f"{name} {value:.4g}" for name, value in chip.calibration.values)
    return f"{values} ({chip.calibration.source})" if chip.calibration.source else values


def _at(bytes_per_s: float | None) -> str:
    return f" at {quantity_text(bytes_per_s, 'B/s')}" if bytes_per_s else ""
