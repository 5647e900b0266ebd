"""``optfuse compare`` without Inductor's process: what is printed of an answer, and bad input."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from optfuse.inductor import process
from optfuse.inductor.groups import Groups, Launch, Part

MODEL = """
import torch

def model():
    return torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.ReLU(), torch.nn.Softmax(-1))

def inputs():
    return (torch.ones(4, 8),), {}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model file."""
    path = tmp_path / "tiny.py"
    path.write_text(MODEL)
    return path


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """An Inductor that fuses nothing, and never computes the exponential."""

    def answer(record: Mapping[str, Any], **_: Any) -> Groups:
        names = [node["name"] for node in record["nodes"] if node["op"] == "call" and node["name"] != "exp"]
        launches = tuple(
            Launch(
                name,
                "library" if name == "mm" else "loops",
                (Part(name, frozenset({name}), frozenset(), frozenset({name}), "", False),),
            )
            for name in names
        )
        return Groups(launches, frozenset(names), "2.x", "a GPU")

    monkeypatch.setattr(process, "run_inductor", answer)


@pytest.mark.usefixtures("one_by_one")
def test_the_three_partitions_stand_side_by_side(optfuse: Callable[..., Any], model: Path) -> None:
    outcome = optfuse("compare", model, "--time-limit", 5, "--workers", 1, "--json")
    assert outcome.code == 0, outcome.err
    (record,) = json.loads(outcome.out)
    by_name = {partition["name"]: partition for partition in record["partitions"]}
    assert list(by_name) == ["inductor", "greedy", "cpsat"]
    assert by_name["inductor"]["objective"] > by_name["greedy"]["objective"] >= by_name["cpsat"]["objective"]
    assert by_name["inductor"]["kernels"] > by_name["greedy"]["kernels"] == 2
    assert (record["agreement"], record["pairs_both"], record["unmapped_ops"]) == (0.0, 0, ["exp"])
    assert record["unmapped_reasons"] == {"removed": 1}


@pytest.mark.usefixtures("one_by_one")
def test_the_table_says_what_was_not_mapped(optfuse: Callable[..., Any], model: Path) -> None:
    outcome = optfuse("compare", model, "--time-limit", 5, "--workers", 1)
    assert outcome.code == 0, outcome.err
    rows = [line for line in outcome.out.splitlines() if line.startswith("│")]
    assert [row.split("│")[2].strip() for row in rows] == ["inductor", "greedy", "cpsat"]
    assert "1 ops unmapped (1 removed)" in outcome.out
    assert "greedy agrees on 0.0% of the pairs" in outcome.out


def test_an_unknown_size_is_refused(optfuse: Callable[..., Any], model: Path) -> None:
    assert "size must be one of" in optfuse("compare", model, "--size", "huge").error_line()
    assert "--inductor-limit must be" in optfuse("compare", model, "--inductor-limit", 0).error_line()
    if not torch.cuda.is_available():
        assert "--max-autotune times kernels on a GPU" in optfuse("compare", model, "--max-autotune").error_line()
