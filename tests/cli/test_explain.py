from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from optfuse.problem.serialize import save_instance, save_solution
from optfuse.solver.control.options import SolveOptions
from optfuse.solver.solve import solve
from tests.cli.conftest import Outcome
from tests.cli.test_optimize import MODEL, SOUND
from tests.problem.cases import example

Run = Callable[..., Outcome]

QUICK = ("--time-limit", 10, "--workers", 1)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """An instance and its answer."""
    instance, solution = tmp_path / "instance.json", tmp_path / "solution.json"
    save_instance(example(), instance)
    save_solution(solve(example(), SolveOptions(workers=1)).solution, solution)
    return instance, solution


def test_an_instance_and_its_answer(optfuse: Run, pair: tuple[Path, Path]) -> None:
    instance, solution = pair
    outcome = optfuse("explain", instance, "scale", "add", "--solution", solution, *QUICK)
    assert outcome.code == 0, outcome.err
    assert "scale and add are apart" in outcome.out
    assert "path: scale -> shift -> matmul -> add" in outcome.out
    # A folder with both is a plan, too.
    assert optfuse("explain", instance.parent, "scale", "add", *QUICK).out == outcome.out


def test_json_is_one_object(optfuse: Run, pair: tuple[Path, Path]) -> None:
    record = json.loads(optfuse("explain", pair[0].parent, "gelu", "sum", "--json", *QUICK).out)
    assert (record["together"], record["verdict"]) == (True, "dearer")
    assert record["other"]["bound"] == record["other"]["objective"]
    assert record["difference"] == record["other"]["objective"] - record["plan"]["objective"]


@pytest.mark.slow
def test_explain_of_an_instance_needs_no_torch(pair: tuple[Path, Path]) -> None:
    blocked = "import sys; sys.modules.update(dict.fromkeys(('torch', 'triton', 'sympy', 'transformers')));"
    args = ["explain", str(pair[0].parent), "add", "gelu", "--workers", "1"]
    code = f"{blocked} sys.argv = {['optfuse', *args]!r}; from optfuse.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_rules_of_a_file_and_the_answer_under_them(optfuse: Run, pair: tuple[Path, Path], tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('no_fuse = [["gelu", "sum"]]\n')
    instance, solution = pair
    solved = optfuse("solve", instance, "--rules", rules, "--out", solution, *QUICK)
    assert solved.code == 0, solved.err
    assert "with digest" in optfuse("check", instance, solution).error_line()
    assert optfuse("check", instance, solution, "--rules", rules).code == 0
    text = optfuse("explain", instance, "gelu", "sum", "--solution", solution, "--rules", rules, *QUICK).out
    assert "may not share a kernel (no_fuse): gelu, sum" in text


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ('fuse = [["gelu", "sum"], ["add", "gelu"]]\nbarrier = ["sum"]', 'fuse("gelu", "sum"); barrier("sum")'),
        ('barrier = ["smu"]', "'smu' matches no op of 'example'; the nearest names are 'sum'"),
        ("barrier = 3", "a list with an entry a rule"),
        ("barrier = [", "not TOML"),
    ],
)
def test_rules_that_cannot_be(optfuse: Run, pair: tuple[Path, Path], tmp_path: Path, rules: str, words: str) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(rules)
    assert words in optfuse("solve", pair[0], "--rules", path, *QUICK).error_line()


def test_plans_of_a_training_step(optfuse: Run, tmp_path: Path) -> None:
    net = tmp_path / "net.py"
    net.write_text(MODEL.format(body=SOUND))
    rules = tmp_path / "rules.toml"
    rules.write_text('barrier = ["erf"]\n')
    assert optfuse("optimize", net, "--train", "--rules", rules, "--out", tmp_path / "plans", *QUICK).code == 0
    outcome = optfuse("explain", tmp_path / "plans" / "net.forward", "mm_default", "erf", *QUICK)
    assert "mm_default, a library call, always runs alone" in outcome.out
    assert "net.py:" in outcome.out
    inside = optfuse("explain", tmp_path / "plans" / "net.forward", "erf", "erf", *QUICK)
    assert inside.code == 0
    line = optfuse("explain", tmp_path / "plans", "mm_default", "arff", *QUICK).error_line()
    assert "'arff' matches no op" in line


def test_places_that_hold_no_plan(optfuse: Run, pair: tuple[Path, Path], tmp_path: Path) -> None:
    instance, solution = pair
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "holds no plan" in optfuse("explain", empty, "a", "b").error_line()
    assert "--solution" in optfuse("explain", instance, "a", "b").error_line()
    assert "leave --solution" in optfuse("explain", tmp_path, "a", "b", "--solution", solution).error_line()
    (tmp_path / "plan.json").write_text("{}")
    assert "plan.json: malformed" in optfuse("explain", tmp_path, "add", "gelu").error_line()
