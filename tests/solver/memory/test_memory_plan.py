"""Order and arena of a partition: heuristics are reported, deadlines kept, arenas valid and no larger."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings

from optfuse.problem.instance import Instance
from optfuse.solver.baseline.greedy import greedy
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.memory.arena import Span, aligned, arena_floor, pack
from optfuse.solver.memory.memory_plan import improve_arena, order_kernels
from optfuse.solver.memory.order_problem import HEURISTICS, OrderProblem, Storage, order_problem, peak_bytes
from tests.packings import perfect
from tests.solver.memory.test_arena import assert_valid
from tests.solver.memory.test_memory import assert_topological
from tests.strategies import instances, share

OPTIONS = SolveOptions(workers=1, time_limit=20)


@settings(max_examples=share(40), deadline=None, derandomize=True)
@given(instances())
def test_no_heuristic_is_better_and_each_is_reported(instance: Instance) -> None:
    problem = order_problem(instance, greedy(instance).kernels)
    ordering = order_kernels(problem, OPTIONS, time.monotonic() + 20)
    assert ordering.outcome.proven
    assert [name for name, _ in ordering.heuristic_peaks] == ["program", "dfs", "bfs", "lpmf"]
    assert [peak for _, peak in ordering.heuristic_peaks] == [peak_bytes(problem, h(problem)) for h in HEURISTICS]
    assert ordering.outcome.peak <= min(peak for _, peak in ordering.heuristic_peaks)
    asked = order_kernels(problem, SolveOptions(order="program"), time.monotonic() + 20)
    assert asked.outcome.peak == dict(asked.heuristic_peaks)["program"]


def random_problem(seed: int, count: int) -> OrderProblem:
    """Kernels that read one or two earlier ones, mostly near ones, each with one buffer of its own."""
    rng = random.Random(seed)
    before = [
        tuple(sorted({rng.randrange(max(0, k - rng.choice([1, 3, 30])), k) for _ in range(2)})) if k else ()
        for k in range(count)
    ]
    after: list[list[int]] = [[] for _ in range(count)]
    for kernel, mine in enumerate(before):
        for earlier in mine:
            after[earlier].append(kernel)
    storages = tuple(
        Storage(k, rng.choice([64, 4096, 1 << 20]), (k, *after[k]), from_start=False, to_end=not after[k])
        for k in range(count)
    )
    return OrderProblem(tuple(before), tuple(map(tuple, after)), storages, 0, tuple(range(count)))


def test_twenty_thousand_kernels_have_an_order_and_a_bound() -> None:
    problem = random_problem(0, 20_000)
    ordering = order_kernels(problem, OPTIONS, time.monotonic() + 1)
    assert_topological(problem, list(ordering.outcome.order))
    assert 0 < ordering.outcome.bound <= ordering.outcome.peak == peak_bytes(problem, ordering.outcome.order)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_arena_without_a_gap_is_found(workers: int) -> None:
    buffers = perfect(3, pieces=40)
    spans = [Span(n, 64 * b.size, b.lower, b.upper - 1) for n, b in enumerate(buffers)]
    start = pack(spans)
    assert start.arena_bytes > arena_floor(spans)
    found = improve_arena(spans, start, SolveOptions(workers=workers), time.monotonic() + 60)
    assert_valid(spans, found.offsets, found.arena_bytes)
    assert found.arena_bytes == arena_floor(spans) == aligned(64 * 1024)


def test_no_time_leaves_the_arena_as_it_is() -> None:
    spans = [Span(n, 64 * b.size, b.lower, b.upper - 1) for n, b in enumerate(perfect(3, pieces=40))]
    start = pack(spans)
    found = improve_arena(spans, start, OPTIONS, time.monotonic() - 1)
    assert_valid(spans, found.offsets, found.arena_bytes)
    assert found.arena_bytes <= start.arena_bytes
