"""Baselines from published work that studies and benchmarks compare with."""
