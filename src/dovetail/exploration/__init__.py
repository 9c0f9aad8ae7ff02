"""Studies: hardware designs and plans searched together, for the least of one objective or the front of several."""
