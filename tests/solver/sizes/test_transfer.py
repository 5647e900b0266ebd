"""A plan at other sizes."""

from __future__ import annotations

from dataclasses import replace

from optfuse.problem.checker import check
from optfuse.problem.cost import total_cost
from optfuse.problem.instance import Instance
from optfuse.problem.solution import Solution
from optfuse.solver.sizes.transfer import transferred
from optfuse.solver.solve import solve
from tests.problem.cases import example


def larger(instance: Instance) -> Instance:
    """Every read and write four times as large."""
    ops = tuple(
        replace(
            op,
            offers=tuple(
                replace(
                    offer,
                    reads=tuple(replace(read, bytes=4 * read.bytes) for read in offer.reads),
                    writes=tuple(replace(write, bytes=4 * write.bytes) for write in offer.writes),
                )
                for offer in op.offers
            ),
        )
        for op in instance.ops
    )
    return replace(instance, ops=ops, buffers=tuple(replace(b, bytes=4 * b.bytes) for b in instance.buffers))


def test_a_plan_at_its_own_sizes_costs_what_it_did() -> None:
    instance = example()
    found = solve(instance).solution
    moved = transferred(found, instance, instance)
    assert isinstance(moved, Solution)
    assert moved.objective == found.objective


def test_a_plan_at_other_sizes_is_legal_there_and_no_cheaper_than_the_best() -> None:
    here, there = example(), larger(example())
    moved = transferred(solve(here).solution, here, there)
    assert isinstance(moved, Solution)
    assert not check(there, moved)
    assert moved.objective == total_cost(there, moved.kernels) >= solve(there).solution.objective
    assert moved.objective > solve(here).solution.objective


def test_ops_correspond_by_name() -> None:
    here = example()
    there = replace(here, ops=(replace(here.ops[0], name="another"), *here.ops[1:]))
    assert transferred(solve(here).solution, here, there) == f"its graph has no {here.ops[0].name}"


def test_a_kernel_that_is_illegal_there_is_named() -> None:
    here = example()
    found = solve(here).solution
    fused = next(kernel for kernel in found.kernels if len(kernel.ops) > 1)
    there = replace(here, rules=replace(here.rules, no_fuse=((min(fused.ops), max(fused.ops)),)))
    assert "cannot share a kernel" in str(transferred(found, here, there))
