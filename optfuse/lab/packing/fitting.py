"""Decides whether buffers fit in a capacity: compiled searches beside CP-SAT with numba, CP-SAT alone without it."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from optfuse.lab.packing.fit_result import Fit, stop_when
from optfuse.lab.packing.layout import Layout
from optfuse.lab.packing.sections import SectionModel


def compiled_search() -> bool:
    """Whether numba, an extra, is installed to compile the tree search."""
    return find_spec("numba") is not None


def left_out() -> tuple[str, ...]:
    """A message for each search that ``fit`` cannot run here, with the remedy."""
    if compiled_search():
        return ()
    return ("the compiled search needs numba, so CP-SAT searched alone: pip install 'optfuse[lab]' adds it",)


def fit(
    problem: Layout, capacity: int, workers: int, seed: int, deadline: float, stop: Callable[[], bool] = lambda: False
) -> Fit:
    """Place all within ``capacity`` units, or prove it impossible, or stop at the deadline (``time.monotonic``).

    ``stop`` is called repeatedly; True ends the search.
    """
    if problem.loads.max() > capacity:
        return Fit("infeasible", method="bound")
    if not problem.searchable:
        return Fit("stopped")
    if not compiled_search():
        return _by_model(problem, capacity, workers, seed, deadline, stop)
    from optfuse.lab.packing.portfolio import at_once, in_turns  # they need numba

    if workers == 1:
        return in_turns(problem, capacity, seed, deadline, stop)
    return at_once(problem, capacity, workers - 1, seed, deadline, stop)


def _by_model(
    problem: Layout, capacity: int, workers: int, seed: int, deadline: float, stop: Callable[[], bool]
) -> Fit:
    """CP-SAT alone."""
    model = SectionModel(problem, capacity)
    with stop_when(stop, model):
        outcome = model.run(workers, seed, deadline)
    return Fit("stopped") if outcome == "stopped" else Fit(outcome, model.offsets, "cpsat")
