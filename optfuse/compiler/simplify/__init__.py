"""Rewrites of the loop graph before the solver: ``pass_list.PASSES`` lists them with their kinds."""
