"""One layer's operators on one chip's cores: the problem, bounds, list schedules and the exact solver."""
