"""An answer of ours that the checker refuses: a kernel an op instead, said once, and nothing proven by it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from optfuse.errors import DefectError
from optfuse.problem.checker import check
from optfuse.problem.instance import Instance, Limits
from optfuse.solver import solve as stages
from optfuse.solver.baseline import answer_check
from optfuse.solver.baseline.greedy import GreedyOutcome
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.solve import solve
from tests.problem.cases import FLAT, SCALE, SHIFT, example

OPTIONS = SolveOptions(workers=1, deterministic=True)


def refused(lines: tuple[str, ...]) -> list[str]:
    return [line for line in lines if line.startswith("checker: ")]


def test_greedy_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = replace(example(), limits=Limits(max_ops=1))

    def too_large(problem: Instance, *_: Any) -> GreedyOutcome:
        alone = [
            ((op,), problem.ops[op].offers[0].scheme) for op in range(len(problem.ops)) if op not in (SCALE, SHIFT)
        ]
        return GreedyOutcome((((SCALE, SHIFT), FLAT), *alone), 1, complete=True)

    monkeypatch.setattr(stages, "greedy_partition", too_large)
    result = solve(instance, replace(OPTIONS, solver="greedy"))
    assert check(instance, result.solution) == ()
    assert all(len(kernel.ops) == 1 for kernel in result.solution.kernels)
    (line,) = refused(result.statistics.given_up)
    assert "greedy solver's answer was refused" in line
    assert "a kernel an op is returned" in line


def test_what_the_search_found_is_replaced_and_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = example()
    whole = stages._plan  # noqa: SLF001

    def spoilt(*args: Any) -> Any:
        plan = whole(*args)
        return replace(plan, solution=replace(plan.solution, objective=plan.solution.objective - 1))

    monkeypatch.setattr(stages, "_plan", spoilt)
    result = solve(instance, OPTIONS)
    assert check(instance, result.solution) == ()
    assert len(refused(result.statistics.given_up)) == 1
    assert result.status == "FEASIBLE"
    assert result.bound < result.objective


def test_a_defect_of_both_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_check, "why_refused", lambda *_, **__: "order: nothing holds")
    with pytest.raises(DefectError, match=r"^instance 'example'.*defect of optfuse, please report it"):
        solve(example(), OPTIONS)
