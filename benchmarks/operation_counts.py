"""Operations and array accesses of a compiled kernel: its Python run uncompiled on the same arrays, opcode by opcode.

`NUMBA_DISABLE_JIT=1 python benchmarks/operation_counts.py FILE`: the file has kernels by module and name with their
arguments; printed are [operations, accesses] of each, a line a kernel. An operation is an addition, product,
comparison, minimum or maximum of single numbers, those of indices too; an access reads or writes one element of an
array. Compiled code has fewer of both, since it keeps in registers what the text reads twice.
"""

from __future__ import annotations

import dis
import importlib
import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

OPERATIONS = {"BINARY_OP", "COMPARE_OP", "UNARY_NEGATIVE"}
ACCESSES = {"BINARY_SUBSCR", "STORE_SUBSCR"}
CHOICES = {"max", "min"}


def kinds_of(code: CodeType) -> dict[int, int]:
    """By offset: 0 for an operation, 1 for an access."""
    kinds: dict[int, int] = {}
    for instruction in dis.get_instructions(code):
        if instruction.opname in OPERATIONS or (instruction.opname == "LOAD_GLOBAL" and instruction.argval in CHOICES):
            kinds[instruction.offset] = 0
        elif instruction.opname in ACCESSES:
            kinds[instruction.offset] = 1
    return kinds


def counted(function: Callable[..., object], arguments: tuple[Any, ...]) -> list[int]:
    """Operations and accesses of a call, with those of our functions it calls."""
    counts, by_code = [0, 0], dict[CodeType, dict[int, int]]()

    def local(frame: FrameType, event: str, _: object) -> Any:
        if event == "opcode":
            kind = by_code[frame.f_code].get(frame.f_lasti)
            if kind is not None:
                counts[kind] += 1
        return local

    def entered(frame: FrameType, _: str, __: object) -> Any:
        if "dovetail" not in frame.f_code.co_filename:
            return None
        if frame.f_code not in by_code:
            by_code[frame.f_code] = kinds_of(frame.f_code)
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return local

    sys.settrace(entered)
    try:
        function(*arguments)
    finally:
        sys.settrace(None)
    return counts


def main(path: str) -> None:
    """Prints the counts of every call in the file, as JSON."""
    calls = pickle.loads(Path(path).read_bytes())  # noqa: S301 - written by benchmarks/roofline.py just before
    for module, name, arguments in calls:
        print(json.dumps(counted(getattr(importlib.import_module(module), name), arguments)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
