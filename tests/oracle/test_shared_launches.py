"""Shared launches against exhaustive search: over all orders of given kernels, and over all partitions with them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import pytest

from optfuse.errors import IllegalKernelError
from optfuse.problem.checker import check
from optfuse.problem.cost import shared_saving
from optfuse.problem.instance import Instance, Rules
from optfuse.problem.launches import launchable
from optfuse.problem.legality import common_schemes, is_legal, legal_index
from optfuse.problem.op_masks import bits
from optfuse.problem.solution import Solution
from optfuse.solver.baseline.answer_check import unfused
from optfuse.solver.baseline.exhaustive import choices
from optfuse.solver.baseline.greedy import greedy
from optfuse.solver.bounds.cost_bound import shared_bound
from optfuse.solver.control.clock import WorkClock
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.memory.assemble import arrange, assemble
from optfuse.solver.memory.launches import MORE_MEMORY, share_launches
from optfuse.solver.memory.order_problem import OrderProblem, order_problem, peak_bytes
from optfuse.solver.sharing_relaxation import sharing_bound
from optfuse.solver.solve import solve
from tests.fuzzing import build


def sharing_instance(seed: int, most: int = 6) -> Instance:
    """A random instance in which launches may be shared; some of its ops have a form in common with others."""
    rng = random.Random(seed)
    instance = build(rng, most)
    devices = tuple(replace(device, shared_ps=device.launch_ps // rng.choice((2, 20))) for device in instance.devices)
    ops = tuple(replace(op, form=rng.randrange(3) if op.kind == "loop" else 0) for op in instance.ops)
    rules = Rules(barrier=instance.rules.barrier)  # others may contradict each other
    return replace(instance, devices=devices, ops=ops, rules=rules)


def fewest(instance: Instance, solution: Solution, most_bytes: int | None = None) -> int:
    """Picoseconds that the best order of a solution's kernels saves, within a peak: all sequences of launches tried."""
    problem = order_problem(instance, solution.kernels)
    count = len(solution.kernels)
    best = {0: 0}
    for done in range(1 << count):
        if done not in best:
            continue
        ready = [k for k in range(count) if not done >> k & 1 and all(done >> b & 1 for b in problem.before[k])]
        for group in groups(instance, solution, ready):
            if most_bytes is not None and live(problem, done, group) > most_bytes:
                continue
            saved = best[done] + shared_saving(instance, solution.kernels, [group])
            after = done | sum(1 << k for k in group)
            best[after] = max(best.get(after, 0), saved)
    return best[(1 << count) - 1]


def groups(instance: Instance, solution: Solution, ready: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All launches of kernels that are ready."""
    kinds = {k: launchable(instance, solution.kernels[k]) for k in ready}
    for size in range(1, len(ready) + 1):
        for group in combinations(ready, size):
            mine = [kinds[k] for k in group]
            known = [kind for kind in mine if kind is not None]
            alike = len({kind.device for kind in known}) == 1 and len({kind.forms for kind in known} - {()}) < 2
            if size == 1 or (len(known) == size and alike):
                yield group


def live(problem: OrderProblem, done: int, group: Sequence[int]) -> int:
    """Live bytes while a launch runs after the kernels of ``done``."""
    total, now = problem.base, done | sum(1 << k for k in group)
    for storage in problem.storages:
        begun = storage.from_start or any(now >> user & 1 for user in storage.users)
        needed = storage.to_end or not all(done >> user & 1 for user in storage.users) or not (storage.users or done)
        total += storage.bytes if begun and needed else 0
    return total


def test_launches_of_given_kernels() -> None:
    found_total = best_total = sharing_total = 0
    for seed in range(250):
        instance = sharing_instance(seed)
        for solution in (greedy(instance), unfused(instance)):
            kernels, problem = solution.kernels, order_problem(instance, solution.kernels)
            order = range(len(kernels))
            peak = peak_bytes(problem, order)
            new_order, launches, sharing = share_launches(instance, kernels, problem, order)
            arranged = arrange(instance, kernels, problem, new_order, launches=launches)
            assert check(instance, arranged) == ()
            assert arranged.peak_bytes <= peak + int(MORE_MEMORY * peak)
            best = fewest(instance, solution, peak + int(MORE_MEMORY * peak))
            assert arranged.saved_ps <= best
            found_total, best_total = found_total + arranged.saved_ps, best_total + best
            if sharing is not None:
                sharing_total += 1
                assert sharing.saved_ps == arranged.saved_ps
                assert sharing.kernels - sharing.launches == sum(len(launch) - 1 for launch in launches)
                unlimited = fewest(instance, solution)
                if len(instance.devices) == 1:
                    device = instance.devices[0]
                    least = sharing.kernels - unlimited // (device.launch_ps - device.shared_ps)
                    assert sharing.launches_bound <= least <= sharing.launches
    assert sharing_total > 50
    assert found_total >= 0.98 * best_total


def partitions(instance: Instance, left: int, taken: list[tuple[tuple[int, ...], int]]) -> Iterator[Solution]:
    if not left:
        try:
            yield assemble(instance, taken)
        except IllegalKernelError:
            return
        return
    first = left & -left
    rest = left ^ first
    subset = rest
    while True:
        ops = tuple(bits(first | subset))
        for scheme in common_schemes(instance, ops):
            if is_legal(instance, ops, scheme):
                yield from partitions(instance, rest & ~subset, [*taken, (ops, scheme)])
        if not subset:
            return
        subset = (subset - 1) & rest


@pytest.mark.parametrize("first", [0, pytest.param(60, marks=pytest.mark.slow)])
def test_the_bounds_hold_for_all_partitions_and_launches(first: int) -> None:
    """The bound of the relaxation closes most of what the quick one leaves, and the partition chosen first is good."""
    options = SolveOptions(workers=1, deterministic=True)
    ours_total = best_total = quick_total = bound_total = tight = variants = 0
    for seed in range(first, first + 60):
        instance = sharing_instance(seed, most=5)
        instance = replace(instance, ops=tuple(replace(op, recompute=False) for op in instance.ops))
        every = [found for active in choices(legal_index(instance)) for found in partitions(instance, active, [])]
        if not every:
            continue
        variants += bool(instance.variants)
        best = min(solution.objective - fewest(instance, solution) for solution in every)
        quick = shared_bound(instance)
        bound = sharing_bound(instance, greedy(instance), options, 10, WorkClock())
        assert quick <= bound <= best
        tight += bound == best
        result = solve(instance, options)
        assert check(instance, result.solution) == ()
        ours = result.objective - result.solution.saved_ps
        assert ours >= best
        sharing = result.statistics.sharing
        assert sharing is None or sharing.bound in (quick, bound)
        ours_total, best_total = ours_total + ours, best_total + best
        quick_total, bound_total = quick_total + quick, bound_total + bound
    assert tight > 10
    assert variants > 10
    assert ours_total <= 1.02 * best_total
    assert bound_total >= 0.85 * best_total
    assert quick_total < 0.6 * best_total
