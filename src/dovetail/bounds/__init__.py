"""Seconds that no plan takes less than: by the hardware, by the tables of a search, for designs."""
