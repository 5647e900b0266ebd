"""A small instance, solved by hand, for the tests of this folder: the example that instances/README.md explains."""

from __future__ import annotations

from pathlib import Path

from optfuse.problem.cost import default_writes, kernel_cost
from optfuse.problem.instance import Instance
from optfuse.problem.serialize import digest, load_instance
from optfuse.problem.solution import Kernel, Solution
from optfuse.solver.result import SolveResult, Statistics, Status

EXAMPLE = Path(__file__).parents[2] / "instances" / "example.json"


def example() -> Instance:
    """b = exp(a), c = b + 1, d = c.sum(1)."""
    return load_instance(EXAMPLE)


def solution_of(instance: Instance, *parts: tuple[tuple[int, ...], int]) -> Solution:
    """The kernels named, as (ops, scheme), with what they must write and what they cost."""
    kernels = tuple(Kernel(ops, scheme, default_writes(instance, ops, scheme)) for ops, scheme in parts)
    objective = sum(kernel_cost(instance, kernel.ops, kernel.scheme, kernel.writes) for kernel in kernels)
    return Solution(instance.name, digest(instance), kernels, objective=objective)


def result_of(greedy: Solution, chosen: Solution, status: Status = "OPTIMAL", gap: float = 0.0) -> SolveResult:
    """What a solver would have said."""
    return SolveResult(
        status=status,
        solution=chosen,
        objective=chosen.objective,
        bound=round(chosen.objective * (1 - gap)),
        gap=gap,
        greedy_objective=greedy.objective,
        greedy_solution=greedy,
        statistics=Statistics(blocks=1, unique_blocks=1, candidates=6, rounds=1, wall_s=0.25, given_up=()),
        seed=0,
        versions=(("ortools", "9.15"),),
    )
