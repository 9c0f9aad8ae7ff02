"""Makes the formulas of pipelines callable inside compiled code; kernels import them from here."""

from __future__ import annotations

from dovetail.compilation import compilable
from dovetail.pipeline.in_flight import (
    chunk_runs_in_flight,
    in_flight_of_chunk,
    interleaved_peak,
    of_turn,
    peak_saved,
    runs_in_turns,
)

for _formula in (
    chunk_runs_in_flight, in_flight_of_chunk, interleaved_peak, of_turn, peak_saved, runs_in_turns,
):  # fmt: skip
    compilable(_formula)

__all__ = ["chunk_runs_in_flight", "in_flight_of_chunk", "peak_saved"]
