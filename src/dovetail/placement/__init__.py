"""Layers on pipeline stages, and what a plan file says."""
