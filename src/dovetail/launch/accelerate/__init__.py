"""Hugging Face accelerate: its configuration written from a plan."""
