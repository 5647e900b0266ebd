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
So ``"auto"`` records one only where the host, as measured in plain calls, takes a good part of the time that the GPU is
predicted to take: ``Pace``.

Random numbers differ from replay to replay: the program draws its seed from torch's generator, which a graph advances.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch

from optfuse.compiler.frontend.captured import Captured
from optfuse.compiler.frontend.torch_bridge import copy_all, storage_users
from optfuse.errors import InvalidOptionError
from optfuse.runtime.program import Arena, Program, Value

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


#: Plain calls whose host time is measured, after the first.
TIMED = 2
#: A graph is worth its memory where the host takes more than this share of the GPU's time: the user's own code, such as
#: an optimizer, needs the host, too.
HOST_SHARE = 0.7


class Recorder(Protocol):
    """What records: the device, or a stand-in for tests."""

    def warm(self, call: Callable[[], list[Value]]) -> list[Value]:
        """Run ``call`` for real in a way that leaves nothing to be set up during a recording."""
        ...

    def record(self, call: Callable[[], list[Value]]) -> tuple[Callable[[], None], list[Value]]:
        """Record ``call`` without running it: the function that replays it, and its results' memory."""
        ...

    def place(self) -> object:
        """Where work is queued now: replays of one program must all be queued in one place."""
        ...


@dataclass(frozen=True, slots=True)
class Interest:
    """Who needs a program's results: positions that the caller sees (None: all), and which inputs are parameters."""

    visible: frozenset[int] | None = None
    fixed: frozenset[int] = frozenset()
    training: bool = False


@dataclass(slots=True)
class _Result:
    """A result: a value, memory of the graph, or a window of an input, ``offset`` elements after that one's first."""

    value: Value
    source: int | None = None
    offset: int = 0


@dataclass(slots=True)
class _Recording:
    replay: Callable[[], None]
    copies: dict[int, torch.Tensor]
    static: dict[int, int]
    results: list[_Result]
    # memory of results, by result, with the number of its users when nobody but the recording is one
    storages: dict[int, tuple[torch.UntypedStorage, int]]

    def in_use(self, positions: Sequence[int] | None) -> bool:
        """Whether somebody holds results (those positions, or any) of the last replay."""
        chosen = self.storages if positions is None else [k for k in positions if k in self.storages]
        return any(storage_users(self.storages[k][0]) > self.storages[k][1] for k in chosen)

    def moved(self, given: Sequence[torch.Tensor]) -> list[int]:
        """Inputs that are not where they were."""
        return [k for k, pointer in self.static.items() if given[k].data_ptr() != pointer]


@dataclass(slots=True)
class GraphStatistics:
    """How calls were served, inputs that the last recording copies, and why a call was last served without a graph."""

    replays: int = 0
    plain: int = 0
    recordings: int = 0
    copied: tuple[str, ...] = ()
    reason: str = ""


@dataclass(slots=True)
class Pace:
    """Times of programs that run one after the other, in microseconds: the GPU's as predicted, the host's as measured.

    What is found of all of them, once one has been timed, holds for each.
    """

    gpu: list[float] = field(default_factory=list)
    host: list[list[float]] = field(default_factory=list)
    _worth: bool | None = None

    def add(self, gpu_us: float) -> int:
        """A number for one more program, predicted to keep the GPU busy for so long."""
        self.gpu.append(gpu_us)
        self.host.append([])
        return len(self.gpu) - 1

    def note(self, number: int, host_us: float) -> None:
        """How long the host took for a call of a program."""
        self.host[number].append(host_us)

    def is_known(self, number: int) -> bool:
        """Whether calls of a program have been timed."""
        return self._worth is not None or len(self.host[number]) >= TIMED

    def is_worth_a_graph(self) -> bool:
        """Whether the host would take a good part of the GPU's time without graphs."""
        if self._worth is None:
            timed = [(min(host), gpu) for host, gpu in zip(self.host, self.gpu, strict=True) if host]
            self._worth = sum(host for host, _ in timed) > HOST_SHARE * sum(gpu for _, gpu in timed)
        return self._worth

    def __str__(self) -> str:
        host = sum(min(times) for times in self.host if times)
        return f"the host takes {host:,.0f} us a call, the GPU {sum(self.gpu):,.0f}"


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
    _recordings: list[_Recording] = field(default_factory=list)
    _pointers: list[int] | None = None
    _moved: set[int] = field(default_factory=set)
    _unsettled: int = 0
    _place: object = None
    _given_up: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, inputs: Sequence[torch.Tensor]) -> list[Value]:
        """As ``Program.run``; the results' memory is the graph's (see the module's text). Threads take turns."""
        return self.consume(list(inputs))

    def consume(self, inputs: list[torch.Tensor]) -> list[Value]:
        """``run`` with a list that is emptied, see ``Program.consume``."""
        with self._lock:  # between the copies of a call and its replay nobody else may write them
            return self._run(inputs)

    def _run(self, inputs: list[torch.Tensor]) -> list[Value]:
        given, main = self.program.accept(inputs)
        inputs.clear()
        if self.recorder is None:
            if main.type != "cuda" or any(x.device != main for x in given):
                return self._plain(given, main, "not every input is on the GPU")
            self.recorder = CudaRecorder(main)
        if getattr(self.program.module, "DRAWS_ON_HOST", False):
            return self._plain(given, main, "random numbers are drawn on the host")
        if self._given_up or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
            return self._plain(given, main, self.statistics.reason or "inside of another capture")
        pointers, before = [x.data_ptr() for x in given], self._pointers
        self._pointers = pointers
        if before is None:  # kernels are compiled and libraries set up: none of that can be recorded
            self._place = self.recorder.place()
            self.statistics.plain += 1
            probe = None if self.arena is None else self.arena.probe
            return self.recorder.warm(lambda: self.program.execute(given, main, probe))
        if self.pace is not None and not self.pace.is_known(self.number):
            return self._timed(given, main, self.pace)
        if self.pace is not None and not self.pace.is_worth_a_graph():
            self._given_up = True
            return self._plain(given, main, f"a graph would save no time: {self.pace}")
        if self.recorder.place() != self._place:
            return self._plain(given, main, "on another stream than the first call")
        return self._through_graph(given, main, before)

    def _timed(self, given: list[torch.Tensor], main: torch.device, pace: Pace) -> list[Value]:
        start = time.perf_counter()
        results = self._plain(given, main, "the host is timed")
        pace.note(self.number, 1e6 * (time.perf_counter() - start))
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
        free = next((recording for recording in self._recordings if not self._in_use(recording)), None)
        if free is not None:
            return self._replay(free, given)
        if len(self._recordings) >= (1 if self.interest.training else TURNS):
            return self._plain(given, main, "results of an earlier call are still in use")
        if self.statistics.recordings >= RECORDINGS:
            self._given_up = True
            return self._plain(given, main, "inputs move too often")
        recording = self._record(given, main, before)
        return self._plain(given, main, self.statistics.reason) if recording is None else self._replay(recording, given)

    def _moving(self, given: Sequence[torch.Tensor], before: Sequence[int]) -> list[int]:
        """Large inputs whose address is another one than at the call before: a graph may come too early."""
        return [k for k, x in enumerate(given) if x.nbytes > SMALL and x.data_ptr() != before[k]]

    def _in_use(self, recording: _Recording) -> bool:
        """Whether a replay would overwrite what somebody may still read."""
        if not self.interest.training:
            return self.choice is not True and recording.in_use(None)
        visible = self.interest.visible
        if visible is None:  # a backward graph: its gradients
            return recording.in_use(None)
        return recording.in_use([k for k in recording.storages if k not in visible])

    def _plain(self, given: list[torch.Tensor], main: torch.device, reason: str) -> list[Value]:
        self.statistics.plain += 1
        self.statistics.reason = reason
        return self.program.execute(given, main)

    def _record(self, given: list[torch.Tensor], main: torch.device, before: Sequence[int]) -> _Recording | None:
        assert self.recorder is not None, "run has made one"
        roles = [self._role(k, x, before[k]) for k, x in enumerate(given)]
        copies = {k: _like(x) for k, x in enumerate(given) if roles[k] == "copied"}
        _feed(copies, given)  # a stand-in for the GPU's recorder runs what it records
        fed = [copies.get(k, x) for k, x in enumerate(given)]
        try:
            take = None if self.arena is None else self.arena.take
            replay, values = self.recorder.record(lambda: self.program.execute(list(fed), main, take))
        except RuntimeError as error:  # a library call that waits for the device, for example
            self._given_up = True
            self.statistics.reason = f"cannot be recorded: {str(error).splitlines()[0][:200]}"
            return None
        results = [_Result(value, *_handed_on(value, fed)) for value in values]
        del values
        storages = {
            k: result.value.untyped_storage()
            for k, result in enumerate(results)
            if isinstance(result.value, torch.Tensor) and result.source is None
        }
        counted = {k: (storage, storage_users(storage)) for k, storage in storages.items()}
        static = {k: x.data_ptr() for k, x in enumerate(given) if roles[k] == "static"}
        recording = _Recording(replay, copies, static, results, counted)
        self._recordings.append(recording)
        self.statistics.recordings += 1
        self.statistics.copied = tuple(self.program.inputs[k].name for k in copies)
        return recording

    def _role(self, k: int, x: torch.Tensor, before: int) -> Role:
        if self.program.inputs[k].mutated or (k in self.interest.fixed and k not in self._moved):
            return "static"
        return "static" if x.nbytes > SMALL and x.data_ptr() == before else "copied"

    def _replay(self, recording: _Recording, given: Sequence[torch.Tensor]) -> list[Value]:
        with torch.no_grad():
            _feed(recording.copies, given)
            recording.replay()
            self.statistics.replays += 1
            return [self._handed_out(k, result, given) for k, result in enumerate(recording.results)]

    def _handed_out(self, k: int, result: _Result, given: Sequence[torch.Tensor]) -> Value:
        value = result.value
        if not isinstance(value, torch.Tensor):
            return value
        if result.source is not None:
            source = given[result.source]
            if not result.offset and source.shape == value.shape and source.stride() == value.stride():
                return source
            return source.as_strided(value.shape, value.stride(), source.storage_offset() + result.offset)
        seen = self.interest.visible is not None and k in self.interest.visible
        if self.interest.training and seen and self.choice is not True:
            kept = _like(value)
            _once(kept).copy_(_once(value))
            return kept
        return value.detach()  # a tensor of the caller's own: the memory's users can be counted


class CudaRecorder:
    """Records on a stream of its own. Every recording has memory of its own."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)

    def place(self) -> object:
        """The current stream."""
        return torch.cuda.current_stream(self.device).cuda_stream

    def warm(self, call: Callable[[], list[Value]]) -> list[Value]:
        """Run on the recording stream, so that libraries set up their workspaces for it."""
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            results = call()
        current.wait_stream(self.stream)
        return results

    def record(self, call: Callable[[], list[Value]]) -> tuple[Callable[[], None], list[Value]]:
        """Capture. Only what this thread does is looked at: others may use the GPU meanwhile."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            results = call()
        return graph.replay, results


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


def _like(x: torch.Tensor) -> torch.Tensor:
    """Memory of a tensor's layout, from its first to its last element."""
    if 0 in x.shape:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    return torch.empty(_extent(x), dtype=x.dtype, device=x.device).as_strided(x.shape, x.stride())


def _feed(copies: Mapping[int, torch.Tensor], given: Sequence[torch.Tensor]) -> None:
    if copies:
        copy_all([_once(x) for x in copies.values()], [_once(given[k].detach()) for k in copies])


def _once(x: torch.Tensor) -> torch.Tensor:
    """A tensor without the repeats of expanded dimensions, so that each element of memory can be written once."""
    shared = [step == 0 and n > 1 for n, step in zip(x.shape, x.stride(), strict=True)]
    return x[tuple(slice(0, 1) if repeats else slice(None) for repeats in shared)] if any(shared) else x


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
