"""Kernels cut in parts for communication: where it pays, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optfuse.problem.checker import check
from optfuse.problem.instance import Instance, Limits, Scheme
from optfuse.problem.legality import is_legal
from optfuse.problem.solution import Kernel
from optfuse.problem.validate import validate
from optfuse.solver.control.clock import NEVER
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.memory.assemble import assemble
from optfuse.solver.overlap.overlap import transfers
from optfuse.solver.overlap.split_kernels import cut_for_transfers
from optfuse.solver.solve import solve
from tests.solver.overlap.test_overlap import US, instance_of

#: Two halves of a batch: each is sent, waited for, and goes on; the last but two ops may share a kernel.
HALVES = [
    ("library", 10, 0, ()),
    ("collective", 12, 1, (0,)),
    ("library", 10, 0, ()),
    ("collective", 12, 1, (2,)),
    ("wait", 0, 0, (1,)),
    ("wait", 0, 0, (3,)),
    ("loop", 2, 0, (4,)),
    ("loop", 2, 0, (5,)),
    ("library", 10, 0, (6,)),
    ("library", 10, 0, (7,)),
]
SHARED = Kernel((6, 7), 1, (6, 7))


def halves(launch: int = 0) -> Instance:
    """The two loops offer a scheme in which they may share a kernel, which spares a launch."""
    instance = instance_of(HALVES)  # type: ignore[arg-type]
    ops = list(instance.ops)
    for k in (6, 7):
        offer = replace(ops[k].offers[0], scheme=1)
        ops[k] = replace(ops[k], offers=(*ops[k].offers, offer))
    device = replace(instance.devices[0], launch_ps=launch)
    made = replace(
        instance,
        ops=tuple(ops),
        devices=(device,),
        schemes=(*instance.schemes, Scheme("rows", 1)),
        limits=Limits(connected=False),
    )
    validate(made)
    return made


def test_a_kernel_that_waits_for_two_transfers_is_cut() -> None:
    instance = halves(launch=US // 10)
    assert is_legal(instance, SHARED.ops, SHARED.scheme)
    kernels = [*(Kernel((k,), 0, (k,)) for k in range(10) if k not in (6, 7)), SHARED]
    found = cut_for_transfers(instance, kernels, NEVER)
    assert found.count == 1
    assert {kernel.ops for kernel in found.kernels} == {(k,) for k in range(10)}
    assert found.saved >= 5 * US  # the first half goes on while the second half is sent
    assert not check(instance, assemble(instance, [(kernel.ops, kernel.scheme) for kernel in found.kernels]))


def test_a_solve_names_what_it_cut_and_its_makespan_is_shorter() -> None:
    instance = halves(launch=US // 10)
    options = SolveOptions(time_limit=5, workers=1, deterministic=True)
    result = solve(instance, options)
    kept = solve(instance, replace(options, order="program"))
    assert any("1 kernels of least total time are cut" in line for line in result.statistics.given_up)
    assert result.objective > result.bound
    assert result.statistics.overlap is not None
    assert kept.statistics.overlap is not None
    assert result.statistics.overlap.makespan < kept.statistics.overlap.makespan
    assert not check(instance, result.solution)


def test_a_cut_that_costs_more_than_it_hides_is_not_made() -> None:
    instance = halves(launch=20 * US)
    kernels = [*(Kernel((k,), 0, (k,)) for k in range(10) if k not in (6, 7)), SHARED]
    assert cut_for_transfers(instance, kernels, NEVER).kernels == tuple(kernels)


@pytest.mark.parametrize("connected", [True, False])
def test_without_transfers_nothing_is_cut(connected: bool) -> None:
    instance = halves()
    ops = tuple(replace(op, transfer_ps=0) for op in instance.ops)
    quiet = replace(instance, ops=ops, limits=Limits(connected=connected))
    assert not transfers(quiet)
    assert cut_for_transfers(quiet, [SHARED], NEVER).kernels == (SHARED,)
