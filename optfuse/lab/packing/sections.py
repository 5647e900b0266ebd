"""Offsets by CP-SAT: one ``no_overlap`` over the address ranges of the live buffers for each section of time.

As in a shop problem, a section is a machine and a buffer a task that runs on several machines at once. This propagates
far better than one ``no_overlap_2d``, which does not see the buffers that are live together.
"""

from __future__ import annotations

import math
import threading
import time

from ortools.sat.python import cp_model

from optfuse.lab.packing.layout import Ints, Layout, Outcome


class SectionModel:
    """Offsets within a capacity in units, some of them given. ``stop`` may be called from another thread, any time."""

    def __init__(self, problem: Layout, capacity: int, pinned: Ints | None = None) -> None:
        self.problem = problem
        self.offsets: tuple[int, ...] = ()
        self._solver = cp_model.CpSolver()
        self._stopped = threading.Event()
        self._model = cp_model.CpModel()
        self._places = _add_places(self._model, problem, capacity, pinned)
        _add_sections(self._model, problem, self._places)
        _add_twin_order(self._model, problem, self._places, pinned)

    def stop(self) -> None:
        """End the search soon."""
        self._stopped.set()
        self._solver.stop_search()

    def run(self, workers: int, seed: int, deadline: float, effort: float = math.inf) -> Outcome:
        """Search until the deadline (``time.monotonic``) or for so much deterministic time.

        ``offsets`` are set when it returns "packed".
        """
        limit = deadline - time.monotonic()
        if self._stopped.is_set() or limit <= 0:
            return "stopped"
        parameters = self._solver.parameters
        parameters.max_time_in_seconds = limit
        parameters.num_workers = workers
        parameters.random_seed = seed
        parameters.linearization_level = 0
        parameters.max_deterministic_time = effort
        match self._solver.solve(self._model):
            case cp_model.OPTIMAL | cp_model.FEASIBLE:
                aligns = self.problem.aligns.tolist()
                values = [self._solver.value(place) for place in self._places]
                self.offsets = tuple(align * value for align, value in zip(aligns, values, strict=True))
                return "packed"
            case cp_model.INFEASIBLE:
                return "infeasible"
            case _:
                return "stopped"


def _add_places(model: cp_model.CpModel, problem: Layout, capacity: int, pinned: Ints | None) -> list[cp_model.IntVar]:
    """The offset of each buffer, in multiples of its alignment."""
    columns = zip(problem.sizes.tolist(), problem.aligns.tolist(), strict=True)
    places: list[cp_model.IntVar] = []
    for number, (size, align) in enumerate(columns):
        low, high = 0, (capacity - size) // align
        if pinned is not None and pinned[number] >= 0:
            low = high = int(pinned[number]) // align
        places.append(model.new_int_var(low, high, f"place_{number}"))
    return places


def _add_sections(model: cp_model.CpModel, problem: Layout, places: list[cp_model.IntVar]) -> None:
    """Buffers that are live together do not overlap."""
    columns = zip(places, problem.sizes.tolist(), problem.aligns.tolist(), strict=True)
    extents = [
        model.new_fixed_size_interval_var(align * place, size, f"extent_{number}")
        for number, (place, size, align) in enumerate(columns)
    ]
    for members in problem.members:
        model.add_no_overlap([extents[number] for number in members])


def _add_twin_order(
    model: cp_model.CpModel, problem: Layout, places: list[cp_model.IntVar], pinned: Ints | None
) -> None:
    """Of free buffers equal in all respects the first lies below the next."""
    latest: dict[tuple[int, ...], int] = {}
    columns = (problem.first, problem.last, problem.sizes, problem.aligns)
    for number, key in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        if pinned is not None and pinned[number] >= 0:
            continue
        if key in latest:
            model.add(places[latest[key]] < places[number])
        latest[key] = number
