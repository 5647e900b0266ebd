"""Greedy fusion (baseline and warm start), exhaustive search (oracle), and the final check of an answer."""
