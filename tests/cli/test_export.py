"""The model written is one that OR-tools reads, and leaves nothing behind when it cannot be written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ortools.sat import cp_model_pb2

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
    assert sorted(path.name for path in tmp_path.iterdir()) == ["i.json", "m.pb"]


def test_no_folder(optfuse: Run, tmp_path: Path) -> None:
    save_instance(generate("chain", 8, 0), tmp_path / "i.json")
    line = optfuse("export", tmp_path / "i.json", "--pb", tmp_path / "none" / "m.pb").error_line()
    assert "there is no folder" in line
