"""Programs cut into several graphs, with a stand-in that replays operators at the addresses of their recording."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from optfuse.runtime.clocks import Mark
from optfuse.runtime.graph_choice import Interest
from optfuse.runtime.graphs import GraphedProgram
from optfuse.runtime.program import Program, Value
from optfuse.runtime.recorder import Step, without_collection

HEAD = """
import pytest
import torch
INPUTS = (
    ("weight", "float32", (4,), (1,), "cpu", False),
    ("x", "float32", (4,), (1,), "cpu", False),
    ("count", "float32", (4,), (1,), "cpu", True),
)
CONSTANTS = ()
DEVICE = torch.device("cpu")
CALLS = []

def apart(reason, call, *arguments, **named):
    return call(*arguments, **named)

def on_host(x):
    if CAPTURING[0]:
        raise RuntimeError("operation not permitted when stream is capturing")
    CALLS.append(x.tolist())
    return torch.tensor([max(x.tolist())]), torch.tensor(x.tolist())
CAPTURING = [False]
"""
CUT = """
def call(inputs, constants):
    weight, x, count = inputs
    inputs.clear()
    y = weight * x
    count += 1
    largest, same = apart("{reason}", on_host, y)
    del y
    z = same / largest
    count += z
    apart("{reason}", torch.mul, z, 2.0, out=z)
    largest, _ = apart("{reason}", on_host, z)
    return z + largest, largest, count + 0
"""


class Replaying:
    """Records the operators that run, restores what they wrote, and spoils all that a graph has made."""

    def __init__(self, program: Program, restored: list[torch.Tensor]) -> None:
        self.program, self.restored = program, restored
        self.steps: list[Step] = []
        self.tape: _Tape | None = None

    def table(self, addresses: Sequence[int], device: torch.device) -> torch.Tensor:
        return torch.tensor(addresses, device=device)

    def place(self) -> object:
        return 0

    def mark(self) -> Mark:
        raise AssertionError("these programs are not timed")

    def warm(self, call: Callable[[], list[Value]]) -> list[Value]:
        return call()

    def record(self, call: Callable[[], list[Value]]) -> tuple[list[Step], list[Value]]:
        self.steps, before = [], [x.clone() for x in self.restored]
        self.begin()
        try:
            results = call()
        finally:
            self.end()
            for x, value in zip(self.restored, before, strict=True):
                x.copy_(value)
        return self.steps, results

    def interrupt(self, step: Step) -> None:
        self.end()
        self.steps.append(step)
        self.begin()

    def begin(self) -> None:
        self.tape = _Tape()
        self.tape.__enter__()
        self.program.module.CAPTURING[0] = True

    def end(self) -> None:
        tape, self.tape = self.tape, None
        assert tape is not None
        tape.__exit__(None, None, None)
        self.program.module.CAPTURING[0] = False
        if tape.launches:
            self.steps.append(Step(tape.replay, launches_graph=True))


class _Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.launches = False
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        launches = "empty" not in str(func) and not func.is_view
        self.launches |= launches
        if launches and not func._schema.is_mutable:  # noqa: SLF001 - the schema has no public name
            result.fill_(float("nan"))  # a recording computes nothing
        return result

    def replay(self) -> None:
        for func, args, kwargs, kept in self.calls:
            result = func(*args, **kwargs)
            if isinstance(kept, torch.Tensor) and "empty" not in str(func) and result.data_ptr() != kept.data_ptr():
                kept.copy_(result)


def run(folder: Path, reason: str, calls: int = 6) -> tuple[GraphedProgram, Program]:
    """Compare calls through graphs with plain ones; return what ran."""
    source = HEAD + CUT.replace("{reason}", reason)
    program, plain = Program(source, folder=folder), Program(source + "\n# plain\n", folder=folder)
    weight, count, wanted_count = torch.arange(4.0) + 1, torch.zeros(4), torch.zeros(4)
    graphed = GraphedProgram(program, "auto", Interest(fixed=frozenset({0})), Replaying(program, [count]))
    for k in range(calls):
        x = torch.full((4,), k + 1.0)
        got = graphed.run([weight, x, count])
        wanted = plain.run([weight, x, wanted_count])
        for a, b in zip(got, wanted, strict=True):
            assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))
        assert torch.equal(count, wanted_count)
        del got
    return graphed, program


def test_a_program_is_cut_where_no_graph_can_hold_a_step(tmp_path: Path) -> None:
    graphed, program = run(tmp_path, "it waits")
    statistics = graphed.statistics
    assert (statistics.plain, statistics.replays, statistics.graphs) == (1, 5, 3)
    assert statistics.cuts == ("it waits",)
    assert len(program.module.CALLS) == 2 * 6, "a recording runs no step"


def test_a_step_that_fails_in_a_recording_cuts_it_from_then_on(tmp_path: Path) -> None:
    graphed, program = run(tmp_path, "")
    assert (graphed.statistics.plain, graphed.statistics.replays, graphed.statistics.graphs) == (1, 5, 3)
    (cut,) = graphed.statistics.cuts
    assert cut == "on_host: operation not permitted when stream is capturing"
    assert len(program.module.CALLS) == 2 * 6


def test_results_that_are_held_are_not_overwritten(tmp_path: Path) -> None:
    program = Program(HEAD + CUT.replace("{reason}", "it waits"), folder=tmp_path)
    weight, count = torch.arange(4.0) + 1, torch.zeros(4)
    graphed = GraphedProgram(program, "auto", Interest(fixed=frozenset({0})), Replaying(program, [count]))
    held = [graphed.run([weight, torch.full((4,), k + 1.0), count]) for k in range(5)]
    assert all(torch.as_tensor(results[1]).tolist() == [2.0] for results in held)
    assert [torch.as_tensor(results[2])[3].item() for results in held] == [2.0 * k for k in range(1, 6)]
    assert "in use" in graphed.statistics.reason


def test_a_step_that_returns_a_number_keeps_the_program_plain(tmp_path: Path) -> None:
    source = HEAD + (
        "def call(inputs, constants):\n    weight, x, count = inputs\n    inputs.clear()\n"
        "    return (x * apart('a number', torch.Tensor.item, weight[1]),)\n"
    )
    program = Program(source, folder=tmp_path)
    graphed = GraphedProgram(program, "auto", Interest(), Replaying(program, []))
    for k in range(3):
        (got,) = graphed.run([torch.full((4,), float(k)), torch.ones(4), torch.zeros(4)])
        assert torch.equal(torch.as_tensor(got), torch.full((4,), float(k)))
    assert graphed.statistics.replays == 0
    assert "returns float" in graphed.statistics.reason


def test_where_all_runs_outside_there_is_no_graph(tmp_path: Path) -> None:
    source = HEAD + (
        "def call(inputs, constants):\n    weight, x, count = inputs\n    inputs.clear()\n"
        "    return apart('it waits', on_host, x)\n"
    )
    program = Program(source, folder=tmp_path)
    graphed = GraphedProgram(program, "auto", Interest(), Replaying(program, []))
    count = torch.zeros(4)
    for k in range(3):
        got = graphed.run([torch.ones(4), torch.full((4,), float(k)), count])
        assert torch.as_tensor(got[0]).tolist() == [float(k)]
    assert graphed.statistics.replays == 0
    assert "long enough" in graphed.statistics.reason


@pytest.mark.parametrize("was_on", [True, False])
def test_nothing_is_collected_in_a_capture(was_on: bool) -> None:
    """An object in a cycle that holds something of the device's must not end there; afterwards all is as it was."""
    (gc.enable if was_on else gc.disable)()
    try:
        with without_collection():
            assert not gc.isenabled()
        assert gc.isenabled() == was_on
    finally:
        gc.enable()
