"""An answer of ours that the checker refuses: a kernel an op instead, said once, and nothing proven by it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from optfuse.errors import DefectError
from optfuse.problem.checker import check
from optfuse.problem.instance import Limits, Rules
from optfuse.problem.solution import Solution
from optfuse.solver import final_plan as stages
from optfuse.solver.baseline.answer_check import checked_or_unfused
from optfuse.solver.baseline.greedy import greedy
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.memory.assemble import arrange, assemble
from optfuse.solver.solve import solve
from tests.problem.cases import FLAT, SCALE, SHIFT, example

OPTIONS = SolveOptions(workers=1, deterministic=True)


def refused(lines: tuple[str, ...]) -> list[str]:
    return [line for line in lines if line.startswith("checker: ")]


def test_what_the_checker_refuses_is_replaced() -> None:
    instance = replace(example(), limits=Limits(max_ops=1))
    alone = [((op,), op_.offers[0].scheme) for op, op_ in enumerate(instance.ops) if op not in (SCALE, SHIFT)]
    too_large = assemble(example(), [((SCALE, SHIFT), FLAT), *alone])
    solution, line = checked_or_unfused(instance, too_large, "greedy")
    assert check(instance, solution) == ()
    assert all(len(kernel.ops) == 1 for kernel in solution.kernels)
    assert line.startswith("checker: the greedy solver's answer was refused")
    assert "a kernel an op is returned" in line


def test_what_the_search_found_is_replaced_and_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a plan whose price is wrong, in place of the one that the search made."""
    instance = example()

    def spoilt(*args: Any, **named: Any) -> Solution:
        solution = arrange(*args, **named)
        return replace(solution, objective=solution.objective - 1)

    monkeypatch.setattr(stages, "arrange", spoilt)
    result = solve(instance, OPTIONS)
    assert check(instance, result.solution) == ()
    assert len(refused(result.statistics.given_up)) == 1
    assert result.status == "FEASIBLE"
    assert result.bound < result.objective


def test_a_defect_of_both_is_one_line() -> None:
    """No schedule keeps a cap of one byte, a kernel an op included."""
    capped = replace(example(), rules=Rules(peak_memory=1))
    with pytest.raises(DefectError, match=r"^instance 'example'.*defect of optfuse, please report it"):
        checked_or_unfused(capped, greedy(example()), "cpsat")
