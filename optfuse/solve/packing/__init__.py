"""Offsets for buffers with known lifetimes: tree search, CP-SAT beside it, and what both prove."""
