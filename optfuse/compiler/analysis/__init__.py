"""What the loop graph tells of memory: accesses, iteration orders, dependences, traffic, and legality."""
