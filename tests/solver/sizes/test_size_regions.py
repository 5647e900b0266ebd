"""Where plans hold over a range of sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optfuse.problem.instance import Instance
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.sizes.size_regions import SizeRegions, grid, size_regions
from optfuse.solver.solve import solve
from tests.problem.cases import example
from tests.solver.sizes.test_transfer import larger

OPTIONS = SolveOptions(workers=1)


def apart(instance: Instance) -> Instance:
    """The same, where the first kernel of several ops is not allowed."""
    fused = next(kernel for kernel in solve(instance, OPTIONS).solution.kernels if len(kernel.ops) > 1)
    return replace(instance, rules=replace(instance.rules, no_fuse=((min(fused.ops), max(fused.ops)),)))


def regions(last_fused: int, hint: int, **options: float) -> SizeRegions:
    """Sizes 1 to 100 of a graph of which two ops may share a kernel up to a size only."""
    fused, split = example(), apart(example())
    return size_regions(
        lambda size: [fused if size <= last_fused else split], hint, 1, 100, OPTIONS, points=5, **options
    )


def test_the_grid_has_both_ends_and_the_hint() -> None:
    assert grid(1, 16, 5, 5) == [1, 2, 4, 5, 8, 16]
    assert grid(7, 7, 7, 5) == [7]


@pytest.mark.parametrize("last", [3, 40, 77])
def test_a_plan_that_ceases_to_be_legal_gives_way_at_that_size(last: int) -> None:
    found = regions(last, hint=2)
    assert found.plans[0] == 2
    assert len(found.plans) == 2
    (switch,) = found.switches
    assert last < switch <= last + 1 + 0.02 * last
    assert found.plan_at(1) == found.plan_at(last) == 0
    assert found.plan_at(100) == 1
    assert "cannot share a kernel" in found.reasons[100]
    assert found.within(0.0)[0][0] == 1


def test_the_plan_of_the_larger_sizes_is_kept_down_to_where_it_loses_more_than_the_threshold() -> None:
    whole, split = solve(example(), OPTIONS).objective, solve(apart(example()), OPTIONS).objective
    loss = split / whole - 1
    assert loss > 0
    kept, given_up = (regions(40, hint=100, threshold=share * loss) for share in (1.1, 0.9))
    assert kept.plans == (100,)
    assert kept.switches == ()
    assert kept.within(1.1 * loss) == ((1, 100),)
    assert given_up.plans[0] == 100
    assert len(given_up.plans) == 2
    assert given_up.switches[0] in (41, 40)
    assert given_up.plan_at(100) == 0


def test_losses_are_against_the_bound_of_each_size() -> None:
    small, large = example(), larger(example())
    found = size_regions(lambda size: [small if size < 4 else large], 1, 1, 8, OPTIONS, points=4)
    own = {point.size: point for point in found.points}
    assert own[8].best == solve(large, OPTIONS).objective
    assert own[8].costs[0] is not None
    assert own[8].loss(0) == pytest.approx(own[8].costs[0] / own[8].bound - 1)
    assert own[1].loss(0) == 0
    assert str(found).count("\n") >= len(found.points)
