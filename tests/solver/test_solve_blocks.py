"""The whole solver: rules, repeats, cycles across blocks, CP-SAT's own part, time, and what it refuses."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from optfuse.errors import IllegalKernelError, InvalidOptionError
from optfuse.problem.instance import Buffer, Edge, Instance, Offer, Op, Read, Rules, Scheme, Write
from optfuse.problem.legality import is_legal
from optfuse.problem.op_masks import mask_of
from optfuse.problem.solution import Kernel
from optfuse.solver import solve_blocks as module
from optfuse.solver.baseline.exhaustive import exhaustive
from optfuse.solver.baseline.greedy import greedy
from optfuse.solver.block_cycles import Answer, without_cycles
from optfuse.solver.columns.atoms import find_atoms
from optfuse.solver.columns.candidates import enumerate_candidates
from optfuse.solver.columns.pricing import pricer
from optfuse.solver.control.clock import Clock, WorkClock
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.master.master import Master, covers_of
from optfuse.solver.master.relaxation import LinearMaster, Relaxation
from optfuse.solver.master.search import Incumbent, search
from optfuse.solver.memory.assemble import assemble
from optfuse.solver.reduce.blocks import Shape, find_blocks
from optfuse.solver.solve_blocks import CpsatOutcome, solve_cpsat
from optfuse.solver.strategies.block import BlockResult, Partition
from tests.layered import build, layered
from tests.solver.reduce.test_blocks import twice
from tests.strategies import DEVICE, share

QUIET = settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
ONE_WORKER = SolveOptions(workers=1, deterministic=True)


def solved(instance: Instance, seconds: float = 60.0, options: SolveOptions = ONE_WORKER) -> CpsatOutcome:
    return solve_cpsat(instance, options, greedy(instance), time.monotonic() + seconds)


def optimum(instance: Instance) -> int:
    solution = exhaustive(instance).solution
    assert solution is not None
    return solution.objective


def test_a_memory_cap_is_refused() -> None:
    instance = replace(build(0, 5), rules=Rules(peak_memory=1 << 20))
    with pytest.raises(InvalidOptionError, match="caps peak memory"):
        solved(instance)


def test_an_op_without_a_kernel_is_named() -> None:
    instance = build(0, 6)
    ruled = replace(instance, rules=Rules(single_kernel=((0, 5),)))
    assert not any(is_legal(ruled, (0, 5), scheme) for scheme in range(4))
    singles = assemble(instance, [((i,), op.offers[0].scheme) for i, op in enumerate(instance.ops)])
    with pytest.raises(IllegalKernelError, match="op"):
        solve_cpsat(ruled, ONE_WORKER, singles, time.monotonic() + 60)


def kernels_of_two(instance: Instance) -> list[tuple[int, ...]]:
    return [kernel.ops for kernel in greedy(instance).kernels if len(kernel.ops) > 1]


@settings(QUIET, max_examples=share(60))
@given(layered(6, 9))
def test_fuse_and_single_kernel_are_obeyed(instance: Instance) -> None:
    groups = kernels_of_two(instance)
    if not groups:
        return
    rng = random.Random(len(instance.edges))
    group = rng.choice(groups)
    for rules in (Rules(fuse=((group[0], group[-1]),)), Rules(single_kernel=(group,))):
        ruled = replace(instance, rules=rules)
        # What greedy does without the rules obeys them.
        outcome = solve_cpsat(ruled, ONE_WORKER, greedy(instance), time.monotonic() + 60)
        assert outcome.proven
        assert outcome.objective == optimum(ruled)


def test_no_fuse_and_barrier_are_obeyed() -> None:
    for seed in range(40):
        instance = build(seed, 8)
        groups = kernels_of_two(instance)
        if groups:
            ruled = replace(instance, rules=Rules(no_fuse=(groups[0][:2],), barrier=(groups[-1][-1],)))
            assert solved(ruled).objective == optimum(ruled)


def test_repeats_are_solved_once() -> None:
    for seed in range(share(25)):
        instance = build(seed, 14)
        if not instance.limits.connected:
            continue
        one, two = solved(instance), solved(twice(instance))
        assert two.objective == 2 * one.objective
        assert two.bound == 2 * one.bound
        assert (two.blocks, two.unique_blocks) == (2 * one.blocks, one.unique_blocks)
        assert two.candidates == one.candidates


def test_the_same_answer_every_time() -> None:
    for seed in range(share(10)):
        instance = build(seed, 14)
        assert solved(instance) == solved(instance)


def crossing() -> Instance:
    """Two pairs, each worth fusing, each waiting for one of the other: only one of them can be fused."""
    buffers = (
        Buffer("in", 4 << 20, "input"),
        Buffer("big", 6 << 20, "input"),
        *(Buffer(name, 1 << 20, output=True) for name in ("a1", "b1", "b2", "a2")),
    )

    def op(name: str, source: int, target: int, scheme: int) -> Op:
        read = Read(source, buffers[source].bytes, footprint=source)
        return Op(name, "loop", (Offer(scheme, (read,), (Write(target, 1 << 20),)),))

    ops = (op("a1", 0, 2, 1), op("b1", 1, 3, 2), op("b2", 1, 4, 2), op("a2", 0, 5, 1))
    schemes = (Scheme("alone", 1), Scheme("one", 64, parallel=64), Scheme("two", 128, parallel=128))
    return Instance("crossing", (DEVICE,), schemes, buffers, ops, (Edge(0, 1, None, ()), Edge(2, 3, None, ())))


def test_cycles_across_blocks_join_them() -> None:
    instance = crossing()
    assert find_blocks(instance) == [(0, 3), (1, 2)]
    outcome = solved(instance)
    assert (outcome.blocks, outcome.proven) == (1, True)
    assert outcome.cuts > 0
    assert outcome.objective == optimum(instance)
    assert sorted(kernel.ops for kernel in outcome.kernels) == [(0,), (1, 2), (3,)]


def test_of_better_answers_that_close_a_cycle_the_one_that_gains_more_is_kept() -> None:
    instance = crossing()
    costs = {ops: pricer(instance).price(mask_of(ops), scheme) for ops, scheme in (((0, 3), 1), ((1, 2), 2))}
    costs |= {(op,): pricer(instance).price(1 << op, scheme) for op, scheme in ((0, 1), (1, 2), (2, 2), (3, 1))}

    def answer(*kernels: tuple[tuple[int, ...], int]) -> Answer:
        return Answer(kernels, sum(costs[ops] for ops, _ in kernels), 1, complete=True)

    apart = [answer(((0,), 1), ((3,), 1)), answer(((1,), 2), ((2,), 2))]
    fused = [answer(((0, 3), 1)), answer(((1, 2), 2))]
    first, second = without_cycles(instance, apart, fused)
    assert apart[0].cost - fused[0].cost < apart[1].cost - fused[1].cost
    assert (first, second) == (apart[0], fused[1])
    assert without_cycles(instance, apart, [apart[0], fused[1]]) == [apart[0], fused[1]]


@pytest.mark.parametrize(("calls", "least", "most"), [(None, 10.0, 60.0), (1, 0.1, 2.0), (10**9, 10.0, 60.0)])
def test_a_block_gets_the_time_that_its_gap_is_worth(
    monkeypatch: pytest.MonkeyPatch, calls: int | None, least: float, most: float
) -> None:
    given: list[float] = []
    solve_block = module.solve_block

    def noted(shape: Shape, warm: Partition, options: SolveOptions, deadline: float, *rest: Any) -> BlockResult:
        given.append(deadline - time.monotonic())
        return solve_block(shape, warm, options, deadline, *rest)

    monkeypatch.setattr(module, "solve_block", noted)
    assert solved(build(0, 12), options=replace(ONE_WORKER, calls=calls, deterministic=False)).proven
    assert all(least < seconds < most for seconds in given)


def test_without_time_blocks_on_a_cycle_go_back_to_the_warm_start(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = crossing()
    apart = assemble(instance, [((0,), 1), ((1,), 2), ((2,), 2), ((3,), 1)])
    solve_block = module.solve_block

    def unhurried(shape: Shape, warm: Partition, options: SolveOptions, deadline: float, clock: Clock) -> BlockResult:
        return solve_block(shape, warm, options, time.monotonic() + 60)

    monkeypatch.setattr(module, "solve_block", unhurried)
    outcome = solve_cpsat(instance, ONE_WORKER, apart, time.monotonic())
    assert outcome.bound < optimum(instance) <= outcome.objective <= apart.objective
    assert not outcome.proven


@settings(QUIET, max_examples=share(80))
@given(layered(6, 9))
def test_cp_sat_alone_finds_the_optimum(instance: Instance) -> None:
    """Most relaxations are integral; here none is taken for it, and CP-SAT sees few columns at first."""

    def undecided(linear: LinearMaster, deadline: float) -> Relaxation:
        found = linear.relax(deadline)
        return replace(found, values=tuple(0.5 for _ in found.values), bound=0)

    atoms = find_atoms(instance)
    deadline = time.monotonic() + 60
    pool = enumerate_candidates(instance, atoms, 1_000_000, deadline)
    master = Master(pool.candidates, *covers_of(instance, atoms))
    start = Incumbent(None, greedy(instance).objective + 1)
    found = search(instance, master, atoms, start, 0, ONE_WORKER, deadline, relax=undecided, core=4)
    assert found.bound == found.incumbent.cost == optimum(instance)


def test_a_warm_start_that_is_already_optimal_is_kept_in_no_time() -> None:
    instance = build(7, 9)
    best = exhaustive(instance).solution
    assert best is not None
    outcome = solve_cpsat(instance, ONE_WORKER, best, 0.0)
    assert outcome.objective == best.objective
    assert outcome.bound <= best.objective
    assert sorted(kernel.ops for kernel in outcome.kernels) == sorted(kernel.ops for kernel in best.kernels)


def test_without_time_the_warm_start_comes_back_and_is_called_unproven() -> None:
    instance = build(11, 40)
    outcome = solved(instance, seconds=-1.0)
    assert not outcome.proven
    assert outcome.objective == greedy(instance).objective
    assert outcome.given_up == ("search: there was no time for it",)


class _Ticking(WorkClock):
    """Time runs out at a given look at the clock."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks

    def now(self) -> float:
        self.looks -= 1
        return 0.0 if self.looks > 0 else 1e6


@pytest.mark.parametrize("looks", [*range(2, 12), 20, 40, 80])
def test_wherever_time_runs_out_the_answer_is_sound(looks: int) -> None:
    instance = build(11, 40)
    warm = greedy(instance)
    outcome = solve_cpsat(instance, ONE_WORKER, warm, 60.0, _Ticking(looks))
    assert outcome.bound <= outcome.objective <= warm.objective
    assert assemble(instance, [(k.ops, k.scheme) for k in outcome.kernels]).objective == outcome.objective
    assert outcome.proven == (not outcome.given_up)
    assert all("ops (from op" in line or line.startswith("search:") for line in outcome.given_up)


def test_kernels_come_in_an_order_that_runs() -> None:
    for seed in range(share(20)):
        instance = build(seed, 14)
        kernels: tuple[Kernel, ...] = solved(instance).kernels
        done = 0
        for kernel in kernels:
            needed = mask_of(
                edge.src for edge in instance.edges if edge.dst in kernel.ops and edge.src not in kernel.ops
            )
            assert not needed & ~done
            done |= mask_of(kernel.ops)
        assert done == (1 << len(instance.ops)) - 1
        assert assemble(instance, [(kernel.ops, kernel.scheme) for kernel in kernels]).objective > 0
