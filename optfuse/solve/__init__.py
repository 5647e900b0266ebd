"""Solvers of the fusion problem: greedy (the baseline), exhaustive (the oracle), cpsat (optimal, with a proof).

Call ``optfuse.solve.solve.solve``. Only ``optfuse.solve.cpsat`` imports ortools.
"""
