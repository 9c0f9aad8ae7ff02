"""Launch files: a plan as a training framework reads it, and an existing launch as a plan."""
