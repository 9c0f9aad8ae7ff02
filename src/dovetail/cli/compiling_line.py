"""What a person at a terminal sees while kernels are compiled: one line that goes when they are."""

from __future__ import annotations

import shutil
import sys
from typing import TextIO

from dovetail.compilation import Compiling, watch

_CLEAR = "\r\x1b[K"


def show_compiling(arguments: list[str], stream: TextIO | None = None) -> None:
    """Shows what is compiled from now on; nothing where nobody watches or a program reads the answer."""
    terminal = stream or sys.stderr
    if terminal.isatty() and "--json" not in arguments:
        watch(lambda compiling: _show(compiling, terminal))


def _show(compiling: Compiling, stream: TextIO) -> None:
    stream.write(_CLEAR)
    if compiling.done < compiling.total:
        stream.write(compiling_text(compiling)[: shutil.get_terminal_size().columns - 1])
    stream.flush()


def compiling_text(compiling: Compiling) -> str:
    """How far a kernel is, in a line."""
    return f"compiling, once on this machine: {compiling.name}, {compiling.done} of {compiling.total} functions"
