"""Plans whose operators are sharded freely on tiles of dies: tile, stages and layouts, with a proven bound."""
