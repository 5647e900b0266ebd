"""Two processes that vote on a CUDA graph, with a stand-in for the GPU's: both replay the same calls, or none."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as processes
from torch import distributed

from optfuse.runtime.clocks import Mark
from optfuse.runtime.graph_agreement import EVERY
from optfuse.runtime.graphs import GraphedProgram
from optfuse.runtime.program import Program, Value
from optfuse.runtime.recorder import Step
from optfuse.runtime.runner import runner
from tests.runtime.test_graph_agreement import Met
from tests.runtime.test_graphs import Tape

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="torch without torch.distributed")

SOURCE = """
import torch
INPUTS = (("weight", "float32", (8,), (1,), "cpu", False), ("x", "float32", (8,), (1,), "cpu", False))
CONSTANTS = ()
DEVICE = torch.device("cpu")
HAS_COLLECTIVES = True
COLLECTIVES = (("0", "_c10d_functional.all_reduce.default", "float32", (8,)),)
CAPTURING = False

def call(inputs, constants):
    weight, x = inputs
    inputs.clear()
    y = weight * x
    if not CAPTURING:
        torch.distributed.all_reduce(y)
    return (y + 1,)
"""


class Capturing(Tape):
    """A stand-in whose recordings send nothing."""

    def __init__(self, module: Any, fails: bool) -> None:
        super().__init__()
        self.module, self.fails, self.steps = module, fails, list[Step]()

    def mark(self) -> Mark:
        return Met([], 0)

    def record(self, call: Callable[[], list[Value]]) -> tuple[list[Step], list[Value]]:
        if self.fails:
            raise RuntimeError("out of memory")
        self.module.CAPTURING = True
        try:
            self.steps, results = super().record(call)
        finally:
            self.module.CAPTURING = False
        return self.steps, results


def replays(folder: str, scenario: str, rank: int) -> dict[str, Any]:
    """Which calls of a program are replayed, whose results are compared."""
    if scenario == "refuses" and rank == 1:
        os.environ["NCCL_GRAPH_REGISTER"] = "1"
    program = Program(SOURCE + f"# {scenario}\n", folder=Path(folder) / str(rank))
    graphed = getattr(runner(program, "auto"), "__self__", None)
    assert isinstance(graphed, GraphedProgram)
    graphed.recorder = Capturing(program.module, scenario == "fails" and rank == 1)
    weight, found = torch.arange(8.0), list[int]()
    for k in range(24):
        mine, theirs = (torch.full((8,), k + 10.0 * r) for r in (rank, 1 - rank))
        before = graphed.statistics.replays
        if scenario == "late" and rank == 1 and k < EVERY + 1:
            result = weight * mine
            distributed.all_reduce(result)
            result += 1
        else:
            (result,) = graphed.run([weight, mine])  # type: ignore[assignment]
        assert torch.equal(result, weight * (mine + theirs) + 1)
        del result
        found += [k] * (graphed.statistics.replays - before)
    os.environ["NCCL_GRAPH_REGISTER"] = "0"
    return {"replayed": found, "reason": graphed.statistics.reason, "recordings": graphed.statistics.recordings}


SCENARIOS = ("agrees", "refuses", "fails", "late")


def work(rank: int, folder: str) -> dict[str, Any]:
    group = f"file://{folder}/group"
    distributed.init_process_group("gloo", init_method=group, rank=rank, world_size=2, timeout=timedelta(seconds=120))
    try:
        return {scenario: replays(folder, scenario, rank) for scenario in SCENARIOS}
    finally:
        distributed.destroy_process_group()


def second(folder: str) -> None:
    (Path(folder) / "1.json").write_text(json.dumps(work(1, folder)))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What this process finds, and another one."""
    folder = tmp_path_factory.mktemp("agreement")
    other = processes.get_context("spawn").Process(target=second, args=(str(folder),))
    other.start()
    mine = work(0, str(folder))
    other.join()
    return [mine, json.loads((folder / "1.json").read_text())]


@pytest.mark.slow
def test_two_processes_replay_the_same_calls(found: list[dict[str, Any]]) -> None:
    first, second = (one["agrees"] for one in found)
    assert first == second
    assert first["replayed"] == list(range(4 * EVERY - 1, 24))
    assert first["recordings"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "recordings", "reason"),
    [
        ("refuses", [0, 0], "NCCL_GRAPH_REGISTER is on"),
        ("fails", [1, 0], "cannot be recorded: out of memory"),
        ("late", [0, 1], "not all ranks have a graph yet"),
    ],
)
def test_two_processes_of_which_one_has_no_graph_run_plainly(
    found: list[dict[str, Any]], scenario: str, recordings: list[int], reason: str
) -> None:
    assert [one[scenario]["replayed"] for one in found] == [[], []]
    assert [one[scenario]["recordings"] for one in found] == recordings
    assert all(reason in one[scenario]["reason"] for one in found)


def test_graphs_that_were_agreed_on_are_released_before_the_process_group_ends(tmp_path: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    program = Program(SOURCE + "# ends\n", folder=tmp_path)
    graphed = getattr(runner(program, "auto"), "__self__", None)
    assert isinstance(graphed, GraphedProgram)
    assert graphed.agreement is not None
    graphed.recorder = recorder = Capturing(program.module, fails=False)
    for _ in range(6 * EVERY):
        graphed.run([torch.ones(8), torch.ones(8)])
    assert graphed.statistics.replays
    assert recorder.steps
    distributed.destroy_process_group()
    assert not recorder.steps, "NCCL would wait for them"
    assert graphed.agreement.state == "plain"
    assert graphed.statistics.reason == graphed.agreement.reason == "a process group has ended"
