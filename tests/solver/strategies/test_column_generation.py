"""Generated columns: a legal partition, never dearer than the start, and the best one where all can be listed."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, given, settings

from optfuse.lab.generated.families import generate
from optfuse.problem.checker import check
from optfuse.problem.instance import Instance
from optfuse.solver.baseline.greedy import greedy
from optfuse.solver.control.clock import WALL, WorkClock
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.memory.assemble import assemble
from optfuse.solver.reduce.blocks import Shape, cut_out
from optfuse.solver.strategies.block import BlockResult, Budget, cost_of
from optfuse.solver.strategies.column_generation import best_generated
from optfuse.solver.strategies.listing import best_of_all, presolved
from tests.strategies import instances, share

QUIET = settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
SECONDS = 60.0


def as_block(instance: Instance) -> Shape:
    """An instance as one block."""
    return cut_out(instance, range(len(instance.ops))).shape


def generated_and_best(shape: Shape) -> tuple[BlockResult, BlockResult, BlockResult]:
    """The start, what generation makes of it, and the best choice among all candidates."""
    start = tuple((kernel.ops, kernel.scheme) for kernel in greedy(shape.problem).kernels)
    known = BlockResult(start, cost_of(shape.problem, start), 0)
    budget = Budget(SolveOptions(time_limit=SECONDS, workers=1), WALL, time.monotonic() + SECONDS)
    form = presolved(shape, shape.problem, budget)
    assert form is not None
    best = best_of_all(form, known, 200_000, budget)
    assert best is not None
    return known, best_generated(form, known, budget), best


@settings(QUIET, max_examples=share(60))
@given(instances(min_ops=2, max_ops=8, variants=True))
def test_it_is_a_solution_at_most_as_dear_as_the_start(instance: Instance) -> None:
    shape = as_block(instance)
    start, found, best = generated_and_best(shape)
    assert best.cost <= found.cost <= start.cost
    assert found.bound == start.bound
    assert found.cost == cost_of(shape.problem, found.kernels)
    assert not check(shape.problem, assemble(shape.problem, found.kernels))


@pytest.mark.parametrize(("family", "size", "seed"), [("grid", 25, 0), ("grid", 36, 0), ("convex", 12, 1)])
def test_it_finds_the_best_partition_where_greedy_does_not(family: str, size: int, seed: int) -> None:
    start, found, best = generated_and_best(as_block(generate(family, size, seed)))
    assert found.cost == best.cost < start.cost
    assert found.candidates < best.candidates


def test_it_ends_in_time_and_spends_what_it_takes() -> None:
    shape = as_block(generate("grid", 144, 0))
    start = tuple((kernel.ops, kernel.scheme) for kernel in greedy(shape.problem).kernels)
    known = BlockResult(start, cost_of(shape.problem, start), 0)
    clock = WorkClock()
    budget = Budget(SolveOptions(time_limit=1.0, workers=1, deterministic=True), clock, 1.0)
    form = presolved(shape, shape.problem, budget)
    assert form is not None
    found = best_generated(form, known, budget)
    assert 0 < clock.now() < 1.5
    assert found.cost < known.cost
