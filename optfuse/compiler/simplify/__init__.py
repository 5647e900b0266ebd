"""Rewrites of the loop graph before the solver: ``passes.PASSES`` lists them, with what each is."""
