"""Prints moments × categories of one case: `python -m tests.memory_oracle.show --layers 2 --hidden 4096 …`."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import fields
from pathlib import Path

# The other modules are imported as the tests do, from the directory of the tests.
sys.path.insert(0, str(Path(__file__).parents[1]))

from memory_oracle.allocations import CATEGORIES
from memory_oracle.case import Case
from memory_oracle.report import TracedStep, live_at
from memory_oracle.step import traced_step

#: Llama-3.1-8B, two of its layers, on eight ranks
DEFAULTS = {
    "layers": 2,
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "ffn": 14336,
    "vocab": 128256,
    "seq_len": 8192,
    "micro_batch": 1,
    "shards": 8,
}
UNITS = {"B": 1, "MiB": 2**20, "GiB": 2**30}


def number(nbytes: int, unit: str) -> str:
    """A count of bytes in this unit."""
    return f"{nbytes:,}" if unit == "B" else f"{nbytes / UNITS[unit]:,.3f}"


def table(traced: TracedStep, unit: str, parts: bool = False) -> str:
    """Moments down, categories across."""
    rows = [["moment", "peak", *CATEGORIES]]
    for moment in traced.parts if parts else traced.moments:
        amounts = [moment.peak_bytes, *(moment.by_category[category] for category in CATEGORIES)]
        rows.append([moment.name, *(number(amount, unit) if amount else "-" for amount in amounts)])
    return aligned(rows)


def aligned(rows: list[list[str]]) -> str:
    """A table: the first column to the left, numbers to the right."""
    first, *others = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(first), *(cell.rjust(w) for cell, w in zip(row[1:], others, strict=True))])
        for row in rows
    )


def listing(traced: TracedStep, name: str, unit: str, least: int) -> str:
    """What lives at the peak of one moment, down to groups of `least` bytes."""
    lines = [f"live at the peak of {name!r}:"]
    lines += [
        f"  {number(group.bytes, unit):>16}  {group.tensors:>4} × {group.operator} {list(group.shape)} {group.dtype}"
        f"  [{group.category}]  made in: {group.made_in or 'before'}"
        for group in live_at(traced.moment(name))
        if group.bytes >= least
    ]
    return "\n".join(lines)


def maxima(traced: TracedStep, name: str, unit: str, least: int) -> str:
    """The local maxima of one moment in order, with those categories that move in it."""
    instants = traced.moment(name).instants
    moving = [c for c in CATEGORIES if len({instant.by_category[c] for instant in instants}) > 1]
    rows = [["reached by", "live", *moving]]
    for instant in instants:
        if instant.bytes >= least:
            made = f"{instant.operator} {list(instant.shape)} {instant.dtype}"
            rows.append([made, *(number(n, unit) for n in (instant.bytes, *(instant.by_category[c] for c in moving)))])
    return f"local maxima of {name!r}:\n{aligned(rows)}"


def main() -> None:
    """Reads a case from flags, traces it, and prints its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    for one in fields(Case):
        flag = "--" + one.name.replace("_", "-")
        default = DEFAULTS.get(one.name, one.default)
        if isinstance(default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=default)
        else:
            parser.add_argument(flag, type=type(default), default=default)
    parser.add_argument("--unit", choices=UNITS, default="GiB")
    parser.add_argument("--parts", action="store_true", help="also the forwards and the earlier micro-batches")
    parser.add_argument("--live", action="append", default=[], metavar="MOMENT", help="lists what lives at its peak")
    parser.add_argument("--maxima", action="append", default=[], metavar="MOMENT", help="lists its local maxima")
    parser.add_argument("--least", type=int, default=2**20, help="least bytes of a listed group")
    flags = vars(parser.parse_args())
    begun = time.process_time()
    traced = traced_step(Case(**{one.name: flags[one.name] for one in fields(Case)}))
    out = [str(traced.case), table(traced, flags["unit"], flags["parts"])]
    out += [listing(traced, name, flags["unit"], flags["least"]) for name in flags["live"]]
    out += [maxima(traced, name, flags["unit"], flags["least"]) for name in flags["maxima"]]
    out.append(f"peak of the step: {number(traced.peak_bytes, flags['unit'])} ({traced.peak_bytes:,} B)")
    out.append(f"{time.process_time() - begun:.1f} s of CPU")
    sys.stdout.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
