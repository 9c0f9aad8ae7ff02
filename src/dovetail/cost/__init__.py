"""Operator and collective time and energy, vectorised over shapes and chips."""
