"""Greedy fusion, which is the baseline and the warm start; exhaustive search, which is the oracle; a last check."""
