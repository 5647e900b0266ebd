"""Do buffers fit in a capacity? Compiled searches beside CP-SAT where numba is installed, CP-SAT alone elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from optfuse.lab.packing.fits import Fit, stopped_by
from optfuse.lab.packing.layout import Layout
from optfuse.lab.packing.sections import SectionModel


def compiled_search() -> bool:
    """Whether the tree search can be had: it is compiled by numba, which is an extra."""
    return find_spec("numba") is not None


def left_out() -> tuple[str, ...]:
    """What ``fit`` does without here, and the way out."""
    if compiled_search():
        return ()
    return ("the compiled search needs numba, so CP-SAT searched alone: pip install 'optfuse[lab]' adds it",)


def fit(
    problem: Layout, capacity: int, workers: int, seed: int, deadline: float, stop: Callable[[], bool] = lambda: False
) -> Fit:
    """Place all within ``capacity`` units, or prove that it cannot be, or stop at the deadline (``time.monotonic``).

    ``stop`` is asked now and then; True ends the search.
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
    with stopped_by(stop, model):
        outcome = model.run(workers, seed, deadline)
    return Fit("stopped") if outcome == "stopped" else Fit(outcome, model.offsets, "cpsat")
