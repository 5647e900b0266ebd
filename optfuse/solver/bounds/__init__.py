"""Lower bounds on the cost of a block that need no search."""
