"""The same file on every run, and a line where there can be none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from optfuse.problem.serialize import load_instance
from tests.cli.conftest import Outcome

Run = Callable[..., Outcome]


def test_the_same_bytes_again(optfuse: Run, tmp_path: Path) -> None:
    for name in ("a.json.gz", "b.json.gz"):
        outcome = optfuse("generate", "layers", "--size", 30, "--seed", 3, "--out", tmp_path / name)
        assert outcome.code == 0, outcome.err
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    assert load_instance(tmp_path / "a.json.gz").name == "layers-30-3.generated"


def test_unknown_families(optfuse: Run, tmp_path: Path) -> None:
    assert "known: chain, tree" in optfuse("generate", "star", "--out", tmp_path / "s.json").error_line()
    assert not list(tmp_path.iterdir())
