"""Programs through graphs, with a stand-in for the GPU's: copies, results that may not be overwritten, fallbacks."""

from __future__ import annotations

import ctypes
import inspect
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from optfuse.errors import InvalidOptionError
from optfuse.runtime.arena import Arena, Block, Results
from optfuse.runtime.bindings import HELD_OFTEN, PATIENCE
from optfuse.runtime.clocks import Clock, Mark
from optfuse.runtime.graph_budget import GraphBudget
from optfuse.runtime.graph_choice import Interest, checked_choice, choice_under
from optfuse.runtime.graphs import GraphedProgram, GraphStatistics
from optfuse.runtime.pace import Pace
from optfuse.runtime.program import Program, Value
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

#: Elements of inputs that are copied, and of such that are watched; bytes of the largest that is copied.
SMALL, LARGE, COPIED = 8, 1 << 14, 1 << 15


class Tape:
    """Replays by running again and copying into the recorded results; recording itself changes nothing."""

    def __init__(self) -> None:
        self.inputs: Sequence[torch.Tensor] = ()
        self.here: object = 0
        self.marks = 0
        self.roomy = True

    def has_room(self) -> bool:
        return self.roomy

    def mark(self) -> Mark:
        raise AssertionError("these programs are not timed")

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
            self.program, choice, Interest(fixed=frozenset({0}), **interest), self.tape, self.arena, small=COPIED
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
        assert all(map(torch.equal, map(torch.as_tensor, results), (first, second, second[1:3], x * second)))
        assert torch.as_tensor(results[1]).data_ptr() == second.data_ptr()
        del results  # results that are held are not overwritten
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


def test_recordings_that_take_turns_read_the_same_inputs_in_place(tmp_path: Path) -> None:
    case, other = Case(tmp_path), Case(tmp_path)
    case(case.fresh(0))
    x = case.fresh(1)
    held = case(x)  # recorded, with x copied
    x = case.fresh(2)
    case.arena.results.recorded[other] = frozenset({x.data_ptr()})  # as if another program's recording had made it
    case.check(case(x), x)  # recorded once more, since results are held
    for k in range(3, 6):
        x = case.fresh(k)
        case.check(case(x), x)
    assert case.graphed.statistics.recordings == 2
    assert len(held) == 5


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


def test_results_of_a_training_step_that_are_often_held_are_copied_from_then_on(tmp_path: Path) -> None:
    case = Case(tmp_path, training=True, visible=frozenset({0, 1, 2, 3}))
    case(case.fresh(0))
    seen = [case(case.fresh(k))[0] for k in range(1, 9)]
    assert [float(torch.as_tensor(x)[1]) for x in seen] == [2, 3, 4, 5, 6, 7, 8, 9]
    assert (case.graphed.statistics.replays, case.graphed.statistics.recordings) == (1 + 8 - 1 - PATIENCE, 2)


def test_a_result_that_is_rebound_is_copied_without_another_recording(tmp_path: Path) -> None:
    case = Case(tmp_path, training=True, visible=frozenset({0, 1, 2, 3}))
    case(case.fresh(0))
    result: Any = None
    for k in range(9):
        result = torch.as_tensor(case(case.fresh(k))[0])
        assert float(result[1]) == k + 1
    # held at the second call, gone at the third, held at the fourth, and copied from then on
    assert (case.graphed.statistics.replays, case.graphed.statistics.recordings) == (9 - HELD_OFTEN, 1)


def test_results_of_a_training_step_that_are_let_go_stay_where_they_lie(tmp_path: Path) -> None:
    case = Case(tmp_path, training=True, visible=frozenset({0, 1, 2, 3}))
    places = {torch.as_tensor(case(case.fresh(k))[0]).data_ptr() for k in range(6)}
    assert (case.graphed.statistics.replays, len(places)) == (5, 2), "the first call is plain"


def test_saved_values_guard_a_forward_graph(tmp_path: Path) -> None:
    case = Case(tmp_path, training=True, visible=frozenset({0, 1, 2, 3}))
    case(case.fresh(0))
    saved = [case(case.fresh(k))[4] for k in range(1, 4)]
    assert [float(torch.as_tensor(x)[1]) for x in saved] == [2, 4, 6]
    assert case.graphed.statistics.replays == 1, "the second and third call run while the first one's values are held"
    del saved
    case(case.fresh(0))
    assert case.graphed.statistics.replays == 2


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
    arena, device, held = Arena(), torch.device("cpu"), list[Block]()
    assert arena.probe(100, device).numel() == 100
    first, second = (arena.take(size, device, "here", held) for size in (40, 100))
    assert first.data_ptr() == second.data_ptr()
    third = arena.take(200, device, "here", held)
    assert third.data_ptr() != first.data_ptr()
    assert arena.take(50, device, "here", held).data_ptr() == first.data_ptr()


def test_recordings_of_other_programs_share_temporaries_where_replays_follow_each_other() -> None:
    device, held, other = torch.device("cpu"), list[Block](), list[Block]()
    first = Arena().take(100, device, "one stream", held).data_ptr()
    assert Arena().take(80, device, "one stream", other).data_ptr() == first
    assert Arena().take(80, device, "another stream", other).data_ptr() != first
    freed = weakref.ref(held.pop())
    assert freed() is not None  # the other's recording refers to it
    other.clear()
    assert freed() is None


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


class Done:
    """A mark of a device that the host keeps waiting, or that does not notice the host's time."""

    def __init__(self, clock: Clock, us: float) -> None:
        self.clock, self.us = clock, us

    def reached(self) -> bool:
        return True

    def wait(self) -> None:
        raise AssertionError("nothing here waits for the device")

    def us_since(self, earlier: Mark) -> float | None:
        assert isinstance(earlier, Done)
        return self.us - earlier.us


def paced(folder: Path, *, is_behind: bool = False) -> tuple[Pace, list[GraphedProgram]]:
    """Two programs that run one after the other, and a device that waits for the host, or has work of its own."""
    pace, found, tape = Pace(), [], Tape()
    started = pace.clock.now()

    def mark() -> Mark:
        tape.marks += 1
        return Done(pace.clock, 1e6 * tape.marks if is_behind else pace.clock.now() - started)

    tape.mark = mark  # type: ignore[method-assign]
    for _ in range(2):
        program = Program(SOURCE.replace("{n}", "4"), folder=folder)
        found.append(
            GraphedProgram(program, "auto", Interest(fixed=frozenset({0})), tape, pace=pace, number=pace.add(1.0))
        )
    return pace, found


def test_a_device_with_work_of_its_own_gets_no_graph(tmp_path: Path) -> None:
    pace, programs = paced(tmp_path, is_behind=True)
    weight, count = torch.arange(4.0), torch.zeros(2)
    for k in range(16):
        for one in programs:
            one.run([weight, torch.full((4,), float(k)), count])
    assert [(one.statistics.replays, one.statistics.plain) for one in programs] == [(0, 16), (0, 16)]
    assert "a graph would save no time: the host takes" in programs[0].statistics.reason
    assert programs[0].statistics.reason == pace.reason(0)


@pytest.mark.parametrize("gains", [True, False])
def test_graphs_on_trial_stay_or_go(tmp_path: Path, gains: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs try graphs together; where the step is no shorter, the recordings go."""
    _, programs = paced(tmp_path)
    verdicts = iter(["open", "open", "trial", "trial", "trial", "trial"] + 8 * ["graphs" if gains else "plain"])
    monkeypatch.setattr(Pace, "enter", lambda *_: next(verdicts))
    weight, count = torch.arange(4.0), torch.zeros(2)
    for one in programs:
        assert isinstance(one.recorder, Tape)
        one.recorder.inputs = (count,)
    for k in range(6):
        for one in programs:
            one.run([weight, torch.full((4,), float(k)), count])
    assert [one.statistics.replays for one in programs] == [4 if gains else 2] * 2
    assert count.tolist() == [12, 12]


@pytest.mark.parametrize("has_room", [True, False])
def test_steps_without_graphs_are_timed_again_where_memory_is_left_for_them(
    tmp_path: Path, has_room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, programs = paced(tmp_path)
    verdicts = iter(4 * ["trial"] + 4 * ["recheck"] + 2 * ["graphs"])
    monkeypatch.setattr(Pace, "enter", lambda *_: next(verdicts))
    weight, count = torch.arange(4.0), torch.zeros(2)
    for one in programs:
        assert isinstance(one.recorder, Tape)
        one.recorder.inputs, one.recorder.roomy = (count,), has_room
    for k in range(6):
        for one in programs:
            one.run([weight, torch.full((4,), float(k)), count])
    assert [one.statistics.replays for one in programs] == [3 if has_room else 5] * 2
    assert count.tolist() == [12, 12]


def test_programs_that_gained_nothing_are_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, programs = paced(tmp_path)
    verdicts = iter(6 * ["trial"] + 2 * ["plain"] + 100 * ["graphs"])
    monkeypatch.setattr(Pace, "enter", lambda *_: next(verdicts))
    asked = iter(3 * [False, False] + 2 * [True] + 100 * [False])
    monkeypatch.setattr(Pace, "asks_again", lambda *_: next(asked))
    weight, count = torch.arange(4.0), torch.zeros(2)
    for one in programs:
        assert isinstance(one.recorder, Tape)
        one.recorder.inputs = (count,)
    for k in range(12):
        for one in programs:
            one.run([weight, torch.full((4,), float(k)), count])
    # one call to compile, three on trial, one that ends the trial and three more, and four with the new recording
    assert [(one.statistics.replays, one.statistics.plain) for one in programs] == [(3 + 4, 1 + 1 + 3)] * 2
    assert [one.statistics.recordings for one in programs] == [2, 2]
    assert count.tolist() == [24, 24]


def test_under_a_cap_there_are_graphs_only_where_they_are_asked_for() -> None:
    assert [choice_under(None, choice) for choice in ("auto", True, False)] == ["auto", True, False]
    assert [choice_under(1 << 30, choice) for choice in ("auto", True, False)] == [False, True, False]


FORWARD = """
import torch
INPUTS = (("weight", "float32", ({n},), (1,), "cpu", False), ("x", "float32", ({n},), (1,), "cpu", False))
CONSTANTS = ()
DEVICE = torch.device("cpu")

def call(inputs, constants):
    weight, x = inputs
    inputs.clear()
    return weight * x, x * 2, (x * 3)[:4].clone()
"""
BACKWARD = """
import torch
INPUTS = (
    ("large", "float32", ({n},), (1,), "cpu", False),
    ("small", "float32", (4,), (1,), "cpu", False),
    ("tangent", "float32", ({n},), (1,), "cpu", False),
)
CONSTANTS = ()
DEVICE = torch.device("cpu")

def call(inputs, constants):
    large, small, tangent = inputs
    inputs.clear()
    return (large * tangent + small.sum(),)
"""


class Outside(Tape):
    """Holds no reference to what it reads, as a CUDA graph holds none."""

    def record(self, call: Callable[[], list[Value]]) -> tuple[list[Step], list[Value]]:
        fed = inspect.getclosurevars(call).nonlocals["fed"]
        memory = [(ctypes.c_byte * x.nbytes).from_address(x.data_ptr()) for x in fed]
        fed[:] = [torch.frombuffer(m, dtype=x.dtype).view(x.shape) for m, x in zip(memory, fed, strict=True)]
        return super().record(call)


def test_a_backward_graph_comes_after_its_forward_and_reads_what_that_saved_where_it_lies(tmp_path: Path) -> None:
    arena = Arena()
    forward = GraphedProgram(
        Program(FORWARD.replace("{n}", str(LARGE)), folder=tmp_path),
        "auto",
        Interest(frozenset({0}), frozenset({0}), training=True),
        Outside(),
        arena,
        small=COPIED,
    )
    backward = GraphedProgram(
        Program(BACKWARD.replace("{n}", str(LARGE)), folder=tmp_path),
        "auto",
        Interest(training=True),
        Outside(),
        arena,
        small=COPIED,
    )
    weight, tangent = torch.ones(LARGE), torch.ones(LARGE)
    kept: list[Any] = []
    for k in range(PATIENCE + 4):
        x = torch.full((LARGE,), float(k))
        kept.append(x)  # elsewhere at each call: the forward graph waits for a while
        saved = forward.run([weight, x])[1:]
        (gradient,) = backward.run([*map(torch.as_tensor, saved), tangent])
        assert torch.equal(torch.as_tensor(gradient), torch.full((LARGE,), 2.0 * k + 12 * k))
        assert forward.statistics.replays >= backward.statistics.replays
        del saved, gradient
    assert (forward.statistics.recordings, backward.statistics.recordings) == (1, 1)
    assert backward.statistics.replays == forward.statistics.replays == 3
    assert not backward.statistics.copied


class Communicator:
    """What NCCL's is: it does not end while a graph holds it."""

    def __init__(self) -> None:
        self.graphs: weakref.WeakSet[Any] = weakref.WeakSet()


class Launch:
    """A graph's launch, which holds a communicator."""

    def __init__(self, replay: Callable[[], None], communicator: Communicator) -> None:
        self.replay = replay
        communicator.graphs.add(self)

    def __call__(self) -> None:
        self.replay()


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Communicator]:
    """A process group of one whose end, as NCCL's, needs all graphs to have ended; this one does not wait for ever."""
    distributed, communicator = pytest.importorskip("torch.distributed"), Communicator()
    for name in ("shutdown", "abort"):
        monkeypatch.setattr(
            distributed.ProcessGroup, name, _ends(communicator, getattr(distributed.ProcessGroup, name))
        )
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    yield communicator
    if distributed.is_initialized():
        communicator.graphs.clear()
        distributed.destroy_process_group()


def _ends(communicator: Communicator, end: Callable[..., None]) -> Callable[..., None]:
    def method(*arguments: Any) -> None:
        assert not communicator.graphs, "a communicator that a graph holds never ends"
        end(*arguments)

    return method


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
@pytest.mark.parametrize("collectives", [True, False])
def test_a_process_group_ends_although_graphs_held_it(tmp_path: Path, group: Communicator, collectives: bool) -> None:
    case = Case(tmp_path, choice=True, source=SOURCE + f"\nHAS_COLLECTIVES = {collectives}\n")
    record = case.tape.record

    def holding(call: Callable[[], list[Value]]) -> tuple[list[Step], list[Value]]:
        (step,), results = record(call)
        return [Step(Launch(step.run, group), launches_graph=True)], results

    case.tape.record = holding  # type: ignore[method-assign]
    results = case(case.fresh(0))
    for k in range(1, 4):
        case.check(results := case(case.fresh(k)), case.fresh(k))
    assert group.graphs
    torch.distributed.destroy_process_group()
    case.check(results, case.fresh(3))
    for k in range(4):
        case.check(case(case.fresh(k)), case.fresh(k))
    assert case.count.tolist() == [8, 8]
    if collectives:
        assert (case.graphed.statistics.replays, case.graphed.statistics.plain) == (3, 5)
        assert case.graphed.statistics.reason == "a process group has ended"
    else:
        assert case.graphed.statistics.replays == 7, "it needs no other process: it is recorded again"
        group.graphs.clear()


@pytest.mark.parametrize(
    ("choice", "fact", "reason"),
    [
        ("auto", "HAS_COLLECTIVES", "no way to agree"),
        ("auto", "IS_PART_OF_COLLECTIVE", "begins or ends in another graph"),
        (True, "IS_PART_OF_COLLECTIVE", "begins or ends in another graph"),
    ],
)
def test_collectives_that_are_in_no_graph(tmp_path: Path, choice: Any, fact: str, reason: str) -> None:
    case = Case(tmp_path, choice=choice, source=SOURCE + f"\n{fact} = True\n")
    for k in range(3):
        case.check(case(case.fresh(k)), case.fresh(k))
    assert case.graphed.statistics.replays == 0
    assert reason in case.graphed.statistics.reason


LAYER = """
import torch
INPUTS = (
    ("weight", "float32", ({n},), (1,), "cpu", False),
    ("bias", "float32", ({n},), (1,), "cpu", False),
    ("shared", "float32", ({n},), (1,), "cpu", False),
    ("x", "float32", ({n},), (1,), "cpu", False),
)
CONSTANTS = ()
DEVICE = torch.device("cpu")

def call(inputs, constants):
    weight, bias, shared, x = inputs
    inputs.clear()
    y = weight * x + bias
    return y * shared, y
"""


class Layers:
    """A model of layers that are alike: each calls one program with its own parameters, and all share a buffer."""

    def __init__(self, folder: Path, count: int, training: bool = False, n: int = SMALL) -> None:
        self.n, self.shared = n, torch.ones(n)
        self.parameters = [self.made(k) for k in range(count)]
        interest = Interest(frozenset({0}), frozenset({0, 1, 2}), training)
        program = Program(LAYER.replace("{n}", str(n)), folder=folder)
        self.graphed = GraphedProgram(program, "auto", interest, Outside(), Arena(), small=COPIED)

    def made(self, k: int) -> list[torch.Tensor]:
        return [torch.full((self.n,), 1.0 + k), torch.full((self.n,), float(k))]

    def step(self, x: torch.Tensor) -> None:
        """One forward pass, its result checked; what it saves is held until the end, as for a backward pass."""
        saved, wanted = [], float(x[0])
        for k, parameters in enumerate(self.parameters):
            for parameter, value in zip(parameters, (1.0 + k, float(k)), strict=True):
                parameter.fill_(value)  # they may lie where another layer's do
            x, *more = self.graphed.run([*parameters, self.shared, x])  # type: ignore[list-item]
            wanted = (1.0 + k) * wanted + k
            assert torch.equal(x, torch.full((self.n,), wanted))
            saved += [x, *more]


@pytest.mark.parametrize("training", [False, True])
def test_layers_that_are_alike_have_graphs_of_their_own(tmp_path: Path, training: bool) -> None:
    layers = Layers(tmp_path, 3, training)
    for k in range(5):
        layers.step(torch.full((layers.n,), float(k)))
    statistics = layers.graphed.statistics
    assert (statistics.plain, statistics.recordings, statistics.replays) == (3, 3, 12)
    assert not statistics.copied, "each reads the one before where that has its result"


def test_layers_whose_parameters_take_turns_in_one_memory_have_graphs_of_their_own(tmp_path: Path) -> None:
    """FSDP2 gathers a layer's parameters where it has just freed another one's, in storages that stay the layer's."""
    layers = Layers(tmp_path, 3, training=True)
    memory = [np.zeros(layers.n, np.float32) for _ in range(2)]
    layers.parameters = [[torch.from_numpy(x) for x in memory] for _ in range(3)]
    for k in range(5):
        layers.step(torch.full((layers.n,), float(k)))
    statistics = layers.graphed.statistics
    assert (statistics.plain, statistics.recordings, statistics.replays) == (3, 3, 12)
    assert statistics.copied == ("weight", "bias"), "no other layer's were where the third one's buffer is"


def test_parameters_whose_storages_get_other_memory_are_copied(tmp_path: Path) -> None:
    layers, kept = Layers(tmp_path, 2, training=True), list[torch.Tensor]()
    for k in range(8):
        layers.step(torch.full((layers.n,), float(k)))
        for parameter in layers.parameters[0] if k > 2 else []:
            storage, before = parameter.untyped_storage(), parameter.data_ptr()
            size = storage.nbytes()
            while parameter.data_ptr() == before:
                storage.resize_(0)
                kept.append(torch.empty_like(layers.shared))  # takes the memory
                storage.resize_(size)
    statistics = layers.graphed.statistics
    assert (statistics.plain, statistics.recordings, statistics.replays) == (2, 4, 14), "both again, once"
    recordings = layers.graphed._bindings.recordings()  # noqa: SLF001 - what is held cannot be seen from outside
    assert [{0, 1} & one.copies.memory.keys() for one in recordings] == [{0, 1}, set()]


def test_inputs_that_move_between_alike_layers_are_copied_in_the_end(tmp_path: Path) -> None:
    """A large input is read where it lies while it stays there; what a layer hands on may not."""
    layers = Layers(tmp_path, 3, n=LARGE)
    kept = []
    for k in range(3 * PATIENCE):
        kept.append(torch.full((layers.n,), float(k)))
        layers.step(kept[-1])
    before = layers.graphed.statistics.replays
    layers.step(torch.full((layers.n,), 7.0))
    assert layers.graphed.statistics.replays == before + 3


def test_alike_layers_copy_an_input_to_one_place(tmp_path: Path) -> None:
    layers, held = Layers(tmp_path, 3), list[torch.Tensor]()
    for k in range(6):
        for n, parameters in enumerate(layers.parameters):
            x = torch.full((layers.n,), float(10 * k + n))
            held.append(x)
            y = torch.as_tensor(layers.graphed.run([*parameters, layers.shared, x])[0])
            assert torch.equal(y, (1.0 + n) * x + n)
            del y
    assert (layers.graphed.statistics.replays, layers.graphed.statistics.copied) == (15, ("x",))
    recordings = layers.graphed._bindings.recordings()  # noqa: SLF001 - what is held cannot be seen from outside
    assert len({one.copies.memory[3].data_ptr() for one in recordings}) == 1


def test_a_model_whose_parameters_get_new_memory_leaves_no_graphs_behind(tmp_path: Path) -> None:
    layers = Layers(tmp_path, 2)
    for k in range(3):
        layers.step(torch.full((layers.n,), float(k)))
    layers.parameters = [layers.made(k) for k in range(2)]
    for k in range(20):
        layers.step(torch.full((layers.n,), float(k)))
    assert layers.graphed.statistics.recordings == 4
    bindings = list(layers.graphed._bindings)  # noqa: SLF001 - what is held cannot be seen from outside
    assert [len(binding.recordings) for binding in bindings] == [0, 0, 1, 1]


def test_of_many_sizes_those_used_last_hold_graphs_and_those_seen_once_none(tmp_path: Path) -> None:
    budget = GraphBudget(GraphStatistics(), most=2)
    cases = [Case(tmp_path, n) for n in (3, 4, 5)]
    for case in cases:
        case.graphed.budget, case.graphed.statistics = budget, budget.statistics

    def call(k: int) -> int:
        """How many recordings a call has made."""
        before, x = budget.statistics.recordings, cases[k].fresh(k)
        cases[k].check(cases[k](x), x)
        return budget.statistics.recordings - before

    assert [call(0), call(1), call(2)] == [0, 0, 0]
    assert [call(0), call(1)] == [1, 1]
    # the third has come once, and must come four times, since two have recorded; then it takes the first one's place
    assert [call(2), call(2), call(2)] == [0, 0, 1]
    assert not budget.may_record(id(cases[0].graphed), 3)
    assert list(budget.holders) == [id(cases[k].graphed) for k in (1, 2)]
    assert [call(1), call(2)] == [0, 0]
    calls = [call(0) for _ in range(4)]
    assert calls == [0, 1, 0, 0]  # the fourth call of its size
    assert budget.recordings == 4


def test_sizes_within_a_power_of_two_are_asked_together() -> None:
    budget, pace = GraphBudget(GraphStatistics()), Pace()
    numbers = [budget.number(us, lambda us=us: pace.add(us)) for us in (100.0, 130.0, 75.0, 400.0, 12.0, 90.0, 380.0)]
    assert numbers == [0, 0, 0, 1, 2, 0, 1]


def test_sizes_whose_graphs_save_no_time_prepare_none(tmp_path: Path) -> None:
    budget, pace = GraphBudget(GraphStatistics()), Pace()
    number = pace.add(1e6)
    for us in (0.0, 10.0, 20.0):
        pace.enter(number, lambda us=us: Done(pace.clock, us))
        pace.leave(number, 1.0)
    pace.enter(number, lambda: Done(pace.clock, 30.0))
    case = Case(tmp_path)
    case.graphed.budget, case.graphed.statistics, case.graphed.pace = budget, budget.statistics, pace
    for k in range(3):
        case.check(case(case.fresh(k)), case.fresh(k))
    assert budget.statistics.plain == 3
    assert budget.statistics.reason.startswith("a graph would save no time")
    assert not budget.holders


FED_BACK = """
import torch
INPUTS = (("x", "float32", ({n},), (1,), "cpu", False),)
CONSTANTS = ()
DEVICE = torch.device("cpu")

def call(inputs, constants):
    (x,) = inputs
    inputs.clear()
    return (x + 1,)
"""


@pytest.mark.parametrize("n", [SMALL, LARGE])
@pytest.mark.parametrize("programs", [1, 2])
def test_results_that_are_fed_back_do_not_keep_graphs_waiting(tmp_path: Path, n: int, programs: int) -> None:
    results = Results()
    program = Program(FED_BACK.replace("{n}", str(n)), folder=tmp_path)
    loop = [
        GraphedProgram(program, "auto", Interest(), Outside(), Arena(results), small=COPIED) for _ in range(programs)
    ]
    x: Any = torch.zeros(n)
    # programs that read each other wait for each other, and again where malloc has moved what a recording reads, which
    # the rest of the process decides: so the number of plain calls has no bound here, but they come to an end
    plain: list[int] = []
    for k in range(1000):
        if k == 900:
            plain = [one.statistics.plain for one in loop]
        (x,) = loop[k % programs].run([x])
        assert float(x[0]) == k + 1
    assert [one.statistics.plain for one in loop] == plain
