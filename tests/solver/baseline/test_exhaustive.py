"""The oracle against an even plainer one: every labelling of the ops, judged by the checker alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings

from optfuse.errors import IllegalKernelError, InfeasibleError, InvalidOptionError
from optfuse.problem.checker import check
from optfuse.problem.instance import Instance, Rules
from optfuse.solver.baseline.exhaustive import MAX_OPS, exhaustive
from optfuse.solver.baseline.greedy import greedy
from optfuse.solver.memory.assemble import assemble
from tests.problem.cases import ADD, GELU, MATMUL, SCALE, SHIFT, SUM, example
from tests.solver.baseline.test_greedy import Graph
from tests.strategies import SCHEMES, instances, share


def partitions(ops: list[int]) -> Iterator[list[list[int]]]:
    """All ways to part some ops into groups."""
    if not ops:
        yield []
        return
    for rest in partitions(ops[1:]):
        yield [[ops[0]], *rest]
        for place in range(len(rest)):
            yield [*rest[:place], [ops[0], *rest[place]], *rest[place + 1 :]]


def cheapest_by_checker(instance: Instance) -> int:
    """The least objective among all partitions and schemes that the checker accepts."""
    optional = {op for variant in instance.variants for alternative in variant.alternatives for op in alternative}
    always = [op for op in range(len(instance.ops)) if op not in optional]
    best: int | None = None
    for chosen in product(*(variant.alternatives for variant in instance.variants)):
        for groups in partitions(sorted([*always, *(op for alternative in chosen for op in alternative)])):
            offered = [
                [s for s in range(len(SCHEMES)) if all(any(o.scheme == s for o in instance.ops[op].offers) for op in g)]
                for g in groups
            ]
            for schemes in product(*offered):
                try:
                    solution = assemble(instance, list(zip(groups, schemes, strict=True)))
                except IllegalKernelError:
                    continue
                if (best is None or solution.objective < best) and not check(instance, solution):
                    best = solution.objective
    assert best is not None
    return best


@settings(max_examples=share(40), deadline=None, derandomize=True)
@given(instances(max_ops=4, variants=True, rules=True))
def test_agrees_with_the_checker_alone(instance: Instance) -> None:
    outcome = exhaustive(instance)
    assert outcome.complete
    assert outcome.solution is not None
    assert outcome.solution.objective == cheapest_by_checker(instance)


@settings(max_examples=share(60), deadline=None, derandomize=True)
@given(instances(max_ops=8, variants=True, rules=True))
def test_valid_and_never_above_greedy(instance: Instance) -> None:
    solution = exhaustive(instance).solution
    assert solution is not None
    assert check(instance, solution) == ()
    assert solution.objective <= greedy(instance).objective


def test_the_example() -> None:
    solution = exhaustive(example()).solution
    assert solution is not None
    assert {kernel.ops for kernel in solution.kernels} == {(SCALE, SHIFT), (MATMUL,), (ADD, GELU, SUM)}


def test_the_memory_cap_is_kept_or_said_to_be_impossible() -> None:
    free = exhaustive(example()).solution
    assert free is not None
    for cap in range(free.peak_bytes, 0, -(1 << 18)):
        capped = replace(example(), rules=Rules(peak_memory=cap))
        try:
            solution = exhaustive(capped).solution
        except InfeasibleError:
            break
        assert solution is not None
        assert solution.peak_bytes <= cap
        assert check(capped, solution) == ()
    else:
        pytest.fail("no cap was too low")


def test_rules_that_leave_nothing() -> None:
    plain = example()
    impossible = replace(plain, rules=Rules(single_kernel=((SHIFT, ADD),)))
    with pytest.raises(InfeasibleError, match="'example'"):
        exhaustive(impossible)


def test_large_instances_are_refused() -> None:
    graph = Graph()
    value = graph.input()
    for _ in range(MAX_OPS + 1):
        value = graph.op(value)
    with pytest.raises(InvalidOptionError, match="cpsat"):
        exhaustive(graph.build())


def test_a_late_search_says_so() -> None:
    assert not exhaustive(example(), deadline=0.0).complete
