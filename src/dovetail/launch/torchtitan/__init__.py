"""torchtitan: flags written from a plan, and flags or scripts read back."""
