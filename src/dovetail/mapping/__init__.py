"""Every operator sharded its own way on the tiles of a wafer: layer problem, elimination, tilings, free plans."""
