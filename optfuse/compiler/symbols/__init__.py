"""Sizes that torch knows by symbols as sizes of the loop IR, and comparisons of them decided by formulas."""
