"""The bound of blocks that small values hold together."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optfuse.problem.instance import Buffer, Edge, Instance, Limits, Offer, Op, Read, Scheme, Write
from optfuse.solver.baseline.exhaustive import exhaustive
from optfuse.solver.bounds.parts_bound import Loosened, fewest_across, loosened, parts_bound
from optfuse.solver.reduce.blocks import Shape
from tests.layered import build, layered
from tests.strategies import DEVICE, share

QUIET = settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


def optimum(instance: Instance) -> int:
    solution = exhaustive(instance).solution
    assert solution is not None
    return solution.objective


def least(part: Shape) -> int:
    return optimum(part.problem)


def test_no_solution_is_below_the_bound() -> None:
    examples, tight = share(250), list[bool]()

    @settings(QUIET, max_examples=examples)
    @given(layered(6, 9), st.integers(2, 6))
    def check(instance: Instance, most: int) -> None:
        instance = replace(instance, limits=Limits(most))
        loose = loosened(instance, small_share=2, many_users=1)
        if loose is not None:
            bound, best = parts_bound(instance, loose, least), optimum(instance)
            assert bound <= best
            tight.append(bound > 0.99 * best)

    check()
    assert len(tight) > 0.4 * examples
    assert sum(tight) > 0.04 * examples


def test_kernels_across_parts_are_as_few_as_the_makers() -> None:
    four = Loosened(build(0, 5), 1, ((0,), (1, 2), (3, 4), (5, 6)))
    assert fewest_across(four, most=3) == 3  # the first two in one kernel, the others in one each
    assert fewest_across(four, most=7) == 1
    assert fewest_across(replace(four, producers=0), most=7) == 4


def test_a_kernel_across_all_parts_is_allowed_for() -> None:
    """One op makes a small value that three others take: all four in one kernel is best, and not below the bound."""
    takers = range(1, 4)
    buffers = [Buffer("small", 4), *(Buffer(f"in{k}", 4096, "input") for k in takers)]
    buffers += [Buffer(f"out{k}", 4096, output=True) for k in takers]
    maker = Op("maker", "loop", (Offer(1, (), (Write(0, 4),)),))
    others = tuple(
        Op(f"taker{k}", "loop", (Offer(1, (Read(0, 4, "broadcast", k), Read(k, 4096)), (Write(k + 3, 4096),)),))
        for k in takers
    )
    edges = tuple(Edge(0, k, 0, (1,)) for k in takers)
    schemes = (Scheme("alone", 1), Scheme("flat", 1024, parallel=1024))
    instance = Instance("star", (DEVICE,), schemes, tuple(buffers), (maker, *others), edges)
    loose = loosened(instance, many_users=3)
    assert loose is not None
    assert (loose.producers, len(loose.parts)) == (1, 4)
    assert parts_bound(instance, loose, least) <= optimum(instance) < 2 * DEVICE.launch_ps


def test_problems_whose_kernels_need_not_be_connected_are_left_alone() -> None:
    instance = build(1, 30)
    assert loosened(replace(instance, limits=Limits(connected=False))) is None
