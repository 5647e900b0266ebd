"""Analyses of the loop graph: accesses, dependences, iteration orders, memory traffic, and which ops may be fused."""
