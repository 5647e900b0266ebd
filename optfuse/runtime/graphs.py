"""A program captured in a CUDA graph: one launch replays all kernels and library calls, at addresses fixed in advance.

What a replay reads and writes must lie where it lay at the recording:

- Parameters, buffers and whatever the program writes in place stay where they are. When one has moved, the call runs
  without the graph; when it does not come back, the graph is recorded again, and takes it as one of the others.
- Other inputs are copied into memory of the graph's own, all in one launch; a large one that keeps its address between
  calls (what a forward graph saved for this one) is left where it is.
- Results lie in the graph's memory. A replay writes there again, so it must not happen while somebody still uses them.
  ``"auto"`` makes sure of that for every result: two recordings take turns for inference, a training step's own results
  are copied, and while a caller holds on to more, the call runs without a graph. ``True`` leaves the results that the
  caller sees in place, valid until the next call; values saved for a backward graph and gradients are guarded all the
  same, so several forward calls before a backward call, and accumulated gradients, are right.

A graph saves the host's time and holds memory: temporaries, what a forward graph saved, copies of inputs and results.
So ``"auto"`` records one only where the GPU waits for the host in plain calls: ``runtime.pace``.

Steps that no graph can hold cut a program into several graphs: ``runtime.recorder``.

Random numbers differ from replay to replay: the program draws its seed from torch's generator, which a graph advances.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from optfuse.compiler.frontend.captured import Captured
from optfuse.compiler.frontend.torch_bridge import copy_all, storage_users
from optfuse.errors import InvalidOptionError
from optfuse.runtime.pace import Pace
from optfuse.runtime.program import Arena, Program, Value, around_calls
from optfuse.runtime.recorder import CudaRecorder, Partition, Recorder, Step, like, once

Choice = bool | Literal["auto"]

#: How an input is fed: from its own address, which must not change, or through a copy.
Role = Literal["static", "copied"]

#: An input of fewer bytes is copied rather than watched.
SMALL = 1 << 20
#: A program whose addresses change more often runs without a graph from then on.
RECORDINGS = 8
#: So many calls in a row may run without a graph because an input has moved; then one is recorded for where it is.
PATIENCE = 3
#: Recordings that take turns, for inference.
TURNS = 2


@dataclass(frozen=True, slots=True)
class Interest:
    """Who needs a program's results: positions that the caller sees (None: all), and which inputs are parameters."""

    visible: frozenset[int] | None = None
    fixed: frozenset[int] = frozenset()
    training: bool = False


@dataclass(frozen=True, slots=True)
class _Result:
    """A result: a value, memory of the graph, or a window of an input, ``offset`` elements after that one's first.

    ``is_left``: a tensor that the caller gets where it lies, in the graph's memory.
    """

    value: Any
    source: int | None = None
    offset: int = 0
    is_left: bool = False


@dataclass(frozen=True, slots=True)
class _Copies:
    """Memory of a graph's own for some inputs, by position. Found once, for a call must not look at each tensor."""

    memory: dict[int, torch.Tensor]
    # positions and targets, those on the host first; both without the repeats of expanded dimensions
    groups: tuple[tuple[tuple[int, ...], list[torch.Tensor]], ...]
    expanded: frozenset[int]

    @staticmethod
    def of(memory: dict[int, torch.Tensor]) -> _Copies:
        targets = {k: once(x) for k, x in memory.items()}
        by_place = [[k for k, x in memory.items() if (x.device.type == "cpu") is on_host] for on_host in (True, False)]
        groups = tuple((tuple(chosen), [targets[k] for k in chosen]) for chosen in by_place if chosen)
        return _Copies(memory, groups, frozenset(k for k, x in targets.items() if x.shape != memory[k].shape))

    def feed(self, given: Sequence[torch.Tensor]) -> None:
        """Copy the inputs there. Called where autograd records nothing."""
        for positions, targets in self.groups:
            copy_all(targets, [once(given[k]) if k in self.expanded else given[k] for k in positions])


@dataclass(slots=True)
class _Recording:
    steps: list[Step]
    copies: _Copies
    static: dict[int, int]
    results: list[_Result]
    # memory of results that a replay must not overwrite while somebody else uses it, with its users while nobody does
    guarded: list[tuple[torch.UntypedStorage, int]]

    def in_use(self) -> bool:
        """Whether a replay would overwrite what somebody may still read."""
        return any(storage_users(storage) > users for storage, users in self.guarded)

    def moved(self, given: Sequence[torch.Tensor]) -> list[int]:
        """Inputs that are not where they were."""
        return [k for k, pointer in self.static.items() if given[k].data_ptr() != pointer]


@dataclass(slots=True)
class GraphStatistics:
    """How calls were served, inputs that the last recording copies, and why a call was last served without a graph.

    ``graphs``: those that one call launches; more than one where the steps in ``cuts`` run between them, with reasons.
    """

    replays: int = 0
    plain: int = 0
    recordings: int = 0
    copied: tuple[str, ...] = ()
    graphs: int = 0
    cuts: tuple[str, ...] = ()
    reason: str = ""


@dataclass(slots=True)
class GraphedProgram:
    """``Program.run`` through CUDA graphs.

    Parameters
    ----------
    program
        What is recorded. Its inputs must be on one GPU.
    choice
        True or "auto": see the module's text. (For False, use the program itself.)
    interest
        Whose results are whose.
    recorder
        The GPU's by default.
    arena
        Memory of temporaries, shared by programs whose replays follow each other (a training step's two). None: each
        recording has its own.
    pace, number
        Times that decide whether "auto" records at all, and which of them are this program's. None: it does.
    """

    program: Program
    choice: Choice = "auto"
    interest: Interest = field(default_factory=Interest)
    recorder: Recorder | None = None
    arena: Arena | None = None
    pace: Pace | None = None
    number: int = 0
    statistics: GraphStatistics = field(default_factory=GraphStatistics)
    _partition: Partition = field(default_factory=Partition)
    _recordings: list[_Recording] = field(default_factory=list)
    _pointers: list[int] | None = None
    _moved: set[int] = field(default_factory=set)
    _unsettled: int = 0
    _place: object = None
    _given_up: bool = False
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _is_running: bool = False

    def run(self, inputs: Sequence[torch.Tensor]) -> list[Value]:
        """As ``Program.run``; the results' memory is the graph's (see the module's text). Threads take turns."""
        return self.consume(list(inputs))

    def consume(self, inputs: list[torch.Tensor]) -> list[Value]:
        """``run`` with a list that is emptied, see ``Program.consume``."""
        with self._lock:  # between the copies of a call and its replay nobody else may write them
            if self._is_running:  # a step of the program has called it: an operator written in Python
                given, main = self.program.accept(inputs)
                inputs.clear()
                return self._plain(given, main, "called from within itself")
            self._is_running = True
            try:
                return self._run(inputs)
            finally:
                self._is_running = False

    def _run(self, inputs: list[torch.Tensor]) -> list[Value]:
        given, main = self.program.accept(inputs)
        inputs.clear()
        if self.recorder is None:
            elsewhere = any(x.device != main for x in given)
            if main.type != "cuda" or (elsewhere and not self.program.has_cuts):
                return self._plain(given, main, "not every input is on the GPU")
            self.recorder = CudaRecorder(main)
        if getattr(self.program.module, "DRAWS_ON_HOST", False) and not self.program.has_cuts:
            return self._plain(given, main, "random numbers are drawn on the host")
        if self._given_up or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
            return self._plain(given, main, self.statistics.reason or "inside of another capture")
        pointers, before = [x.data_ptr() for x in given], self._pointers
        self._pointers = pointers
        if before is None:  # kernels are compiled and libraries set up: none of that can be recorded
            self._place = self.recorder.place()
            self.statistics.plain += 1
            probe = None if self.arena is None else self.arena.probe
            return self.recorder.warm(lambda: self.program.execute(given, main, probe, self._partition.note))
        if self._partition.refused:
            return self._plain(given, main, self._partition.refused)
        if self.pace is not None and not self.pace.is_known(self.number):
            return self._timed(given, main, self.pace)
        if self.pace is not None and not self.pace.is_worth_a_graph():
            self._given_up = True
            return self._plain(given, main, f"a graph would save no time: {self.pace}")
        if self.recorder.place() != self._place:
            return self._plain(given, main, "on another stream than the first call")
        return self._through_graph(given, main, before)

    def _timed(self, given: list[torch.Tensor], main: torch.device, pace: Pace) -> list[Value]:
        assert self.recorder is not None, "run has made one"
        start, reached = time.perf_counter(), self.recorder.mark()
        results = self._plain(given, main, "the host is timed")
        pace.note(self.number, 1e6 * (time.perf_counter() - start), waits=reached())
        return results

    def _through_graph(self, given: list[torch.Tensor], main: torch.device, before: list[int]) -> list[Value]:
        moved = self._recordings[0].moved(given) if self._recordings else self._moving(given, before)
        if moved and self._unsettled < PATIENCE:
            self._unsettled += 1
            return self._plain(given, main, f"input {self.program.inputs[moved[0]].name} has moved")
        if moved:
            self._recordings.clear()
            self._moved.update(moved)
        self._unsettled = 0
        free = next((recording for recording in self._recordings if not recording.in_use()), None)
        if free is not None:
            return self._replay(free, given, main)
        if len(self._recordings) >= (1 if self.interest.training else TURNS):
            return self._plain(given, main, "results of an earlier call are still in use")
        if self.statistics.recordings >= RECORDINGS:
            self._given_up = True
            return self._plain(given, main, "inputs move too often")
        recording = self._record(given, main, before)
        if recording is None:
            return self._plain(given, main, self.statistics.reason)
        return self._replay(recording, given, main)

    def _moving(self, given: Sequence[torch.Tensor], before: Sequence[int]) -> list[int]:
        """Large inputs whose address is another one than at the call before: a graph may come too early."""
        return [k for k, x in enumerate(given) if x.nbytes > SMALL and x.data_ptr() != before[k]]

    def _is_guarded(self, k: int) -> bool:
        """Whether a result must be out of use before a replay: see the module's text."""
        if not self.interest.training:
            return self.choice is not True
        return self.interest.visible is None or k not in self.interest.visible

    def _result(self, k: int, value: Value, fed: Sequence[torch.Tensor]) -> _Result:
        source, offset = _handed_on(value, fed)
        seen = self.interest.visible is not None and k in self.interest.visible
        is_copied = self.interest.training and seen and self.choice is not True
        is_left = isinstance(value, torch.Tensor) and source is None and not is_copied
        return _Result(value, source, offset, is_left)

    def _plain(self, given: list[torch.Tensor], main: torch.device, reason: str) -> list[Value]:
        self.statistics.plain += 1
        self.statistics.reason = reason
        return self.program.execute(given, main)

    def _record(self, given: list[torch.Tensor], main: torch.device, before: Sequence[int]) -> _Recording | None:
        assert self.recorder is not None, "run has made one"
        roles = [self._role(k, x, before[k]) for k, x in enumerate(given)]
        memory = {k: like(x.shape, x.stride(), x.dtype, x.device) for k, x in enumerate(given) if roles[k] == "copied"}
        copies = _Copies.of(memory)
        with torch.no_grad():
            copies.feed(given)  # a stand-in for the GPU's recorder runs what it records
        fed = [memory.get(k, x) for k, x in enumerate(given)]
        found = self._captured(self.recorder, fed, main)
        if found is None:
            self._given_up = True
            return None
        steps, values = found
        results = [self._result(k, value, fed) for k, value in enumerate(values)]
        del values
        guarded = [x.value.untyped_storage() for k, x in enumerate(results) if _is_own(x) and self._is_guarded(k)]
        counted = [(storage, storage_users(storage)) for storage in guarded]
        static = {k: x.data_ptr() for k, x in enumerate(given) if roles[k] == "static"}
        recording = _Recording(steps, copies, static, results, counted)
        self._recordings.append(recording)
        self.statistics.recordings += 1
        self.statistics.copied = tuple(self.program.inputs[k].name for k in memory)
        return recording

    def _captured(
        self, recorder: Recorder, fed: Sequence[torch.Tensor], main: torch.device
    ) -> tuple[list[Step], list[Value]] | None:
        """Graphs of the program, cut at the steps that turn out to need it. None, with a reason, if there are none."""
        take, partition = None if self.arena is None else self.arena.take, self._partition
        while True:
            known, apart = len(partition.cuts), partition.recording(recorder)
            try:
                steps, values = recorder.record(lambda: self.program.execute(list(fed), main, take, apart))  # noqa: B023
                break
            except RuntimeError as error:
                if len(partition.cuts) == known:  # not at a step that can be left out
                    self.statistics.reason = f"cannot be recorded: {str(error).splitlines()[0][:200]}"
                    return None
        self.statistics.graphs = sum(step.launches_graph for step in steps)
        self.statistics.cuts = tuple(dict.fromkeys(partition.cuts.values()))
        if not self.statistics.graphs:
            self.statistics.reason = "no run of steps between cuts is long enough for a graph"
            return None
        return steps, values

    def _role(self, k: int, x: torch.Tensor, before: int) -> Role:
        if self.program.inputs[k].mutated or (k in self.interest.fixed and k not in self._moved):
            return "static"
        return "static" if x.nbytes > SMALL and x.data_ptr() == before else "copied"

    def _replay(self, recording: _Recording, given: Sequence[torch.Tensor], main: torch.device) -> list[Value]:
        with around_calls(main):
            recording.copies.feed(given)
            for step in recording.steps:
                step.run()
            self.statistics.replays += 1
            # a tensor of the caller's own: the memory's users can be counted
            return [r.value.detach() if r.is_left else self._handed_out(r, given) for r in recording.results]

    def _handed_out(self, result: _Result, given: Sequence[torch.Tensor]) -> Value:
        value = result.value
        if not isinstance(value, torch.Tensor):
            return value
        if result.source is not None:
            source = given[result.source]
            if not result.offset and source.shape == value.shape and source.stride() == value.stride():
                return source
            return source.as_strided(value.shape, value.stride(), source.storage_offset() + result.offset)
        kept = like(value.shape, value.stride(), value.dtype, value.device)
        once(kept).copy_(once(value))
        return kept


def interest_of(captured: Captured) -> Interest:
    """Whose the results of one of AOTAutograd's graphs are, which come in the order of the graph's outputs."""
    fixed = frozenset(k for k, source in enumerate(captured.inputs) if source.kind in ("parameter", "buffer"))
    training = captured.visible is not None or captured.name.endswith(".backward")
    return Interest(captured.visible, fixed, training)


def checked_choice(value: object) -> Choice:
    """The option ``cudagraphs``.

    Raises
    ------
    InvalidOptionError
        Anything but True, False and "auto".
    """
    if value is True or value is False or value == "auto":
        return value  # type: ignore[return-value]
    raise InvalidOptionError(f'cudagraphs must be True, False or "auto", not {value!r}')


def runner(
    program: Program,
    choice: Choice,
    interest: Interest | None = None,
    arena: Arena | None = None,
    pace: Pace | None = None,
    gpu_us: float = 0.0,
) -> Callable[[list[torch.Tensor]], list[Value]]:
    """The function that runs a program as chosen, with a list of inputs that it empties.

    ``pace``, with the microseconds that the GPU is predicted to take, lets "auto" do without graphs.
    """
    if choice is False:
        return program.consume
    if pace is None or choice is True:
        return GraphedProgram(program, choice, interest or Interest(), arena=arena).consume
    number = pace.add(gpu_us)
    return GraphedProgram(program, choice, interest or Interest(), arena=arena, pace=pace, number=number).consume


def choice_under(cap: int | None, choice: Choice) -> Choice:
    """Whether there are CUDA graphs under a cap on memory: "auto" means none, for they hold what it does not count."""
    return False if cap is not None and choice == "auto" else choice


def statistics_of(runs: Sequence[Callable[..., Any]]) -> tuple[GraphStatistics, ...]:
    """What the functions that ``runner`` made have done, one record a program that uses graphs."""
    owners = [getattr(run, "__self__", None) for run in runs]
    return tuple(owner.statistics for owner in owners if isinstance(owner, GraphedProgram))


def _is_own(result: _Result) -> bool:
    return isinstance(result.value, torch.Tensor) and result.source is None


def _extent(x: torch.Tensor) -> int:
    """Elements from a tensor's first to its last, both included."""
    return 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))


def _handed_on(value: Value, fed: Sequence[torch.Tensor]) -> tuple[int | None, int]:
    """The input in whose memory a result lies, if any, and how many elements after that one's first.

    Several inputs may share a storage: torch's own LSTM keeps all of its weights in one.
    """
    if not isinstance(value, torch.Tensor) or value.numel() == 0:
        return None, 0
    storage = value.untyped_storage().data_ptr()
    for k, x in enumerate(fed):
        if x.numel() and x.untyped_storage().data_ptr() == storage:
            offset = int(value.storage_offset()) - int(x.storage_offset())
            if 0 <= offset <= _extent(x) - _extent(value):
                return k, offset
    return None, 0
