"""Megatron-LM: arguments written from a plan, and launch scripts read back."""
