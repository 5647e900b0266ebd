"""CP-SAT's offsets: valid, and never of a larger arena."""

from __future__ import annotations

import time

from hypothesis import given, settings

from optfuse.solver.control.options import SolveOptions
from optfuse.solver.memory.arena import Packing, Span, aligned, arena_floor
from optfuse.solver.memory.arena_model import improve_packing
from tests.solver.memory.test_arena import assert_valid, spans
from tests.strategies import share

OPTIONS = SolveOptions(workers=1, deterministic=True, time_limit=40)


def stacked(problem: list[Span]) -> Packing:
    """Every buffer above the last: valid and wasteful."""
    offsets, top = [], 0
    for span in problem:
        offsets.append(top)
        top += aligned(span.bytes)
    return Packing(tuple(offsets), top)


@settings(max_examples=share(40), deadline=None, derandomize=True)
@given(spans(max_size=7))
def test_packings_are_valid_and_no_worse(problem: list[Span]) -> None:
    start = stacked(problem)
    found = improve_packing(problem, start, OPTIONS, time.monotonic() + 60)
    assert_valid(problem, found.offsets, found.arena_bytes)
    assert arena_floor(problem) <= found.arena_bytes <= start.arena_bytes


def test_a_packing_that_first_fit_misses() -> None:
    """Placed in the order given, the third buffer lands on top; exchanged, all fit in the live bytes."""
    problem = [Span(0, 64, 0, 1), Span(1, 64, 1, 3), Span(2, 128, 2, 3), Span(3, 64, 0, 0)]
    wasteful = stacked(problem)
    found = improve_packing(problem, wasteful, OPTIONS, time.monotonic() + 60)
    assert found.arena_bytes == arena_floor(problem) == 192
