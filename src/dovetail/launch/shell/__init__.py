"""Shell scripts read as text: the words of their commands, without running anything."""
