"""Programs through graphs, with a stand-in for the GPU's: copies, results that may not be overwritten, fallbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from optfuse.errors import InvalidOptionError
from optfuse.runtime.graphs import (
    PATIENCE,
    GraphedProgram,
    Interest,
    checked_choice,
    choice_under,
)
from optfuse.runtime.pace import TIMED, Pace
from optfuse.runtime.program import Arena, Program, Value
from optfuse.runtime.recorder import Step

SOURCE = """
import torch
INPUTS = (
    ("weight", "float32", ({n},), (1,), "cpu", False),
    ("x", "float32", ({n},), (1,), "cpu", False),
    ("count", "float32", (2,), (1,), "cpu", True),
)
CONSTANTS = ()
DEVICE = torch.device("cpu")

def scratch(size, device):
    return torch.empty(size, dtype=torch.uint8, device=device)

def call(inputs, constants):
    weight, x, count = inputs
    inputs.clear()
    arena = scratch({n} * 4, x.device).view(torch.float32)
    torch.mul(weight, x, out=arena)
    count += 1
    return arena + 1, weight[1:3], x.view(-1), 7, arena * 2
"""

SMALL, LARGE = 8, 1 << 19


class Tape:
    """Replays by running again and copying into the recorded results; recording itself changes nothing."""

    def __init__(self) -> None:
        self.inputs: Sequence[torch.Tensor] = ()
        self.here: object = 0
        self.reached = True

    def mark(self) -> Callable[[], bool]:
        return lambda: self.reached

    def interrupt(self, step: Step) -> None:
        raise AssertionError("these programs have no cuts")

    def table(self, addresses: Sequence[int], device: torch.device) -> torch.Tensor:
        return torch.tensor(addresses, device=device)

    def place(self) -> object:
        return self.here

    def warm(self, call: Callable[[], list[Value]]) -> list[Value]:
        return call()

    def record(self, call: Callable[[], list[Value]]) -> tuple[list[Step], list[Value]]:
        before = [x.clone() for x in self.inputs]
        results = call()
        for x, value in zip(self.inputs, before, strict=True):
            x.copy_(value)
        memory = [(x.data_ptr(), x.numel()) for x in results if isinstance(x, torch.Tensor)]
        assert memory
        # without a reference to the results: the memory's users are counted
        targets = [x.detach().numpy() if isinstance(x, torch.Tensor) else None for x in results]

        def replay() -> None:
            for target, value in zip(targets, call(), strict=True):
                if target is not None and isinstance(value, torch.Tensor):
                    target[...] = value.numpy()

        return [Step(replay, launches_graph=True)], results


class Case:
    """A program of three inputs with its graphs."""

    def __init__(
        self, folder: Path, n: int = SMALL, choice: Any = "auto", *, source: str = SOURCE, **interest: Any
    ) -> None:
        self.tape = Tape()
        self.program = Program(source.replace("{n}", str(n)), folder=folder)
        self.weight, self.count, self.n = torch.arange(float(n)), torch.zeros(2), n
        self.arena = Arena()
        self.graphed = GraphedProgram(
            self.program, choice, Interest(fixed=frozenset({0}), **interest), self.tape, self.arena
        )

    def __call__(self, x: torch.Tensor) -> list[Value]:
        self.tape.inputs = (self.count,)
        return self.graphed.run([self.weight, x, self.count])

    def check(self, results: list[Value], x: torch.Tensor) -> None:
        product = self.weight * x
        for got, wanted in zip(results, (product + 1, self.weight[1:3], x, 7, product * 2), strict=True):
            assert torch.equal(torch.as_tensor(got), torch.as_tensor(wanted))

    def fresh(self, k: int) -> torch.Tensor:
        return torch.full((self.n,), float(k))


def test_replays_compute_what_calls_do(tmp_path: Path) -> None:
    case = Case(tmp_path)
    for k in range(6):
        x = case.fresh(k)
        case.check(case(x), x)
    assert case.count.tolist() == [6, 6]
    assert case.graphed.statistics.replays == 5


HANDED_ON = """
import torch
INPUTS = (
    ("first", "float32", (4,), (1,), "cpu", False),
    ("second", "float32", (4,), (1,), "cpu", False),
    ("x", "float32", (4,), (1,), "cpu", False),
)
CONSTANTS = ()
DEVICE = torch.device("cpu")

def call(inputs, constants):
    first, second, x = inputs
    inputs.clear()
    return first, second, second.as_strided((2,), (1,), second.storage_offset() + 1), x * second
"""


def test_inputs_of_one_storage_are_handed_on_as_themselves(tmp_path: Path) -> None:
    """Parameters may be windows of one tensor, as those of torch's own LSTM are on a GPU."""
    weights = torch.arange(8.0)
    first, second = weights[:4], weights[4:]
    interest = Interest(visible=frozenset({3}), fixed=frozenset({0, 1}), training=True)
    graphed = GraphedProgram(Program(HANDED_ON, folder=tmp_path), "auto", interest, Tape())
    for k in range(3):
        x = torch.full((4,), float(k))
        results = graphed.run([first, second, x])
        for got, wanted in zip(results, (first, second, second[1:3], x * second), strict=True):
            assert torch.equal(torch.as_tensor(got), wanted)
        assert torch.as_tensor(results[1]).data_ptr() == second.data_ptr()
    assert graphed.statistics.replays == 2


EXPANDED = """
import torch
INPUTS = (("mask", "float32", (3, 4), (0, 1), "cpu", False),)
CONSTANTS = ()
DEVICE = torch.device("cpu")

def call(inputs, constants):
    (mask,) = inputs
    inputs.clear()
    return mask * 2, (mask[0] + 1).expand(3, 4)
"""


def test_expanded_inputs_and_results_are_copied_once(tmp_path: Path) -> None:
    interest = Interest(visible=frozenset({1}), training=True)
    graphed = GraphedProgram(Program(EXPANDED, folder=tmp_path), "auto", interest, Tape())
    for k in range(4):
        mask = torch.full((4,), float(k)).expand(3, 4)
        double, more = graphed.run([mask])
        assert torch.equal(torch.as_tensor(double), mask * 2)
        assert torch.equal(torch.as_tensor(more), mask + 1)
        del double, more  # results that are held are not overwritten
    assert graphed.statistics.replays == 3


def test_results_that_are_held_are_not_overwritten(tmp_path: Path) -> None:
    case = Case(tmp_path)
    inputs = [case.fresh(k) for k in range(7)]
    held = [case(x) for x in inputs]
    for results, x in zip(held, inputs, strict=True):
        case.check(results, x)
    assert case.graphed.statistics.replays == 2, "two recordings, and then plain calls"
    assert "in use" in case.graphed.statistics.reason


def test_a_view_holds_a_result_too(tmp_path: Path) -> None:
    case = Case(tmp_path)
    views, wanted = [], []
    for k in range(5):
        x = case.fresh(k)
        views.append(torch.as_tensor(case(x)[0])[2:4])
        wanted.append(case.weight[2:4] * x[2:4] + 1)
    assert all(map(torch.equal, views, wanted))


def test_two_recordings_take_turns_while_results_are_rebound(tmp_path: Path) -> None:
    case = Case(tmp_path)
    results = None
    for k in range(9):
        x = case.fresh(k)
        results = case(x)
        case.check(results, x)
    assert case.graphed.statistics.recordings == 2
    assert case.graphed.statistics.replays == 8


def test_true_leaves_results_valid_until_the_next_call(tmp_path: Path) -> None:
    case = Case(tmp_path, choice=True)
    held = [case(case.fresh(k)) for k in range(4)]
    assert case.graphed.statistics.replays == 3
    assert case.graphed.statistics.recordings == 1
    assert torch.equal(torch.as_tensor(held[1][0]), torch.as_tensor(held[3][0]))


def test_a_parameter_that_moves_is_followed(tmp_path: Path) -> None:
    case = Case(tmp_path)
    for k in range(4):
        case.check(case(x := case.fresh(k)), x)
    case.weight = case.weight.clone() + 1
    for k in range(PATIENCE + 3):
        case.check(case(x := case.fresh(k)), x)
    assert case.graphed.statistics.recordings == 2
    assert case.graphed.statistics.plain == 1 + PATIENCE


def test_a_buffer_that_moves_at_every_call_is_copied(tmp_path: Path) -> None:
    case = Case(tmp_path)
    kept = []
    for k in range(PATIENCE + 6):
        kept.append(case.weight)
        case.weight = case.weight.clone() + 1
        case.check(case(x := case.fresh(k)), x)
    assert case.graphed.statistics.recordings == 2
    assert case.graphed.statistics.copied == ("weight", "x")
    assert case.graphed.statistics.reason == "input weight has moved"
    assert case.graphed.statistics.plain == 1 + PATIENCE


def test_a_large_input_that_stays_is_not_copied(tmp_path: Path) -> None:
    case = Case(tmp_path, LARGE)
    x = case.fresh(3)
    for k in range(5):
        x.fill_(float(k))
        case.check(case(x), x)
    assert case.graphed.statistics.replays == 4
    assert not case.graphed.statistics.copied
    kept = [case.fresh(k) for k in range(PATIENCE + 4)]
    for y in kept:  # it comes from elsewhere each time: copied from then on
        case.check(case(y), y)
    assert case.graphed.statistics.copied == ("x",)


def test_saved_values_guard_a_forward_graph_and_the_rest_is_the_callers(tmp_path: Path) -> None:
    case = Case(tmp_path, training=True, visible=frozenset({0, 1, 2, 3}))
    case(case.fresh(0))
    seen = [case(case.fresh(k))[0] for k in range(1, 4)]
    assert [float(torch.as_tensor(x)[1]) for x in seen] == [2, 3, 4], "what the caller sees is a copy"
    assert case.graphed.statistics.replays == 3
    saved = [case(case.fresh(k))[4] for k in range(1, 4)]
    assert [float(torch.as_tensor(x)[1]) for x in saved] == [2, 4, 6]
    assert case.graphed.statistics.replays == 4, "the second and third call run while the first one's values are held"
    del saved
    case(case.fresh(0))
    assert case.graphed.statistics.replays == 5


def test_another_stream_runs_plainly(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case(case.fresh(0))
    case.tape.here = 1
    x = case.fresh(5)
    case.check(case(x), x)
    assert case.graphed.statistics.replays == 0


def test_what_cannot_be_recorded_runs_plainly(tmp_path: Path) -> None:
    case = Case(tmp_path)

    def refuse(call: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    case.tape.record = refuse  # type: ignore[method-assign]
    for k in range(3):
        x = case.fresh(k)
        case.check(case(x), x)
    assert "not permitted" in case.graphed.statistics.reason
    assert case.count.tolist() == [3, 3]


def test_numbers_drawn_on_the_host_are_not_recorded(tmp_path: Path) -> None:
    case = Case(tmp_path, source=SOURCE + "\nDRAWS_ON_HOST = True\n")
    for k in range(3):
        case.check(case(x := case.fresh(k)), x)
    assert case.graphed.statistics.replays == 0
    assert "on the host" in case.graphed.statistics.reason


def test_an_arena_is_as_large_as_its_largest_user() -> None:
    arena, device = Arena(), torch.device("cpu")
    assert arena.probe(100, device).numel() == 100
    first, second = arena.take(40, device), arena.take(100, device)
    assert first.data_ptr() == second.data_ptr()
    third = arena.take(200, device)
    assert third.data_ptr() != first.data_ptr()
    assert arena.take(50, device).data_ptr() == first.data_ptr()


@pytest.mark.parametrize("value", ["yes", 1, None, 0])
def test_other_choices_are_refused(value: object) -> None:
    with pytest.raises(InvalidOptionError, match="cudagraphs"):
        checked_choice(value)


def test_threads_take_turns(tmp_path: Path) -> None:
    case = Case(tmp_path)
    inputs = [case.fresh(k) for k in range(40)]
    case.tape.inputs = (case.count,)
    with ThreadPoolExecutor(4) as pool:
        held = list(pool.map(lambda x: case(x), inputs))
    for results, x in zip(held, inputs, strict=True):
        case.check(results, x)
    assert case.count.tolist() == [40, 40]


def paced(folder: Path, gpu_us: list[float], *, reached: bool = True) -> tuple[Pace, list[GraphedProgram]]:
    """Programs that run one after the other, with what the GPU is predicted to take for each."""
    pace, found, tape = Pace(), [], Tape()
    tape.reached = reached
    for us in gpu_us:
        program = Program(SOURCE.replace("{n}", "4"), folder=folder)
        number = pace.add(us)
        found.append(GraphedProgram(program, "auto", Interest(fixed=frozenset({0})), tape, pace=pace, number=number))
    return pace, found


@pytest.mark.parametrize(
    ("gpu_us", "reached", "replays"), [([1.0, 1.0], True, 4), ([1.0, 1e9], True, 0), ([1.0, 1.0], False, 0)]
)
def test_a_graph_is_recorded_where_the_host_would_be_late(
    tmp_path: Path, gpu_us: list[float], reached: bool, replays: int
) -> None:
    """The programs decide together, after the first call and those that are timed; a GPU that is behind needs none."""
    pace, programs = paced(tmp_path, gpu_us, reached=reached)
    weight, count = torch.arange(4.0), torch.zeros(2)
    for k in range(TIMED + 5):
        for one in programs:
            one.run([weight, torch.full((4,), float(k)), count])
    assert [one.statistics.replays for one in programs] == [replays, replays]
    assert all(one.statistics.plain == TIMED + 5 - replays for one in programs)
    assert [len(times) for times in pace.host] == [TIMED, TIMED]
    if not replays:
        assert "a graph would save no time: the host takes" in programs[0].statistics.reason
        assert programs[0].statistics.reason.endswith("the GPU runs dry" if reached else "the GPU is behind")


def test_under_a_cap_there_are_graphs_only_where_they_are_asked_for() -> None:
    assert [choice_under(None, choice) for choice in ("auto", True, False)] == ["auto", True, False]
    assert [choice_under(1 << 30, choice) for choice in ("auto", True, False)] == [False, True, False]
