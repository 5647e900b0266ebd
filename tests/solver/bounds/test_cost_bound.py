"""The bound that needs no search holds for every schedule, with copies too."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optfuse.problem.instance import Buffer, Edge, Instance, Offer, Op, Read, Scheme, Write
from optfuse.solver.baseline.exhaustive import exhaustive
from optfuse.solver.baseline.greedy import greedy
from optfuse.solver.bounds.cost_bound import cost_bound
from tests.layered import build, layered
from tests.strategies import DEVICE, instances, share

QUIET = settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


@settings(QUIET, max_examples=share(100))
@given(st.one_of(layered(3, 8), instances(min_ops=2, max_ops=7, variants=True)))
def test_no_solution_is_below_it(instance: Instance) -> None:
    solution = exhaustive(instance).solution
    assert solution is not None
    assert cost_bound(instance) <= cost_bound(instance, recompute=False) <= solution.objective


@settings(QUIET, max_examples=share(40))
@given(st.one_of(layered(3, 5), instances(min_ops=2, max_ops=4)))
def test_nor_with_copies(instance: Instance) -> None:
    ops = tuple(replace(op, recompute=op.kind == "loop") for op in instance.ops)
    copied = replace(instance, ops=ops)
    solution = exhaustive(copied, recompute=True).solution
    assert solution is not None
    assert cost_bound(copied) <= solution.objective


def test_library_calls_in_between_make_kernels() -> None:
    """Loop, library, loop, library, loop: nothing can be fused, and the bound is the cost."""
    size = 1 << 20
    buffers = (Buffer("in", size, "input"), *(Buffer(f"b{k}", size, output=k == 4) for k in range(5)))
    ops = tuple(
        Op(
            f"op{k}",
            "library" if k % 2 else "loop",
            (Offer(0 if k % 2 else 1, (Read(k, size),), (Write(k + 1, size),)),),
        )
        for k in range(5)
    )
    edges = tuple(Edge(k, k + 1, k + 1) for k in range(4))
    schemes = (Scheme("alone", 1), Scheme("flat", 1 << 18, parallel=1024))
    instance = Instance("chain", (DEVICE,), schemes, buffers, ops, edges)
    assert cost_bound(instance) == greedy(instance).objective


def test_it_is_worth_something() -> None:
    instance = build(1, 60)
    assert cost_bound(instance) > 0.5 * greedy(instance).objective
