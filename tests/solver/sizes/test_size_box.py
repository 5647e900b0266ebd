"""Where plans hold over the ranges of two sizes."""

from __future__ import annotations

from optfuse.solver.control.options import SolveOptions
from optfuse.solver.sizes.size_box import size_box
from optfuse.solver.solve import solve
from tests.problem.cases import example
from tests.solver.sizes.test_size_regions import apart
from tests.solver.sizes.test_transfer import larger

OPTIONS = SolveOptions(workers=1)


def test_a_plan_that_is_illegal_in_one_corner_holds_in_the_boxes_around_it() -> None:
    fused, split = example(), apart(example())
    found = size_box(lambda at: [split if min(at) > 4 else fused], (2, 4), ((2, 8), (2, 16)), OPTIONS)
    assert found.plans[0] == (2, 4)
    assert [point.size for point in found.points] == [(a, b) for a in (2, 4, 8) for b in (2, 4, 6, 16)]
    assert found.within(0.0) == (((2, 4), (2, 16)), ((2, 8), (2, 4)))
    assert set(found.reasons) == {(8, 6), (8, 16)}
    assert "cannot share a kernel" in found.reasons[8, 16]
    assert [point.plan for point in found.points] == [0] * 10 + [1, 1]
    assert "the plan of 2 x 4 is within 0% of the best one at 2..4 x 2..16, 2..8 x 2..4" in str(found)


def test_losses_are_against_the_bound_of_each_pair() -> None:
    small, large = example(), larger(example())
    found = size_box(lambda at: [small if at[0] * at[1] < 8 else large], (1, 1), ((1, 4), (1, 4)), OPTIONS)
    corner = next(point for point in found.points if point.size == (4, 4))
    assert corner.best == solve(large, OPTIONS).objective
    assert corner.costs[0] is not None
    assert corner.loss(0) == corner.costs[0] / corner.bound - 1
