"""MaxText: its YAML written from a plan."""
