"""Tests of optfuse.solver.sizes."""
