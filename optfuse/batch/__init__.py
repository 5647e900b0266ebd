"""Zoo runs: every graph of many models, under several solvers, each task in a process of its own.

sources     which models, samples and instances the arguments mean
plan        the tasks, and the keys that say whether a result is still theirs
work        what one task does
child       one task in its own process, under limits
engines     where processes run: here, or on a Dask or Ray cluster
store       the run's folder, whole at any moment
run         the loop over all of it
"""
