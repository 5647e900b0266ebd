"""Orders respect precedence; peaks are what a naive simulation says; the floor is a floor."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from optfuse.errors import IllegalKernelError
from optfuse.problem.instance import ALONE, Buffer, Instance
from optfuse.problem.solution import Kernel
from optfuse.solver.baseline.greedy import greedy
from optfuse.solver.memory.assemble import assemble
from optfuse.solver.memory.order_problem import (
    HEURISTICS,
    OrderProblem,
    floor_bytes,
    live_bytes,
    order_problem,
    peak_bytes,
)
from tests.problem.cases import ADD, FLAT, GELU, MATMUL, MIB, ROWS, SCALE, SHIFT, SUM, answer, example
from tests.strategies import instances, share


def unfused(instance: Instance) -> list[Kernel]:
    parts = [((op,), instance.ops[op].offers[0].scheme) for op in range(len(instance.ops))]
    return list(assemble(instance, parts).kernels)


def assert_topological(problem: OrderProblem, order: list[int]) -> None:
    assert sorted(order) == list(range(len(problem.before)))
    place = {kernel: position for position, kernel in enumerate(order)}
    for kernel, before in enumerate(problem.before):
        assert all(place[earlier] < place[kernel] for earlier in before)


@settings(max_examples=share(80), deadline=None, derandomize=True)
@given(instances(rules=True))
def test_heuristics_are_topological_and_above_the_floor(instance: Instance) -> None:
    for kernels in (unfused(instance), list(greedy(instance).kernels)):
        problem = order_problem(instance, kernels)
        for heuristic in HEURISTICS:
            order = heuristic(problem)
            assert_topological(problem, order)
            assert peak_bytes(problem, order) >= floor_bytes(problem)


def test_live_bytes_by_hand() -> None:
    instance = example()
    kernels = answer(instance).kernels
    problem = order_problem(instance, kernels)
    # x stays; w is donated and ends with the first kernel; a lives until add; c and f are outputs; b, d, e pass by.
    x, w, f = MIB, 1024, 4096
    a = b = c = d = e = MIB
    assert live_bytes(problem, range(4)) == [x + w + a + b, x + a + b + d, x + a + d + c + e, x + c + e + f]


def test_values_kept_in_registers_take_no_memory() -> None:
    instance = example()
    parts = [((op.ops), op.scheme) for op in answer(instance).kernels[:2]] + [((3, 4, 5), 1)]
    problem = order_problem(instance, assemble(instance, parts).kernels)
    assert "e" not in {instance.buffers[storage.buffer].name for storage in problem.storages}


def test_an_alias_is_its_input() -> None:
    plain = example()
    aliased = replace(plain, buffers=tuple(replace(b, alias=0) if b.name == "f" else b for b in plain.buffers))
    saved = answer(plain).peak_bytes - peak_bytes(order_problem(aliased, answer(plain).kernels), range(4))
    assert live_bytes(order_problem(aliased, answer(plain).kernels), range(4))[3] == 3 * MIB
    assert saved == 0


def test_an_unused_donated_input_is_live_at_first_only() -> None:
    plain = example()
    instance = replace(plain, buffers=(*plain.buffers, Buffer("unused", 64 * MIB, "input", donated=True)))
    live = live_bytes(order_problem(instance, answer(instance).kernels), range(4))
    assert live[0] - live[1] == 64 * MIB + 1024 - MIB


def test_a_cycle_of_kernels_is_named() -> None:
    parts = [((SCALE, SUM), ROWS), ((SHIFT,), FLAT), ((MATMUL,), ALONE), ((ADD, GELU), FLAT)]
    with pytest.raises(IllegalKernelError, match="cycle"):
        assemble(example(), parts)


def test_an_instance_without_ops() -> None:
    empty = replace(example(), ops=(), edges=(), buffers=example().buffers[:2])
    problem = order_problem(empty, [])
    assert peak_bytes(problem, []) == floor_bytes(problem) == MIB + 1024
