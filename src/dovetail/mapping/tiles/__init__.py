"""Plans whose operators are cut freely on tiles of dies: which tile, how many stages, which layouts; proven."""
