"""No family of the joint model can go without an example that shows it: each is dropped in turn."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from functools import cache

import pytest

from optfuse.errors import IllegalKernelError
from optfuse.problem.checker import check
from optfuse.problem.instance import Buffer, Edge, Instance, Limits, Offer, Op, Read, Rules, Write
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.joint.columns import list_columns
from optfuse.solver.joint.feasible_columns import feasible_columns
from optfuse.solver.joint.joint import solve_joint
from optfuse.solver.joint.joint_families import FAMILIES, Family, add_recomputed_writes
from optfuse.solver.joint.memory_cap import in_order
from optfuse.solver.joint.scope import whole_scope
from tests.fuzzing import SCHEMES, build
from tests.oracle.agreeing import assert_agrees, best_cost, capped
from tests.strategies import DEVICE

ONE_WORKER = SolveOptions(workers=1, deterministic=True)
#: Examples that are looked at for one that a dropped family gets wrong.
EXAMPLES = 2500

Outcome = int | str | None


@cache
def example(seed: int) -> tuple[Instance, bool]:
    """A tiny instance, most often under a cap, and whether ops may be computed twice."""
    rng = random.Random(seed)
    instance = build(rng, 5)
    recompute = rng.random() < 0.5
    return (capped(instance, rng.choice([0, 20, 40, 60, 80, 100])) if rng.random() < 0.8 else instance), recompute


@cache
def truth(seed: int) -> Outcome:
    instance, recompute = example(seed)
    return best_cost(instance, recompute=recompute)


def outcome(instance: Instance, families: Sequence[Family], *, recompute: bool) -> Outcome:
    """What the joint model of some families says: the least cost, None for no schedule, or what is wrong with it."""
    cap = instance.rules.peak_memory
    scope = whole_scope(instance, recompute=recompute)
    if cap is not None and scope.base > cap:
        return None
    columns = feasible_columns(scope, list_columns(instance, scope.ops, scope.recomputable).columns, cap)
    found = solve_joint(scope, columns, ONE_WORKER, time.monotonic() + 60, cap=cap, families=families)
    if found.columns is None:
        return None if found.infeasible else "undecided"
    try:
        violations = check(instance, in_order(instance, [column.kernel for column in found.columns]))
    except (IllegalKernelError, ValueError) as error:  # kernels in a cycle, or no kernel at all
        return str(error)
    return violations[0].code if violations else found.bound


def test_all_families_together_agree_with_exhaustive_search() -> None:
    for seed in range(50):
        instance, recompute = example(seed)
        assert outcome(instance, FAMILIES, recompute=recompute) == truth(seed), seed


@pytest.mark.slow
@pytest.mark.parametrize(
    "dropped",
    [family for family in FAMILIES if family is not add_recomputed_writes],
    ids=lambda family: family.__name__,
)
def test_a_dropped_family_is_noticed(dropped: Family) -> None:
    rest = [family for family in FAMILIES if family is not dropped]
    for seed in range(EXAMPLES):
        instance, recompute = example(seed)
        if outcome(instance, rest, recompute=recompute) != outcome(instance, FAMILIES, recompute=recompute):
            assert outcome(instance, FAMILIES, recompute=recompute) == truth(seed)
            assert outcome(instance, rest, recompute=recompute) != truth(seed)
            return
    pytest.fail(f"{EXAMPLES} examples do without {dropped.__name__}")


def shifted() -> Instance:
    """A donated input that no op uses, live while the first kernel runs; ``small`` may be computed again.

    A first kernel of ``small`` alone would end that input before the large output begins, for no other use.
    """
    flat, large = 2, 1 << 20
    buffers = (
        Buffer("unused", large // 2, "input", donated=True),
        Buffer("v", 4096),
        Buffer("out", large, output=True),
    )
    ops = (
        Op("small", "loop", (Offer(flat, (), (Write(1, 4096),)),), recompute=True),
        Op("grow", "loop", (Offer(flat, (Read(1, 4096),), (Write(2, large),)),)),
    )
    rules = Rules(peak_memory=large + 64)
    return Instance("shifted", (DEVICE,), SCHEMES, buffers, ops, (Edge(0, 1, 1, (flat,)),), rules=rules)


def linked() -> Instance:
    """Four readers of four inputs in pairs that only a copy of ``link``, which reads all four, puts into one kernel."""
    flat, size = 2, 1 << 16
    inputs = tuple(Buffer(f"in{k}", size, "input") for k in range(4))
    outputs = tuple(Buffer(f"out{k}", 64, output=True) for k in range(5))
    link = Op("link", "loop", (Offer(flat, tuple(Read(k, size) for k in range(4)), (Write(9, 64),)),), recompute=True)
    readers = tuple(Op(f"r{k}", "loop", (Offer(flat, (Read(k, size),), (Write(4 + k, 64),)),)) for k in range(4))
    last = Op("last", "library", (Offer(0, (Read(9, 64),), (Write(8, 64),)),))
    return Instance(
        "linked",
        (DEVICE,),
        SCHEMES,
        (*inputs, *outputs, Buffer("v", 64)),
        (link, *readers, last),
        (Edge(0, 5, 9),),
        limits=Limits(max_ops=3),
    )


def test_a_copy_for_no_use_is_no_way_to_keep_a_cap() -> None:
    instance = shifted()
    assert best_cost(instance, recompute=True) is None
    assert outcome(instance, FAMILIES, recompute=True) is None
    rest = [family for family in FAMILIES if family is not add_recomputed_writes]
    assert outcome(instance, rest, recompute=True) == "recompute"


def test_a_copy_may_link_what_nothing_else_links() -> None:
    instance = linked()
    least = best_cost(instance, recompute=True)
    assert outcome(instance, FAMILIES, recompute=True) == least
    assert least is not None
    assert least < (best_cost(instance, recompute=False) or 0)
    assert assert_agrees(instance, recompute=True) in ("OPTIMAL", "FEASIBLE")
