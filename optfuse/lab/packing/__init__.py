"""Offsets for buffers with known lifetimes: first fit, a compiled tree search, CP-SAT, and what they prove."""
