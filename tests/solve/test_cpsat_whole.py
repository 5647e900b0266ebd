"""The exported model, solved by plain CP-SAT, has the instance's optimum, and its solution is a schedule."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from ortools.sat.python import cp_model

from optfuse.errors import TooLargeError
from optfuse.instances.families import generate
from optfuse.problem.checker import check
from optfuse.problem.instance import Instance
from optfuse.solve.assemble import assemble
from optfuse.solve.cpsat.whole import whole_model
from optfuse.solve.exhaustive import exhaustive
from optfuse.solve.options import SolveOptions
from optfuse.solve.solve import solve
from tests.strategies import instances


def _solved(model: cp_model.CpModel) -> tuple[int, dict[str, int]]:
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.linearization_level = 2
    solver.parameters.max_deterministic_time = 20
    assert solver.solve(model) == cp_model.OPTIMAL
    values = {v.name: value for v, value in zip(model.proto.variables, solver.response_proto.solution, strict=True)}
    return round(solver.objective_value), values


def _kernels(values: dict[str, int]) -> list[tuple[tuple[int, ...], int]]:
    found = [re.fullmatch(r"kernel (\d+): ([\d ]+)", name) for name, value in values.items() if value == 1]
    return [(tuple(map(int, match[2].split())), int(match[1])) for match in found if match]


@settings(derandomize=True, max_examples=60, deadline=None)
@given(instances(max_ops=6, variants=True, rules=True))
def test_the_optimum_is_that_of_every_schedule(instance: Instance) -> None:
    best = exhaustive(instance)
    assert best.solution is not None
    objective, values = _solved(whole_model(instance))
    assert objective == best.solution.objective
    solution = assemble(instance, _kernels(values))
    assert check(instance, solution) == ()
    assert solution.objective == objective


@pytest.mark.parametrize(
    "what", [("cycles", 40, 0), ("cycles", 40, 3), ("grid", 16, 2), ("layers", 80, 0), ("tree", 30, 1)]
)
def test_the_same_as_block_by_block(what: tuple[str, int, int]) -> None:
    instance = generate(*what)
    result = solve(instance, SolveOptions(workers=1, deterministic=True))
    assert result.status == "OPTIMAL"
    objective, values = _solved(whole_model(instance))
    assert objective == result.objective
    assert check(instance, assemble(instance, _kernels(values))) == ()


def test_too_many_kernels_are_refused_with_the_block() -> None:
    with pytest.raises(TooLargeError, match=r"more than 100 candidate kernels.*block of .* ops from 'point0'"):
        whole_model(generate("grid", 36, 0), limit=100)
