from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from optfuse.report.text import report
from tests.report.cases import example, result_of, solution_of


def test_report(golden: Callable[..., None]) -> None:
    instance = example()
    greedy, chosen = solution_of(instance, ((0, 1), 1), ((2,), 2)), solution_of(instance, ((0, 1, 2), 2))

    decided = ("12 values inlined", "2 operators given to libraries (aten.addmm 1, aten.bmm 1)")
    golden(report(instance, result_of(greedy, chosen), ("aten.addmm.default", "aten.bmm.default"), decided))


def test_a_report_without_a_proof_says_so_and_names_what_was_given_up() -> None:
    instance = example()
    solution = solution_of(instance, ((0, 1, 2), 2))
    result = result_of(solution, solution, "FEASIBLE", 0.05)
    result = replace(result, statistics=replace(result.statistics, given_up=("block 3: time ran out",)))

    text = report(instance, result)

    assert "not proven optimal" in text
    assert "5.00%" in text
    assert "Given up: block 3: time ran out" in text
    assert "The chosen kernels are greedy's." in text


def test_an_instance_alone_says_nothing_of_what_was_decided_before() -> None:
    solution = solution_of(example(), ((0, 1, 2), 2))
    assert "before the solver" not in report(example(), result_of(solution, solution))
    assert "Decided before the solver: nothing." in report(example(), result_of(solution, solution), (), ())
