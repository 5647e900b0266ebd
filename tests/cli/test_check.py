from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from optfuse.problem.serialize import save_instance, save_solution
from optfuse.problem.solution import Kernel, Solution
from optfuse.solver.memory.order_problem import order_problem, peak_bytes
from tests.cli.conftest import Outcome
from tests.report.cases import EXAMPLE, example, solution_of

Run = Callable[..., Outcome]


@pytest.fixture
def fused() -> Solution:
    instance = example()
    solution = solution_of(instance, ((0, 1, 2), 2))
    return replace(solution, peak_bytes=peak_bytes(order_problem(instance, solution.kernels), [0]))


def test_a_correct_solution_passes(optfuse: Run, tmp_path: Path, fused: Solution) -> None:
    save_solution(fused, tmp_path / "s.json")

    outcome = optfuse("check", EXAMPLE, tmp_path / "s.json")

    assert (outcome.code, outcome.err) == (0, "")
    assert f"objective {fused.objective} ps" in outcome.out


def test_a_solution_of_another_instance_is_refused(optfuse: Run, tmp_path: Path, fused: Solution) -> None:
    save_solution(fused, tmp_path / "s.json")
    save_instance(replace(example(), name="other"), tmp_path / "other.json")

    line = optfuse("check", tmp_path / "other.json", tmp_path / "s.json").error_line()

    assert "'example'" in line
    assert "'other'" in line


def test_an_illegal_kernel_is_named(optfuse: Run, tmp_path: Path, fused: Solution) -> None:
    # the edge from add to sum does not allow scheme 1, and sum does not offer it
    save_solution(replace(fused, kernels=(Kernel((0, 1, 2), 1, (3,)),)), tmp_path / "s.json")

    outcome = optfuse("check", EXAMPLE, tmp_path / "s.json")

    assert outcome.code == 2
    assert "sum" in outcome.err.splitlines()[0]


def test_a_false_objective_is_a_violation(optfuse: Run, tmp_path: Path, fused: Solution) -> None:
    save_solution(replace(fused, objective=fused.objective - 1), tmp_path / "s.json")

    assert "objective" in optfuse("check", EXAMPLE, tmp_path / "s.json").error_line()


@pytest.mark.parametrize("missing", ["instance", "solution"])
def test_a_missing_file_is_named(optfuse: Run, tmp_path: Path, fused: Solution, missing: str) -> None:
    save_solution(fused, tmp_path / "solution.json")
    save_instance(example(), tmp_path / "instance.json")
    (tmp_path / f"{missing}.json").unlink()

    line = optfuse("check", tmp_path / "instance.json", tmp_path / "solution.json").error_line()

    assert f"{missing}.json: no such file" in line


def test_an_instance_is_no_solution(optfuse: Run) -> None:
    assert "optfuse-solution" in optfuse("check", EXAMPLE, EXAMPLE).error_line()
