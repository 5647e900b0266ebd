"""How arguments get into a graph's program and results out of it."""
