"""Predictions against measured runs: reading the runs as jobs, clusters and plans."""

from dovetail.accuracy.rows import MeasuredRun, MeasuredRuns, Refusal, read_runs

__all__ = ["MeasuredRun", "MeasuredRuns", "Refusal", "read_runs"]
