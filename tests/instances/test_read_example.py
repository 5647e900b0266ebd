"""The plain-data reader agrees with the package, and imports nothing of it."""

from __future__ import annotations

import ast
import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from optfuse.problem.cost import kernel_cost
from optfuse.problem.instance import Instance
from optfuse.problem.serialize import instance_to_json, load_instance, save_solution, solution_to_json
from optfuse.solver.baseline.greedy import greedy
from tests.instances.library import FOLDER, files
from tests.strategies import instances, share

SCRIPT = FOLDER / "read_example.py"
READER: dict[str, Any] = runpy.run_path(str(SCRIPT))


def test_the_standard_library_alone() -> None:
    tree = ast.parse(SCRIPT.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert names == {"gzip", "json", "sys"}
    assert not any(isinstance(node, ast.ImportFrom) for node in ast.walk(tree))


@pytest.mark.parametrize("name", ["example", "mlp", "mlp.backward", "chain-100-0.generated", "layers-100-0.generated"])
def test_library_files(name: str) -> None:
    path = files()[name]
    instance, data = load_instance(path), READER["read"](str(path))
    solution = greedy(instance)
    assert READER["objective"](data, json.loads(solution_to_json(solution))["kernels"]) == solution.objective
    alone = list(READER["unfused"](data))
    assert READER["objective"](data, alone) == sum(kernel_cost(instance, k["ops"], k["scheme"]) for k in alone)


@settings(derandomize=True, max_examples=share(150), deadline=None)
@given(instances(max_ops=8, variants=True))
def test_odd_instances(instance: Instance) -> None:
    solution = greedy(instance)
    data = json.loads(instance_to_json(instance))
    kernels = [{"ops": list(kernel.ops), "scheme": kernel.scheme} for kernel in solution.kernels]
    assert READER["objective"](data, kernels) == solution.objective


def test_as_a_command(tmp_path: Path) -> None:
    solution = greedy(load_instance(files()["example"]))
    save_solution(solution, tmp_path / "s.json")
    command = [sys.executable, str(SCRIPT), str(files()["example"]), str(tmp_path / "s.json")]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out == f"example: {len(solution.kernels)} kernels, {solution.objective} ps\n"
