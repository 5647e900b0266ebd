"""CP-SAT's orders and offsets: exact on small problems, never worse, never wrong."""

from __future__ import annotations

import time

from hypothesis import given, settings

from optfuse.problem.instance import Instance
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.memory.arena import Packing, Span, aligned, arena_floor
from optfuse.solver.memory.order_model import improve_order, improve_packing
from optfuse.solver.memory.order_problem import floor_bytes, order_problem, peak_bytes, program_order
from optfuse.solver.memory.order_search import OrderOutcome
from tests.solver.memory.test_arena import assert_valid, spans
from tests.solver.memory.test_memory import assert_topological, unfused
from tests.solver.memory.test_order_search import by_permutation
from tests.strategies import instances, share

OPTIONS = SolveOptions(workers=1, deterministic=True, time_limit=40)


@settings(max_examples=share(40), deadline=None, derandomize=True)
@given(instances(max_ops=6, min_ops=3))
def test_orders_agree_with_every_permutation(instance: Instance) -> None:
    problem = order_problem(instance, unfused(instance))
    order = tuple(program_order(problem))
    start = OrderOutcome(order, peak_bytes(problem, order), floor_bytes(problem))
    found = improve_order(problem, start, OPTIONS, time.monotonic() + 60)
    assert_topological(problem, list(found.order))
    assert found.proven
    assert found.peak == peak_bytes(problem, found.order) == by_permutation(problem)


def test_no_time_changes_nothing() -> None:
    problem = order_problem(*_two())
    start = OrderOutcome((0, 1), 10, 0)
    assert improve_order(problem, start, OPTIONS, time.monotonic()) is start


def _two() -> tuple[Instance, list]:
    from tests.problem.cases import answer, example

    return example(), list(answer(example()).kernels[:2])


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
