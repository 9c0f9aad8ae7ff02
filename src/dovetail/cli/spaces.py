"""`dovetail spaces`: design spaces, their axes and limits, how many designs each limit excludes, and samples."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

import dovetail as dt
from dovetail.cli.figures import AsJson
from dovetail.cli.output import print_facts, print_json, print_table, wrapped
from dovetail.report.design_words import variable_label, variable_text, variables_text
from dovetail.units import percent_text

if TYPE_CHECKING:
    from dovetail.hardware import Chip, Wafer
    from dovetail.hardware.design import Designs
    from dovetail.hardware.design_space import Axis, DesignCounts, DesignSpace

app = typer.Typer(help="Design spaces: list the catalogue, show one.")

#: Spaces up to this size are counted by default: that takes seconds.
COUNTED_AT_ONCE = 5 * 10**7
#: Values of an axis that JSON lists.
LISTED_VALUES = 1000
EXAMPLES = 4
_SHOWN_CHARACTERS = 40

#: Figures shown besides the variables; all but the first need a technology.
_FIGURES = ("peak_flops", "area_mm2", "shoreline_share", "peak_power_w", "cost_usd")
_WAFER_FIGURES = ("wafer_flops", "wafer_hbm_bytes", "die_share", "shoreline_share", "wafer_power_w", "wafer_yield")


@app.command("list")
def list_spaces(as_json: AsJson = False) -> None:
    """List the design spaces of the catalogue."""
    spaces = [dt.hardware.space(name) for name in dt.hardware.space_names()]
    if as_json:
        print_json([space_fields(space) for space in spaces])
        return
    rows = [(s.name, (s.wafer or s.base).name, f"{len(s.axes)}", f"{len(s.limits)}", f"{s.size:,}") for s in spaces]
    print_table(("design space", "base", "axes", "limits", "designs before limits"), rows)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A name of the catalogue, or the path of a design-space file.")],
    count: Annotated[
        bool, typer.Option("--count", help="Count every design, even if there are more than fifty million.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show one design space: axes, limits, and how many designs they leave."""
    space = dt.hardware.space(name)
    figures = _figures(space)
    counts = space.count(figures) if count or space.size <= COUNTED_AT_ONCE else None
    broken = space.broken() if counts else None
    examples = _examples(space, figures)
    if as_json:
        print_json(
            {
                **space_fields(space),
                "counts": asdict(counts) if counts else None,
                "broken": broken,
                "examples": examples,
            }
        )
        return
    _print_space(space)
    _print_limits(space, counts, broken)
    if counts and counts.kept:
        ends = [(name, *(variable_text(name, end) for end in pair)) for name, pair in counts.ranges.items()]
        print_table(("feasible designs", "min", "max"), ends)
    if examples:
        columns = ("samples, by index", *(f"{example['index']:,}" for example in examples))
        names = [name for name in examples[0] if name != "index"]
        print_table(
            columns,
            [(variable_label(name), *(variable_text(name, example[name]) for example in examples)) for name in names],
        )


def _figures(space: DesignSpace) -> tuple[str, ...]:
    if space.wafer is not None:
        return _WAFER_FIGURES
    return _FIGURES if space.formulas.technology else _FIGURES[:1]


def _start(space: DesignSpace) -> Designs:
    """The chip or wafer all designs start from, as a design."""
    from dovetail.hardware.design import design_of
    from dovetail.hardware.wafer_design import wafer_design_of

    return design_of(space.base) if space.wafer is None else wafer_design_of(space.wafer)


def space_fields(space: DesignSpace) -> dict[str, object]:
    """A design space as JSON has it: what its file says, in SI, and its size."""
    formulas = space.formulas
    return {
        "name": space.name,
        "base": space.base.name,
        "wafer": space.wafer.name if space.wafer else None,
        "technology": formulas.technology.name if formulas.technology else None,
        "coefficients": formulas.end,
        "size": space.size,
        "set": _differences(space.fixed, _start(space)),
        "axes": [_axis_fields(axis) for axis in space.axes],
        "references": {name: _differences(one, space.fixed) for name, one in formulas.references.items()},
        "derive": {name: expression.text for name, expression in formulas.derived},
        "define": {name: expression.text for name, expression in formulas.defined.items()},
        "limits": [limit.text for limit in space.limits],
        "source": space.source,
    }


def _axis_fields(axis: Axis) -> dict[str, object]:
    columns = axis.values.items()
    return {
        "name": axis.name,
        "size": len(axis),
        "ends": {name: [float(column.min()), float(column.max())] for name, column in columns},
        "values": {name: column.tolist() for name, column in columns} if len(axis) <= LISTED_VALUES else None,
    }


def _differences(one: Designs, other: Designs) -> dict[str, float]:
    """Variables in which a design differs from another."""
    pairs = {name: (one.value(name).item(), other.value(name).item()) for name in one.variables}
    return {name: value for name, (value, usual) in pairs.items() if value != usual}


def _examples(space: DesignSpace, figures: tuple[str, ...]) -> list[dict[str, float]]:
    batch = space.sample(EXAMPLES, seed=0)
    names = (*space.variables, *figures)
    columns = {name: space.values(name, batch.designs) for name in names} if len(batch) else {}
    return [
        {"index": int(batch.index[n]), **{name: float(column[n]) for name, column in columns.items()}}
        for n in range(len(batch))
    ]


def _print_space(space: DesignSpace) -> None:
    formulas = space.formulas
    base: Chip | Wafer = space.wafer or space.base
    technology = f", in {formulas.technology.name}" if formulas.technology else ""
    end = f", coefficients at their {formulas.end} end" if formulas.end != "value" else ""
    grid = " x ".join(f"{len(axis):,}" for axis in space.axes)
    facts = [
        ("space", space.name),
        ("wafer" if space.wafer else "base", f"{base.name} ({base.title}){technology}{end}"),
        ("designs", f"{space.size:,}" + (f" = {grid}" if len(space.axes) > 1 else "")),
        ("set", variables_text(_differences(space.fixed, _start(space)))),
        *(("derived", f"{name} = {expression.text}") for name, expression in formulas.derived),
        *(
            ("reference", f"{name}: {variables_text(_differences(one, space.fixed)) or 'the base'}")
            for name, one in formulas.references.items()
        ),
        *(("defined", f"{name} = {expression.text}") for name, expression in formulas.defined.items()),
        *wrapped("source", space.source),
    ]
    print_facts([(label, text) for label, text in facts if text])
    rows = [row for axis in space.axes for row in _axis_rows(axis)]
    print_table(("axis", "values", ""), rows)


def _axis_rows(axis: Axis) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = []
    for n, (name, column) in enumerate(axis.values.items()):
        alone = axis.name in (name, variable_label(name))
        label = (
            variable_label(name) if alone else f"{axis.name}: {name}" if n == 0 else f"{' ' * len(axis.name)}  {name}"
        )
        rows.append((label, f"{len(column):,}" if n == 0 else "", _column_text(name, column.tolist(), ordered=alone)))
    return rows


def _column_text(name: str, values: list[float], *, ordered: bool) -> str:
    """All values where they are short, else the first few and the last, or the ends of those in no order."""
    text = ", ".join(variable_text(name, value) for value in values[:_SHOWN_CHARACTERS])
    if len(values) <= _SHOWN_CHARACTERS and len(text) <= _SHOWN_CHARACTERS:
        return text
    if ordered:
        return f"{', '.join(variable_text(name, value) for value in values[:3])}, ... {variable_text(name, values[-1])}"
    return f"{variable_text(name, min(values))} ... {variable_text(name, max(values))}"


def _print_limits(space: DesignSpace, counts: DesignCounts | None, broken: dict[str, int] | None) -> None:
    if not space.rules:
        return
    if counts is None or broken is None:
        rows = [(limit.text, "?", "?", "?") for limit in space.limits]
        rows.append(("feasible (--count checks every design)", "?", "?", "?"))
    else:
        limits = {limit.text for limit in space.limits}
        # a derived variable's bounds are worth a line only where they are left
        shown = {text: number for text, number in counts.left_out.items() if number or text in limits}
        size = counts.size
        rows = [
            (text, f"{number:,}", percent_text(number / size), percent_text(broken[text] / size))
            for text, number in shown.items()
        ]
        rows.append(("feasible", f"{counts.kept:,}", percent_text(counts.kept / size), ""))
    print_table(("limit", "designs excluded", "of all", "alone"), rows)
