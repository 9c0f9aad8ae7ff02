"""Kernels: functions of numbers and arrays, compiled when they are first needed and kept for the next process.

Nothing else imports numba, and it is loaded when the first kernel runs compiled.
"""

from __future__ import annotations

from dovetail.compilation.kernel import compilable, compiled, worth_compiling
from dovetail.compilation.progress import Compiling, compiling_s, watch

__all__ = ["Compiling", "compilable", "compiled", "compiling_s", "watch", "worth_compiling"]
