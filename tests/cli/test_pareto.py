"""``optfuse pareto``: rows as JSON, plots in a folder, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from optfuse.cli.app import app
from optfuse.problem.serialize import save_instance
from tests.rematerial import masked


def test_rows_and_plots(tmp_path: Path) -> None:
    save_instance(masked(), tmp_path / "masked.json")
    out = tmp_path / "plots"
    arguments = ["pareto", str(tmp_path / "masked.json"), "--points", "3", "--recompute", "--workers", "1"]
    done = CliRunner().invoke(app, [*arguments, "--time-limit", "10", "--json", "--out", str(out)])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert rows[0]["status"] == "OPTIMAL"
    assert all(row["peak_memory_bytes"] <= row["cap_bytes"] for row in rows if row["peak_memory_bytes"])
    assert {path.name for path in out.iterdir()} == {"masked.pareto.svg", "masked.pareto.png"}


TIED = """
import torch

class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(37, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.head = torch.nn.Linear(16, 37, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("mask", torch.tril(torch.ones(8, 8)))

    def forward(self, tokens):
        mixed = self.mask @ self.norm(self.words(tokens))
        return torch.nn.functional.cross_entropy(self.head(mixed).flatten(0, 1), tokens.flatten())

def model():
    return Tied()

def inputs():
    return (torch.zeros(4, 8, dtype=torch.int64),), {}
"""


@pytest.mark.slow
def test_a_front_of_parameters_without_memory_is_that_of_real_ones(tmp_path: Path) -> None:
    path = tmp_path / "tied.py"
    path.write_text(TIED)
    fronts = []
    for flags in ([], ["--fake-weights"]):
        arguments = ["pareto", "--train", str(path), "--points", "2", "--workers", "1", "--json", *flags]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
        fronts.append(json.loads(done.stdout))
    assert fronts[0] == fronts[1]
    assert len(fronts[0]) >= 2
    refused = CliRunner().invoke(app, ["pareto", str(path), "--fake-weights"])
    assert refused.exit_code != 0
    assert "--fake-weights is for a model's training step: add --train" in str(refused.exception)


def test_the_cap_of_solve(tmp_path: Path) -> None:
    save_instance(masked(), tmp_path / "masked.json")
    arguments = ["solve", str(tmp_path / "masked.json"), "--workers", "1", "--json"]
    done = CliRunner().invoke(app, [*arguments, "--peak-memory", "4.1MiB", "--recompute"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["peak_memory_bytes"] <= 4.1 * 2**20
    refused = CliRunner().invoke(app, [*arguments, "--peak-memory", "4.1MiB"])
    assert refused.exit_code != 0
    assert "the least that can be met is" in str(refused.exception)
