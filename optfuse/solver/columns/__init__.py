"""Columns: the candidate kernels of a block, their enumeration and their prices."""
