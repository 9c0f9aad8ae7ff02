"""DeepSpeed: its JSON configuration written from a plan, and read back."""
