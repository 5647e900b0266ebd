"""The model written is one that OR-tools reads, and leaves nothing behind when it cannot be written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from google.protobuf import text_format
from ortools.sat import cp_model_pb2
from ortools.sat.python import cp_model

from optfuse.instances.families import generate
from optfuse.problem.serialize import save_instance
from tests.cli.conftest import Outcome

Run = Callable[..., Outcome]


def test_a_model_proto_with_names(optfuse: Run, tmp_path: Path) -> None:
    save_instance(generate("cycles", 12, 0), tmp_path / "i.json")
    outcome = optfuse("export", tmp_path / "i.json", "--pb", tmp_path / "m.pb")
    assert outcome.code == 0, outcome.err
    model = cp_model_pb2.CpModelProto.FromString((tmp_path / "m.pb").read_bytes())
    names = [variable.name for variable in model.variables]
    assert all(names)
    assert len(set(names)) == len(names)
    assert any(name.startswith("kernel ") for name in names)
    again = cp_model.CpModel()
    again.proto.parse_text_format(text_format.MessageToString(model))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(again) == cp_model.OPTIMAL
    solved = optfuse("solve", tmp_path / "i.json", "--json", "--workers", 1)
    assert json.loads(solved.out)["objective"] == round(solver.objective_value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["i.json", "m.pb"]


def test_no_folder(optfuse: Run, tmp_path: Path) -> None:
    save_instance(generate("chain", 8, 0), tmp_path / "i.json")
    line = optfuse("export", tmp_path / "i.json", "--pb", tmp_path / "none" / "m.pb").error_line()
    assert "there is no folder" in line
