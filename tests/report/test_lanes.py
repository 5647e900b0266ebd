from __future__ import annotations

from optfuse.report.lanes import NO_KERNEL, Span, lanes
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.solve import solve
from tests.report.cases import example, solution_of
from tests.solver.overlap.test_overlap import OPTIONS, TWO_GRADIENTS, US, instance_of

AS_TRACED = SolveOptions(solver="greedy", order="program")


def spans(*times: tuple[int, int, int]) -> tuple[Span, ...]:
    return tuple(Span(kernel, begin * US, end * US) for kernel, begin, end in times)


def test_kernels_and_transfers_lie_in_lanes_of_their_own_and_waits_are_exposed() -> None:
    instance = instance_of(TWO_GRADIENTS)
    found = lanes(instance, solve(instance, AS_TRACED).solution)
    assert found is not None
    assert found.device == spans((0, 0, 4), (3, 10, 15), (6, 21, 22))
    assert found.communicators == {1: spans((1, 4, 10), (4, 15, 21))}
    assert found.exposed == spans((2, 4, 10), (5, 15, 21))
    assert found.launches == tuple(US * at for at in (0, 4, 4, 10, 15, 15, 21))
    assert (found.makespan, found.exposed_ps) == (22 * US, 12 * US)


def test_a_kernel_beside_a_transfer_is_drawn_as_long_as_it_takes_there() -> None:
    instance = instance_of(TWO_GRADIENTS, slowdown=20)
    result = solve(instance, OPTIONS)
    found = lanes(instance, result.solution)
    assert found is not None
    assert result.statistics.overlap is not None
    assert found.device[1] == Span(2, 4 * US, 10 * US)  # 5 us of work beside 6 us of transfer
    assert (found.makespan, found.exposed_ps) == (result.statistics.overlap.makespan, result.statistics.overlap.exposed)


def test_what_is_in_flight_after_the_last_kernel_is_exposed() -> None:
    instance = instance_of([("library", 4, 0, ()), ("collective", 6, 1, (0,))])
    found = lanes(instance, solve(instance, AS_TRACED).solution)
    assert found is not None
    assert found.exposed == spans((NO_KERNEL, 4, 10))
    assert found.makespan == 10 * US


def test_a_graph_without_communication_has_none() -> None:
    assert lanes(example(), solution_of(example(), ((0, 1, 2), 2))) is None
