"""The library of fusion problems: generated families, and the best that is known of each file in ``instances/``."""
