"""Tests of optfuse.solver.saving."""
