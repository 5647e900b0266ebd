"""A partition becomes a whole solution."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from optfuse.problem.checker import check
from optfuse.problem.cost import kernel_cost
from optfuse.problem.instance import Instance
from optfuse.solver.baseline.greedy import greedy
from optfuse.solver.memory.assemble import arena_spans, arrange, assemble
from optfuse.solver.memory.order_problem import HEURISTICS, order_problem, program_order
from tests.problem.cases import answer, example
from tests.strategies import instances, share


@settings(max_examples=share(60), deadline=None, derandomize=True)
@given(instances(variants=True))
def test_every_order_of_a_partition_is_a_valid_solution(instance: Instance) -> None:
    kernels = greedy(instance).kernels
    problem = order_problem(instance, kernels)
    for heuristic in HEURISTICS:
        solution = arrange(instance, kernels, problem, heuristic(problem))
        assert check(instance, solution) == ()
        assert solution.objective == sum(kernel_cost(instance, kernel.ops, kernel.scheme) for kernel in kernels)


@settings(max_examples=share(100), deadline=None, derandomize=True)
@given(instances(variants=True), st.randoms(use_true_random=False))
def test_in_a_hurry_it_is_the_same_with_a_quicker_arena(instance: Instance, random: Random) -> None:
    kernels = list(greedy(instance).kernels)
    random.shuffle(kernels)
    problem = order_problem(instance, kernels)
    hurried = assemble(instance, [(kernel.ops, kernel.scheme) for kernel in kernels], hurried=True)
    assert hurried == arrange(instance, kernels, problem, program_order(problem), hurried=True)
    assert check(instance, hurried) == ()


def test_outputs_and_inputs_are_not_in_the_arena() -> None:
    solution = answer(example())
    problem = order_problem(example(), solution.kernels)
    spans = arena_spans(example(), problem, range(len(solution.kernels)))
    assert {example().buffers[span.buffer].name for span in spans} == {"a", "b", "d", "e"}
    assert {placement.buffer for placement in solution.placements} == {span.buffer for span in spans}
