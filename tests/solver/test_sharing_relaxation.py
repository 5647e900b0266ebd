"""The relaxation of launches that are shared: what it leaves to pay, and that it is solved to the optimum."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from optfuse.problem.instance import ALONE, Buffer, Edge, Instance, Offer, Op, Read, Scheme, Variant, Write
from optfuse.report.summary import shared_launches
from optfuse.solver.baseline.answer_check import unfused
from optfuse.solver.baseline.exhaustive import exhaustive
from optfuse.solver.baseline.greedy import greedy
from optfuse.solver.control.clock import WorkClock
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.sharing_relaxation import longest_chain, sharing_bound, with_shared_launches
from optfuse.solver.solve import solve
from tests.layered import build
from tests.strategies import DEVICE

OPTIONS = SolveOptions(workers=1, deterministic=True)
SHARES = replace(DEVICE, launch_ps=2_000_000, shared_ps=100_000)
KIB = 1024


def alone(edges: list[tuple[int, int]], kinds: str, variants: tuple[Variant, ...] = ()) -> Instance:
    """Loops ("l") and calls ("c") that run alone, beside much memory: op k writes buffer k, along edges (from, to)."""
    count = len(kinds)
    ops = [
        Op(
            f"op{n}",
            "loop" if kind == "l" else "library",
            (Offer(ALONE, tuple(Read(a, KIB) for a, b in edges if b == n), (Write(n, KIB),)),),
            form=1,
        )
        for n, kind in enumerate(kinds)
    ]
    buffers = tuple(Buffer(f"b{n}", KIB, output=not any(a == n for a, _ in edges)) for n in range(count))
    return Instance(
        "alone",
        (SHARES,),
        (Scheme("alone", 1),),
        (*buffers, Buffer("much", 1000 * KIB, "constant")),
        tuple(ops),
        tuple(Edge(a, b, a) for a, b in edges),
        variants,
    )


def launches_left(instance: Instance) -> float:
    """How many launches of its own the relaxation's kernels pay for, with each op alone."""
    kernels = unfused(instance).kernels
    relaxed = with_shared_launches(instance, longest_chain(instance, kernels))
    return sum(op.launch_ps for op in relaxed.ops) / (SHARES.launch_ps - SHARES.shared_ps)


def test_the_longest_chain_and_the_calls_pay_for_launches() -> None:
    """Two chains: loop, call, loop, loop; and loop, loop. Beside them a call."""
    instance = alone([(0, 1), (1, 2), (2, 3), (4, 5)], "lcllllc")
    assert longest_chain(instance, unfused(instance).kernels) == [0, 1, 2, 3]
    assert launches_left(instance) == 5
    shared = 7 * SHARES.shared_ps + 5 * (SHARES.launch_ps - SHARES.shared_ps)
    total = unfused(instance).objective
    bound = sharing_bound(instance, greedy(instance), OPTIONS, 10, WorkClock())
    assert bound == total - 7 * SHARES.launch_ps + shared  # loops 4 and 5 share launches with 0 and 2
    result = solve(instance, OPTIONS)
    assert result.statistics.sharing is not None
    assert result.statistics.sharing.bound == bound == result.objective - result.solution.saved_ps


def test_kernels_with_calls_do_not_make_a_chain_longer() -> None:
    """They pay for a launch in any case: the chain of two loops is worth more than that of a loop and two calls."""
    instance = alone([(0, 1), (1, 2), (3, 4)], "lccll")
    assert longest_chain(instance, unfused(instance).kernels) == [3, 4]
    assert launches_left(instance) == 4


def test_a_chain_passes_a_variant_where_each_alternative_does() -> None:
    """Op 0, then op 1 or op 2, then op 3."""
    both = (Variant("v", ((1,), (2,))),)
    through = [(0, 1), (0, 2), (1, 3), (2, 3)]
    instance = alone(through, "llll", both)
    assert longest_chain(instance, unfused(instance).kernels) == [0, 3]
    apart = alone([(0, 1), (1, 3), (2, 3)], "llll", both)
    assert len(longest_chain(apart, unfused(apart).kernels)) == 1


@pytest.mark.spread(3)
@pytest.mark.parametrize("seed", range(24))
def test_the_relaxation_is_solved_to_the_optimum(seed: int) -> None:
    instance = build(seed, random.Random(seed).randint(7, 9))
    instance = replace(instance, devices=tuple(replace(device, shared_ps=100_000) for device in instance.devices))
    relaxed = with_shared_launches(instance, longest_chain(instance, greedy(instance).kernels))
    solution = exhaustive(relaxed).solution
    result = solve(relaxed, OPTIONS)
    assert solution is not None
    assert result.status == "OPTIMAL"
    assert result.objective == solution.objective


def test_a_result_says_where_no_bound_on_sharing_was_searched_for() -> None:
    instance = alone([(0, 1), (2, 3)], "llll")
    searched, greedily = solve(instance, OPTIONS), solve(instance, replace(OPTIONS, solver="greedy"))
    assert "launches: no bound on sharing them was searched for" in greedily.statistics.given_up
    assert searched.statistics.given_up == ()
    assert "in 2 launches" in shared_launches(searched)
    assert shared_launches(searched).endswith("proven optimal for the stated model, whichever kernels share launches")
    assert "not proven optimal: under the stated model no schedule, sharing or not" in shared_launches(greedily)
